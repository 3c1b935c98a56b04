"""Loops, the launch grid, and printing."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from nki.arguments import as_integer, as_integers, as_text
from nki.context import current_run
from nki.errors import NkiError, NkiIndexError
from nki.first_generation.boxes import region_of_mask
from nki.first_generation.compute import as_tensor
from nki.first_generation.loops import LoopRange
from nki.first_generation.state import current
from nki.first_generation.tensors import Tensor

__all__ = [
    "affine_range",
    "all_reduce",
    "device_print",
    "nc",
    "num_programs",
    "program_id",
    "program_ndim",
    "sequential_range",
    "spmd_dim",
    "static_range",
]


def affine_range(*args: Any, **more: Any) -> LoopRange:
    """Return ``range(...)``: loops are unrolled, and hints about their order change nothing."""
    del more
    return LoopRange(*args)


sequential_range = affine_range


def static_range(*args: Any, **more: Any) -> LoopRange:
    """Return ``range(...)``: a loop that the compiler sees written out, turn by turn."""
    del more
    return LoopRange(*args, unrolled=True)


class nc(int):  # noqa: N801 (the documented name)
    """A number of cores in a launch grid: ``kernel[nl.nc(2), 4]``.

    Programs run one after the other on one core, so it only counts programs.
    """

    __slots__ = ()


def spmd_dim(*sizes: int) -> int:
    """Return the programs along an axis of a launch grid that is divided into several."""
    return math.prod(as_integers(sizes, "nl.spmd_dim sizes"))


def _axis(axis: Any) -> int:
    grid = current().grid or (1,)  # without a grid there is one program
    number = as_integer(axis, "the axis of a launch grid")
    if not 0 <= number < len(grid):
        raise NkiIndexError(
            "NKI269",
            f"axis {number} of a launch grid of {len(current().grid)} axes was asked for",
            "launch the kernel with a grid that has it: kernel[n, m](...)",
        )
    return number


def program_id(axis: int) -> int:
    """Return the number of this program along an axis of the launch grid.

    Raises:
        NkiIndexError: the grid has no such axis (NKI269).
    """
    number = _axis(axis)
    state = current()
    return state.program[number] if state.grid else 0


def num_programs(axes: Any = None) -> int:
    """Return the number of programs along some axes, by default along all."""
    grid = current().grid
    if axes is None:
        return math.prod(grid)
    chosen = axes if isinstance(axes, (list, tuple)) else (axes,)
    return math.prod((grid or (1,))[_axis(axis)] for axis in chosen)


def program_ndim() -> int:
    """Return the number of axes of the launch grid."""
    return len(current().grid)


def all_reduce(*args: Any, **more: Any) -> NoReturn:
    """Refuse: programs run one after the other.

    Raises:
        NkiError: always (NKI269).
    """
    del args, more
    raise NkiError(
        "NKI269",
        "nl.all_reduce combines tiles of several programs",
        "store each program's tile to a shared tensor, and reduce them in a second kernel",
    )


def device_print(prefix: str, x: Tensor, *, mask: Any = None) -> None:
    """Print a text and the values of a tile when the kernel runs."""
    state = current()
    prefix = as_text(prefix, "nl.device_print prefix")
    x = as_tensor(x, "nl.device_print x")
    region = region_of_mask(mask, x.shape)
    if region.box is None:
        return
    tensor = x.tile() if mask is None else x.part(region.box)
    state.flush()
    run = current_run()
    assert run is not None  # there is a state
    run.device_print(prefix, tensor)
