"""``import neuronxcc.nki.compiler as ncc``: where tiles lie, and hints to a compiler.

Addresses are those of `nki.language.ndarray`. The hints concern the order of instructions and how
much memory is used; here instructions run in the order of the kernel, so they change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nki.first_generation.compiler import psum, sbuf

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


@contextmanager
def no_reorder() -> Iterator[None]:
    """Keep the order of instructions within a ``with`` block, as it is kept everywhere."""
    yield


@contextmanager
def allocation_scope() -> Iterator[None]:
    """Limit the lifetime of tiles to a ``with`` block, as they are limited anyway."""
    yield


def multi_buffer(factor: int = 2) -> Any:
    """Return SBUF: how many copies of a tile there are is nobody's choice here."""
    del factor
    return sbuf.auto_alloc()


def skip_middle_end_transformations(func: Any = None) -> Any:
    """Return the kernel itself: there are no such transformations."""
    return _unchanged if func is None else func


def enable_stack_allocator(func: Any = None, log_level: int = 50) -> Any:
    """Return the kernel itself: memory is given out by lifetimes."""
    del log_level
    return _unchanged if func is None else func


def _unchanged(func: Callable[..., Any]) -> Callable[..., Any]:
    return func


def force_auto_alloc(func: Any = None) -> Any:
    """Let a kernel ignore explicit addresses; works on functions and on kernels."""
    if func is None:
        return force_auto_alloc
    func.ignores_addresses = True
    return func
