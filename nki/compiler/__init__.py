"""Building kernels outside of a framework."""
