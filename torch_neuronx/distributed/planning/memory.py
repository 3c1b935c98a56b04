"""The memory of the planned core over time.

Storages are followed from the operator that made them until nothing refers to them. What happened
is kept as a list of changes; the peak, and what was there then, are found by reading the list again
at the end, when it is known what each storage was: whether it is a gradient shows only when
an optimizer has taken it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

# The emulated core's allocator hands out multiples of this; what a real one does isn't published.
GRANULE = 512


@dataclass(slots=True, eq=False)
class Block:
    """One storage, while it existed.

    Attributes:
        device: `neuron` or `cpu`.
        bytes: Its size now.
        maker: Name of the operator that made it.
        shape: Shape of the first tensor in it.
        dtype: Its data type's name.
        module: The module in whose forward it was made, if any.
        phase: When: `setup`, `forward`, `backward` or `optimizer`.
        role: What it turned out to be, if it is known: `parameters`, `gradients`, ...
        name: Name of the parameter or buffer, if it is one.
        emptied: Whether its memory was freed while it was referred to.
        communicated: Whether a collective of `c10d` had it as an argument.
    """

    device: str
    bytes: int
    maker: str
    shape: tuple[int, ...]
    dtype: str
    module: str
    phase: str
    role: str = ""
    name: str = ""
    emptied: bool = False
    communicated: bool = False

    @property
    def kind(self) -> str:
        """The kind of memory that it is counted as."""
        # Nothing but FSDP frees a storage that is still referred to.
        if self.emptied:
            return "gathered parameters"
        if not self.role and self.communicated:
            return "communication buffers"
        return self.role or _BY_PHASE[self.phase]


_BY_PHASE = {
    "setup": "other",
    "forward": "activations",
    "backward": "temporaries of backward",
    "optimizer": "temporaries of the optimizer",
}


@dataclass(slots=True)
class Moment:
    """One moment of a device's memory: how much, and what (blocks with their bytes then)."""

    bytes: int = 0
    phase: str = "setup"
    step: int = -1
    blocks: list[tuple[Block, int]] = field(default_factory=list)

    def by_kind(self) -> dict[str, int]:
        """Bytes by what they are, largest first."""
        sums: dict[str, int] = {}
        for block, size in self.blocks:
            sums[block.kind] = sums.get(block.kind, 0) + size
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


class Memory:
    """Follows storages; one for each plan."""

    def __init__(self) -> None:
        self._live: dict[int, Block] = {}
        self._watched: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        # Weak references must be kept for their callbacks to come.
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        # (block, change in bytes, phase, step)
        self._changes: list[tuple[Block, int, str, int]] = []
        self.phase = "setup"
        self.step = -1

    def see(self, tensor: Tensor, maker: str, module: str) -> None:
        """Note the storage of a result, if it is new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live or tensor.device.type == "meta":
            return
        block = Block(
            tensor.device.type,
            0,
            maker,
            tuple(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
            module,
            self.phase,
        )
        self._live[key] = block
        self._references[key] = weakref.ref(storage, partial(self._gone, key))
        self._resize(block, storage.nbytes())

    def block_of(self, tensor: Tensor) -> Block:
        """The storage of a tensor; of one that no operator has made yet as well."""
        found = self._live.get(tensor.untyped_storage()._cdata)
        if found is None:
            self.see(tensor, "given", "")
            found = self._live[tensor.untyped_storage()._cdata]
        return found

    def _gone(self, key: int, _reference: object) -> None:
        block = self._live.pop(key)
        self._watched.pop(key, None)
        del self._references[key]
        self._resize(block, 0)

    def _resize(self, block: Block, size: int) -> None:
        rounded = -(-size // GRANULE) * GRANULE
        if rounded != block.bytes:
            self._changes.append((block, rounded - block.bytes, self.phase, self.step))
            block.bytes = rounded

    def watch(self, tensors: Iterable[Tensor]) -> None:
        """Expect that these tensors' storages are resized, which no operator tells.

        FSDP frees and restores the memory of gathered parameters like that. What it gathers into is
        an argument of its own operators and of collectives, whose arguments are given to this.
        """
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._live and key not in self._watched:
                self._watched[key] = self._references[key]

    def communicate(self, tensors: Iterable[Tensor]) -> None:
        """Note that tensors are arguments of a collective."""
        for tensor in tensors:
            block = self._live.get(tensor.untyped_storage()._cdata)
            if block is not None:
                block.communicated = True

    def look(self, tensors: Iterable[Tensor] = ()) -> None:
        """Find out which watched storages were freed, and which of an operator's grew."""
        for key, reference in list(self._watched.items()):
            storage = reference()
            block = self._live[key]
            if storage is not None and block.bytes and storage.nbytes() < block.bytes - GRANULE:
                block.emptied |= storage.nbytes() == 0
                self._resize(block, storage.nbytes())
        for tensor in tensors:
            storage = tensor.untyped_storage()
            known = self._live.get(storage._cdata)
            if known is not None:
                self._resize(known, storage.nbytes())

    def name(self, tensor: Tensor | None, role: str, name: str = "") -> None:
        """Say what a tensor is. The first word counts; a block born in a step stays what it is."""
        if isinstance(tensor, DTensor):
            tensor = tensor._local_tensor
        if tensor is None:
            return
        block = self._live.get(tensor.untyped_storage()._cdata)
        if block is not None and not block.role:
            block.role, block.name = role, name

    def moments(self, device: str) -> Iterator[tuple[int, str, int]]:
        """Bytes in use after each change, with its phase and step."""
        total = 0
        for block, change, phase, step in self._changes:
            if block.device == device:
                total += change
                yield total, phase, step

    def peaks(self, device: str) -> dict[tuple[int, str], int]:
        """The most bytes in each step and phase, in order of time."""
        found: dict[tuple[int, str], int] = {}
        before = 0
        for total, phase, step in self.moments(device):
            key = (step, phase)
            found[key] = max(found.get(key, before), total)
            before = total
        return found

    def peak(self, device: str) -> Moment:
        """The moment with the most bytes in use."""
        highest = Moment()
        at = -1
        total = 0
        for number, (block, change, phase, step) in enumerate(self._changes):
            if block.device == device:
                total += change
                if total > highest.bytes:
                    at, highest = number, Moment(total, phase, step)
        sizes: dict[Block, int] = {}
        for block, change, _, _ in self._changes[: at + 1]:
            if block.device == device:
                sizes[block] = sizes.get(block, 0) + change
        highest.blocks = [(block, size) for block, size in sizes.items() if size]
        return highest
