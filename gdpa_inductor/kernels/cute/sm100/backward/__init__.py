"""The backward kernel and its protocol (`kernel.SIGNALS`), a module for each role of its warps."""
