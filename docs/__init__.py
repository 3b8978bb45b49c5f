"""The documentation: pages in MyST, and the tools that write some of them."""
