"""Geometry, for all stages: positions in tensors, strides in memory, where operands are read."""
