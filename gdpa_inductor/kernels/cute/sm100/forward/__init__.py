"""The forward kernel (`kernel`), a module for each role of its warps."""
