"""The forward: `kernel` puts it together."""
