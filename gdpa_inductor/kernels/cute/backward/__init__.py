"""What the backward kernels share: the tiles of a CTA, what they meet, the program, its slope."""
