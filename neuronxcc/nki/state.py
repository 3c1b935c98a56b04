"""What belongs to one run of a kernel: its grid, its constants, and the instruction that waits.

An instruction that returns a tile is not issued at once. If the next thing that happens assigns the
tile to a part of a tensor, the instruction writes there; whatever else happens first makes it write
to a new tile of its own. So ``psum[...] += nisa.nc_matmul(...)`` is one instruction, and the order
of instructions is always that of the kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nki.errors import NkiError
from nki.isa.functions import FUNCTIONS
from nki.language.creation import shared_constant
from nki.memory import MemoryRegion, Storage
from nki.tensor import NkiTensor, create

if TYPE_CHECKING:
    from neuronxcc.nki.tensors import Result

__all__ = ["State", "constant", "current", "issue", "new_tile", "running", "use_state"]


class State:
    """One run of a kernel.

    Attributes:
        grid: programs along each axis of the launch grid; () without a grid.
        program: the running program's place in the grid.
        waiting: the instruction that is not issued yet.
        zeros: PSUM tensors that `nl.zeros` made and nothing has written, with the elements that
            matrix products have written since.
        constants: tensors in HBM by their contents.
        shared: what the first program of a grid created in shared HBM, in order.
        created: how many of them this program has asked for.
        addresses: explicit addresses count.
    """

    def __init__(self, grid: tuple[int, ...] = (), *, addresses: bool = True) -> None:
        self.grid = grid
        self.program: tuple[int, ...] = (0,) * len(grid)
        self.waiting: Result | None = None
        self.zeros: dict[Storage, npt.NDArray[np.bool_]] = {}
        self.constants: dict[tuple[Any, ...], NkiTensor] = {}
        self.shared: list[NkiTensor] = []
        self.created = 0
        self.addresses = addresses

    def flush(self) -> None:
        """Issue the instruction that waits."""
        waiting = self.waiting
        if waiting is not None:
            waiting.tile()


class _Current(threading.local):
    state: State | None = None


_CURRENT = _Current()


def running() -> bool:
    """Whether this thread runs a kernel of the first generation."""
    return _CURRENT.state is not None


def current() -> State:
    """Return the state of this thread's kernel.

    Raises:
        NkiError: there is none (NKI263).
    """
    state = _CURRENT.state
    if state is None:
        raise NkiError(
            "NKI263",
            "a function of neuronxcc.nki was called outside of a kernel of the first generation",
            "call it in a function decorated with neuronxcc.nki.jit, or given to "
            "neuronxcc.nki.simulate_kernel; kernels of today import nki instead",
        )
    return state


@contextmanager
def use_state(state: State) -> Iterator[State]:
    """Make `state` that of this thread's kernel; at the end issue what still waits."""
    before = _CURRENT.state
    _CURRENT.state = state
    try:
        yield state
        state.flush()
    finally:
        _CURRENT.state = before


def issue(name: str, **arguments: Any) -> Any:
    """Issue an instruction of `nki.isa` after the one that waits."""
    current().flush()
    return FUNCTIONS[name](**arguments)


def new_tile(
    shape: tuple[int, ...], kind: str, region: MemoryRegion = MemoryRegion.sbuf
) -> NkiTensor:
    """Return a new tensor that nothing has written."""
    return create(shape, kind, region)


def constant(array: npt.NDArray[Any], kind: str) -> NkiTensor:
    """Return a tensor in HBM with these items, one for all that are equal."""
    constants = current().constants
    key = (kind, array.shape, array.tobytes())
    found = constants.get(key)
    if found is None:
        found = constants[key] = shared_constant(array).view(kind)
    return found
