"""Measurements against PyTorch's own CPU device; run them with `python -m benchmarks.run`."""
