"""Triton templates (`templates/`), what a rendered kernel is a function of (`template`), and its
configurations (`configs`). The device makes tables for it (`tile_bounds`, `order`, `five_matmul`).
"""
