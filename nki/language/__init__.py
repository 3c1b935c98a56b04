"""`nl`: tensors, data types and constants of kernels."""
