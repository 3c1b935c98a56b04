"""Making tensors, with partition dimensions that need not come first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nki.arguments import as_integer
from nki.dtypes import info
from nki.errors import NkiError
from nki.first_generation.compute import as_tensor
from nki.first_generation.dtypes import dtype_name
from nki.first_generation.state import constant, current
from nki.first_generation.tensors import Tensor
from nki.first_generation.writes import fill
from nki.memory import MemoryRegion, region_of
from nki.tensor import NkiTensor, create

__all__ = [
    "Placement",
    "empty_like",
    "full",
    "ndarray",
    "ones",
    "par_dim",
    "shared_constant",
    "shared_identity_matrix",
    "zeros",
    "zeros_like",
]


class par_dim(int):  # noqa: N801 (the documented name)
    """The size of a partition dimension; those before it count tiles."""

    __slots__ = ()


class Placement:
    """A memory with an address for each tile of a tensor.

    Attributes:
        region: SBUF or PSUM.
        place: from block indices, partitions and bytes per partition to (partition, byte).
    """

    __slots__ = ("place", "region")

    def __init__(
        self,
        region: MemoryRegion,
        place: Callable[[tuple[int, ...], int, int], tuple[int, int]] | None,
    ) -> None:
        self.region = region
        self.place = place


def ndarray(
    shape: Sequence[int], dtype: Any, *, buffer: Any = None, name: str = "", **more: Any
) -> Tensor:
    """Return a new tensor whose contents are undefined.

    Args:
        shape: sizes. On chip ``nl.par_dim(n)`` marks the partition, which is the first dimension
            otherwise; dimensions before it count tiles.
        dtype: of the elements.
        buffer: ``nl.sbuf`` (the default), ``nl.psum``, ``nl.hbm``, ``nl.private_hbm``,
            ``nl.shared_hbm``, or a placement of `neuronxcc.nki.compiler`.
        name: what messages call it.
        more: hints, which change nothing.

    Raises:
        NkiError: what `nki.language.ndarray` raises; or two partition dimensions (NKI264).
    """
    del more
    kind = dtype_name(dtype)
    placement = buffer if isinstance(buffer, Placement) else None
    region = (
        placement.region
        if placement
        else region_of(MemoryRegion.sbuf if buffer is None else buffer)
    )
    sizes = tuple(int(n) for n in shape)
    if not region.on_chip:
        return Tensor((_in_hbm(sizes, kind, region, name),))
    marked = [k for k, n in enumerate(shape) if isinstance(n, par_dim)]
    if len(marked) > 1:
        raise NkiError(
            "NKI264",
            f"a tensor of shape {sizes} has {len(marked)} partition dimensions",
            "mark one dimension with nl.par_dim",
        )
    at = marked[0] if marked else 0
    blocks, tile = sizes[:at], sizes[at:]
    tile = tile if len(tile) > 1 else (*tile, 1)
    place = placement.place if placement and current().addresses else None
    made = []
    for index in itertools.product(*map(range, blocks)):
        address = None
        if place is not None:
            address = place(index, tile[0], math.prod(tile[1:]) * info(kind).itemsize)
        made.append(create(tile, kind, region, name, address))
    return Tensor(made, blocks)


def _in_hbm(shape: tuple[int, ...], kind: str, region: MemoryRegion, name: str) -> NkiTensor:
    """Return a tensor in HBM; what is shared is one for all programs of a grid."""
    state = current()
    if region is not MemoryRegion.shared_hbm and math.prod(state.grid) > 1:
        return create(shape, kind, region, name)
    # What one program creates anywhere in HBM it may return.
    region = MemoryRegion.shared_hbm
    number = state.created
    state.created += 1
    if number < len(state.shared):
        found = state.shared[number]
        if found.shape != shape or found.dtype != kind:
            raise NkiError(
                "NKI269",
                f"program {state.program} creates a shared tensor {kind}{list(shape)} where the "
                f"first one created {found.dtype}{list(found.shape)}",
                "create the same shared tensors in the same order in every program",
            )
        return found
    made = create(shape, kind, region, name)
    state.shared.append(made)
    return made


def full(
    shape: Sequence[int],
    fill_value: float,
    dtype: Any,
    *,
    buffer: Any = None,
    name: str = "",
    **more: Any,
) -> Tensor:
    """Return a new tensor with a number everywhere; see `ndarray`."""
    made = ndarray(shape, dtype, buffer=buffer, name=name, **more)
    for block in made.blocks:
        fill(block, fill_value)
    return made


def zeros(
    shape: Sequence[int], dtype: Any, *, buffer: Any = None, name: str = "", **more: Any
) -> Tensor:
    """Return a new tensor of zeros.

    In PSUM the first matrix products that accumulate overwrite instead, and zeros are written only
    where something else reads them.
    """
    made = ndarray(shape, dtype, buffer=buffer, name=name, **more)
    lazy = made.region is MemoryRegion.psum
    for block in made.blocks:
        if lazy and block.storage.address is None:
            current().zeros[block.storage] = np.zeros(block.storage.shape, bool)
        else:
            fill(block, 0)
    return made


def ones(
    shape: Sequence[int], dtype: Any, *, buffer: Any = None, name: str = "", **more: Any
) -> Tensor:
    """Return a new tensor of ones; see `ndarray`."""
    return full(shape, 1, dtype, buffer=buffer, name=name, **more)


def _shape_like(a: Any) -> tuple[int, ...]:
    shape = as_tensor(a, "the tensor whose shape is asked for").shape
    blocks = len(getattr(a, "block_shape", ()))
    return tuple(par_dim(n) if blocks and k == blocks else n for k, n in enumerate(shape))


def zeros_like(
    a: Any, dtype: Any = None, *, buffer: Any = None, name: str = "", **more: Any
) -> Tensor:
    """Return zeros in the shape of a tensor, by default of its type and in SBUF."""
    return zeros(
        _shape_like(a), a.dtype if dtype is None else dtype, buffer=buffer, name=name, **more
    )


def empty_like(
    a: Any, dtype: Any = None, *, buffer: Any = None, name: str = "", **more: Any
) -> Tensor:
    """Return a new tensor in the shape of another, by default of its type and in SBUF."""
    return ndarray(
        _shape_like(a), a.dtype if dtype is None else dtype, buffer=buffer, name=name, **more
    )


def shared_constant(constant_data: Any, dtype: Any = None, **more: Any) -> Tensor:
    """Return a tensor in HBM that holds an array."""
    del more
    array = np.asarray(constant_data)
    kind = dtype_name(array.dtype if dtype is None else dtype)
    return Tensor((constant(np.ascontiguousarray(array.astype(info(kind).numpy)), kind),))


_LARGEST_IDENTITY = 1 << 12


def shared_identity_matrix(n: int, dtype: Any = np.uint8, **more: Any) -> Tensor:
    """Return the identity of shape (n, n) in HBM."""
    size = as_integer(n, "nl.shared_identity_matrix n")
    if not 0 < size <= _LARGEST_IDENTITY:
        raise NkiError(
            "NKI240",
            f"nl.shared_identity_matrix n is {size}",
            f"give 1 to {_LARGEST_IDENTITY}: products take 128 rows",
        )
    return shared_constant(np.eye(size), dtype, **more)
