"""``import neuronxcc.nki.compiler as ncc``: where tiles lie, and hints to a compiler."""

from neuronxcc.nki.compiler import psum, sbuf
from nki.first_generation.compiler import (
    allocation_scope,
    enable_stack_allocator,
    force_auto_alloc,
    multi_buffer,
    no_reorder,
    skip_middle_end_transformations,
)

__all__ = [
    "allocation_scope",
    "enable_stack_allocator",
    "force_auto_alloc",
    "multi_buffer",
    "no_reorder",
    "psum",
    "sbuf",
    "skip_middle_end_transformations",
]
