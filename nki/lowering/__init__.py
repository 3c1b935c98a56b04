"""Recordings of kernels as programs for the native executor."""
