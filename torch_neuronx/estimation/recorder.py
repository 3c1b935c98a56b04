"""What a program does, operator by operator, as data: the tape.

Tensors become numbers. Two tensors that look at the same memory in the same way are one number, so
nothing has to be kept alive, and a program that changes memory in place reads its new value.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch._C._autograd import _get_sequence_nr
from torch.utils._pytree import tree_leaves, tree_map

from torch_neuronx.distributed.planning import collectives
from torch_neuronx.distributed.planning.collectives import Collective
from torch_neuronx.distributed.planning.memory import Block
from torch_neuronx.distributed.planning.progress import Progress
from torch_neuronx.nki.launches import OPERATOR, launch_of

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Call", "Form", "Place", "Recorder", "Ref", "Region", "Tape"]


@dataclass(frozen=True, slots=True)
class Ref:
    """In the arguments of a call: the tensor of that number stands here."""

    number: int


class Form(NamedTuple):
    """All that is known of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        size = self.dtype.itemsize
        for extent in self.shape:
            size *= extent
        return size


class Place(NamedTuple):
    """Where an operator was asked for.

    Attributes:
        layer: the module, "" outside of any; "optimizer" in its step.
        operator: as PyTorch names it, "aten.mm"; "nki." and the name of a kernel.
        file: of the user's line, "" if no Python code asked.
        line: its number.
    """

    layer: str
    operator: str
    file: str
    line: int


class Region(NamedTuple):
    """A part of a program that is one graph if it is compiled.

    Attributes:
        step: number of the optimizer's step, from 0; -1 before the first forward.
        phase: "setup", "forward", "backward" or "optimizer".
        forward: how many forwards have begun that are in no other module's.
    """

    step: int
    phase: str
    forward: int


@dataclass(slots=True)
class Call:
    """One operator.

    Attributes:
        func: it.
        args: with `Ref` for tensors.
        kwargs: likewise.
        given: numbers of the tensors among them.
        results: of each leaf of what it gave, the tensor's number; None for what is no tensor.
        written: numbers of the tensors that it is given and changes.
        place: where it was asked for.
        region: in what.
        collective: the collective that it was, None for others.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: tuple[int, ...]
    results: tuple[int | None, ...]
    written: tuple[int, ...]
    place: Place
    region: Region
    collective: Collective | None = None


@dataclass(slots=True)
class Tape:
    """What a program did.

    Attributes:
        calls: in order.
        forms: of the tensors, by number.
        blocks: the memory that each of them lies in.
        tokens: by number of a forward, what `Progress.tokens` was.
    """

    calls: list[Call] = field(default_factory=list)
    forms: list[Form] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    tokens: dict[int, int] = field(default_factory=dict)


# They say that work goes on, and are none.
_NO_WORK = frozenset(
    {
        torch.ops.aten.detach.default,
        torch.ops.aten._assert_tensor_metadata.default,
        torch.ops.aten.is_same_size.default,
        torch.ops.prim.device.default,
    }
)


class Recorder:
    """A watcher of the planning mode."""

    def __init__(self, progress: Progress) -> None:
        self.tape = Tape()
        self._progress = progress
        self._numbers: dict[Any, int] = {}
        self._forward: dict[int, Place] = {}  # by autograd's number

    def __call__(
        self,
        func: Any,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        result: object,
        collective: Collective | None,
    ) -> None:
        """Note an operator."""
        progress, memory = self._progress, self._progress.memory
        region = Region(memory.step, memory.phase, progress.forwards)
        self.tape.tokens.setdefault(progress.forwards, progress.tokens)
        given: list[int] = []

        def noted(leaf: object) -> object:
            if not isinstance(leaf, Tensor):
                return leaf
            given.append(self._number(leaf))
            return Ref(given[-1])

        args, kwargs = tree_map(noted, (tuple(args), dict(kwargs)))
        leaves = tree_leaves(result) if result is not None else []
        results = tuple(self._number(x) if isinstance(x, Tensor) else None for x in leaves)
        if all(number is None for number in results) and not given:
            results = ()  # of what is asked, not computed
        if collective is not None:
            # What operators of c10d write is among their arguments.
            spec = collectives.SPECS[func]
            written = dict(zip((a.name for a in func._schema.arguments), args, strict=False))
            refs = tree_leaves((written | dict(kwargs)).get(spec.writes))
            results = (*results, *(x.number for x in refs if isinstance(x, Ref)))
        if func in _NO_WORK or not (given or results or collective):
            return
        place = self._place(_name(func, args))
        changed = _written(func, args, kwargs)
        call = Call(func, tuple(args), dict(kwargs), tuple(given), results, changed, place, region)
        call.collective = collective
        self.tape.calls.append(call)

    def _number(self, tensor: Tensor) -> int:
        block = self._progress.memory.block_of(tensor)
        shape = tuple(map(int, tensor.shape))
        form = Form(shape, tuple(map(int, tensor.stride())), tensor.dtype, tensor.device.type)
        key = (block, int(tensor.storage_offset()), form)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.tape.forms)
            self.tape.forms.append(form)
            self.tape.blocks.append(block)
        return found

    def _place(self, operator: str) -> Place:
        """Where an operator is from; in backward, whose gradient it computes."""
        progress = self._progress
        if progress.in_backward:
            found = self._forward.get(torch._C._current_autograd_node()._sequence_nr())
            if found is not None:
                return found._replace(operator=operator)
        file, line = _users_line(sys._getframe(2))
        layer = "optimizer" if progress.memory.phase == "optimizer" else progress.module
        place = Place(layer, operator, file, line)
        if not progress.in_backward:
            self._forward.setdefault(_get_sequence_nr() - 1, place)
        return place


def _written(func: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[int, ...]:
    """The tensors that an operator changes, as its schema has them."""
    schema = func._schema
    if not schema.is_mutable:
        return ()
    given = dict(zip((one.name for one in schema.arguments), args, strict=False)) | dict(kwargs)
    changed = [one.name for one in schema.arguments if one.alias_info and one.alias_info.is_write]
    leaves = tree_leaves([given.get(name) for name in changed])
    return tuple(dict.fromkeys(leaf.number for leaf in leaves if isinstance(leaf, Ref)))


def _name(func: Any, args: Sequence[object]) -> str:
    """What an operator is called: as PyTorch does, and a kernel of NKI by its own name."""
    if func._schema.name == OPERATOR:
        return f"nki.{launch_of(str(args[-1])).name}"
    return str(func).removesuffix(".default")


def _users_line(frame: FrameType | None) -> tuple[str, int]:
    """The innermost line outside of PyTorch, of this project, and of Python's own library."""
    while frame is not None:
        if not _is_ours(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0


@cache
def _is_ours(file: str) -> bool:
    import sysconfig  # noqa: PLC0415 - reads its data for milliseconds

    library = tuple(f"{sysconfig.get_path(kind)}/" for kind in ("stdlib", "platstdlib"))
    if "/site-packages/" in file or "/dist-packages/" in file:
        return "-packages/torch/" in file
    if file.startswith(_MODELS):
        return False
    return file.startswith(("<", *library, *_OURS))


_OURS = tuple(
    f"{Path(__file__).parents[2] / name}/" for name in ("torch_neuronx", "neuronxcc", "nki")
)
_MODELS = str(Path(__file__).parent / "calibration") + "/"  # written as users write theirs
