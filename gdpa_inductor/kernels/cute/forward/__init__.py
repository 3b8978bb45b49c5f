"""What the forward kernels share: which tiles a CTA computes, their loads, the keys they meet."""
