"""Functions on tensors, regions and indices that need no instruction."""

from typing import Any

from nki.arguments import as_integer, as_tensor
from nki.errors import NkiError
from nki.indexing import DynamicSlice
from nki.memory import MemoryRegion, region_of
from nki.tensor import NkiTensor

__all__ = [
    "affine_range",
    "ds",
    "expand_dims",
    "is_hbm",
    "is_on_chip",
    "is_psum",
    "is_sbuf",
    "sequential_range",
    "static_range",
]


def ds(start: Any, size: int) -> DynamicSlice:
    """Return an index for ``size`` elements from ``start`` on.

    ``start`` may be an integer, a register, or a (1, 1) integer tensor in SBUF.
    """
    return DynamicSlice(start, size)


def is_hbm(buffer: Any) -> bool:
    """Return whether a region is HBM, private or shared."""
    return not region_of(buffer).on_chip


def is_on_chip(buffer: Any) -> bool:
    """Return whether a region is SBUF or PSUM."""
    return region_of(buffer).on_chip


def is_psum(buffer: Any) -> bool:
    """Return whether a region is PSUM."""
    return region_of(buffer) is MemoryRegion.psum


def is_sbuf(buffer: Any) -> bool:
    """Return whether a region is SBUF."""
    return region_of(buffer) is MemoryRegion.sbuf


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """Return a view with a dimension of size 1 inserted at ``axis``, not before the partition.

    Raises:
        NkiError: before the partition (NKI015).
        NkiIndexError: there is no such place (NKI010).
        NkiTypeError: ``x`` is no tensor, or ``axis`` no integer (NKI240).
    """
    inserted = as_integer(axis, "nl.expand_dims axis")
    return as_tensor(x, "nl.expand_dims x").expand_dim(inserted)


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Return ``range(start, stop, step)``: the loop is unrolled. ``range`` says the same.

    Raises:
        NkiTypeError: a bound is no integer (NKI240), or a register (NKI139): loops of the device
            are `fori_loop` and `dynamic_range`.
        NkiError: a step of 0 (NKI240).
    """
    given = {"start": start, "stop": stop, "step": step}
    if stop is None:
        del given["stop"]
    checked = {n: as_integer(value, f"nl.affine_range {n}") for n, value in given.items()}
    if checked["step"] == 0:
        raise NkiError("NKI240", "nl.affine_range step is 0", "give another step")
    if stop is None:
        return range(checked["start"])
    return range(checked["start"], checked["stop"], checked["step"])


# The kinds of unrolled loops differ by name only, as documented.
sequential_range = affine_range
static_range = affine_range
