"""The backward kernel for Blackwell. `kernel` loads, and lists the signals between its roles."""
