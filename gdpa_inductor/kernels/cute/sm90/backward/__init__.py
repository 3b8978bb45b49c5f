"""The backward kernel for Hopper: `kernel` puts the roles of its warps together."""
