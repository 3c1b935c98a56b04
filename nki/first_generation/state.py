"""The state of one run of a kernel: its grid, its constants, and the instruction that waits.

An instruction that returns a tile is not issued at once. If the next thing that happens assigns the
tile to a part of a tensor, the instruction writes there; whatever else happens first makes it write
to a new tile of its own. So ``psum[...] += nisa.nc_matmul(...)`` is one instruction, and the order
of instructions is always that of the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from nki.access import written
from nki.context import surroundings, use
from nki.dtypes import info
from nki.errors import NkiError
from nki.first_generation.owners import Owners
from nki.isa.functions import FUNCTIONS
from nki.isa.spec import Role
from nki.isa.table import TABLE
from nki.language.creation import shared_constant
from nki.memory import MemoryRegion, Storage
from nki.tensor import NkiTensor, create

__all__ = [
    "LoopRun",
    "State",
    "constant",
    "current",
    "issue",
    "new_tile",
    "nothing",
    "running",
    "use_state",
]


class Waiting(Protocol):
    """An instruction that is not issued yet."""

    def tile(self) -> NkiTensor:
        """Issue it, and return what it has written."""


class LoopRun:
    """One run of a loop of the kernel, from its first turn to its last.

    Attributes:
        around: the loops that it lies in, outermost first, each with the number of its turn.
        turn: number of the turn that runs.
        inner: another loop that the compiler sees has run in it.
    """

    __slots__ = ("around", "inner", "turn")

    def __init__(self, around: tuple[tuple[LoopRun, int], ...]) -> None:
        self.around = around
        self.turn = 0
        self.inner = False


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
        loops: the loops that run, outermost first.
        reduced: which reduction over loops has written the elements of a storage last.
        empty: storages that stand for empty slices, and what is computed of them.
    """

    def __init__(self, grid: tuple[int, ...] = (), *, addresses: bool = True) -> None:
        self.grid = grid
        self.program: tuple[int, ...] = (0,) * len(grid)
        self.waiting: Waiting | None = None
        self.zeros: dict[Storage, npt.NDArray[np.bool_]] = {}
        self.constants: dict[tuple[Any, ...], NkiTensor] = {}
        self.shared: list[NkiTensor] = []
        self.created = 0
        self.addresses = addresses
        self.loops: list[LoopRun] = []
        self.reduced: dict[Storage, Owners] = {}
        self.empty: set[Storage] = set()
        self._tiles: set[Storage] = set()  # that instructions made since there are empty slices

    def new(self, tensor: NkiTensor) -> None:
        """Take note of a tile that an instruction writes to because nobody named one."""
        if self.empty:
            self._tiles.add(tensor.storage)

    def no_work(self, name: str, arguments: dict[str, Any]) -> bool:
        """Return whether an instruction reads or writes something empty, and makes nothing."""
        tensors = [
            (operand.role is not Role.READ, tensor)
            for operand in TABLE[name].operands
            for tensor in _tensors(arguments.get(operand.name))
        ]
        if not any(tensor.storage in self.empty for _, tensor in tensors):
            return False
        for writes, tensor in tensors:
            if writes and (tensor.storage in self._tiles or _is_new(tensor)):
                self.empty.add(tensor.storage)
        return True

    def flush(self) -> None:
        """Issue the instruction that waits."""
        waiting = self.waiting
        if waiting is not None:
            waiting.tile()


def _tensors(value: Any) -> Iterator[NkiTensor]:
    """Iterate over the tensors of an operand, and the indices that move them."""
    for tensor in value if isinstance(value, list) else (value,):
        if isinstance(tensor, NkiTensor):
            yield tensor
            indirect = tensor.pattern.indirect
            if indirect is not None and isinstance(indirect.index, NkiTensor):
                yield indirect.index


def _is_new(tensor: NkiTensor) -> bool:
    """Return whether a view shows all of a storage that nothing has written."""
    p = tensor.pattern
    whole = p.size * info(p.dtype).itemsize == tensor.storage.nbytes
    return whole and p.indirect is None and not written(tensor).any()


def running() -> bool:
    """Return whether this thread runs a kernel of the first generation."""
    return surroundings().state is not None


def current() -> State:
    """Return the state of this thread's kernel.

    Raises:
        NkiError: there is none (NKI263).
    """
    state = surroundings().state
    if not isinstance(state, State):
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
    with use(state=state):
        yield state
        state.flush()


def issue(name: str, **arguments: Any) -> Any:
    """Issue an instruction of `nki.isa` after the one that waits."""
    state = current()
    state.flush()
    if state.empty and state.no_work(name, arguments):
        return None
    if state.reduced:
        _disown(state, name, arguments)
    return FUNCTIONS[name](**arguments)


def _disown(state: State, name: str, arguments: dict[str, Any]) -> None:
    """Forget which reductions have written what an instruction overwrites."""
    for operand in TABLE[name].operands:
        tensor = arguments.get(operand.name)
        if operand.role is not Role.READ and isinstance(tensor, NkiTensor):
            owners = state.reduced.get(tensor.storage)
            if owners is not None:
                owners.put(tensor, None)


def new_tile(
    shape: tuple[int, ...], kind: str, region: MemoryRegion = MemoryRegion.sbuf
) -> NkiTensor:
    """Return a new tensor that nothing has written."""
    made = create(shape, kind, region)
    current().new(made)
    return made


def nothing(like: NkiTensor) -> NkiTensor:
    """Return what stands for an empty slice: a tensor that instructions leave alone.

    It has size 1 where the slice has none, so that shapes can be computed with it.
    """
    region = like.buffer if like.buffer.on_chip else MemoryRegion.private_hbm
    made = create(like.shape, like.dtype, region)
    current().empty.add(made.storage)
    return made


def constant(array: npt.NDArray[Any], kind: str) -> NkiTensor:
    """Return a tensor in HBM with these items, one for all that are equal."""
    constants = current().constants
    key = (kind, array.shape, array.tobytes())
    found = constants.get(key)
    if found is None:
        found = constants[key] = shared_constant(array).view(kind)
    return found
