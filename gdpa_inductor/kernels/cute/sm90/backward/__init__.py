"""The backward: `kernel` puts it together."""
