"""The backward kernel for Blackwell: a module for each role of its warps.

`kernel.SIGNALS` lists the signals between them.
"""
