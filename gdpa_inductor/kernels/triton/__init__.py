"""Triton templates (`templates/`), what a rendered kernel is a function of (`template`), its
configurations, and the tables that the device makes for it (`tile_bounds`, `order`, `five_matmul`).
"""
