"""Who touches what, of a whole recording at once: arrays instead of a million objects."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nki.isa.spec import Role
from nki.recording import (
    Block,
    Event,
    Form,
    Loop,
    Place,
    Recording,
    RegisterForm,
    Template,
    TileForm,
    leaves,
)

__all__ = [
    "Ints",
    "Leaf",
    "TensorAccess",
    "Times",
    "accesses",
    "events_of",
    "leaf_roles",
    "listed",
    "starts",
    "written",
]

Ints = npt.NDArray[np.int64]


class Leaf(NamedTuple):
    """An operand, or the index of one, as far as it has a place.

    Attributes:
        name: of the operand.
        form: what has the place.
        reads: its elements are read.
        writes: they are written.
        role: what the table says of the operand.
    """

    name: str
    form: TileForm | RegisterForm
    reads: bool
    writes: bool
    role: Role


class TensorAccess(NamedTuple):
    """One tensor operand of one event."""

    leaf: Leaf
    form: TileForm
    place: Place
    location: int


def listed(form: Form) -> Sequence[Form]:
    """Return the forms of a list of tensors, or the one form that it is."""
    # Forms of single tensors and registers are named tuples.
    if isinstance(form, tuple) and not isinstance(form, (TileForm, RegisterForm)):
        return form
    return (form,)


def leaf_roles(template: Template) -> tuple[Leaf, ...]:
    """Return what the instruction does with each leaf, in the order of the places."""
    roles = {operand.name: operand.role for operand in template.row.operands}
    found: list[Leaf] = []
    for name, form in template.operands:
        role = roles[name]
        # An operand that may keep elements is not read by that; one that is added to is.
        added = role is Role.READWRITE and template.accumulate is True
        reads, writes = role is Role.READ or added, role is not Role.READ
        # Of a tensor and its index the index is only read.
        for operand in listed(form):
            for i, leaf in enumerate(leaves(operand)):
                found.append(Leaf(name, leaf, reads or i > 0, writes and i == 0, role))
    return tuple(found)


def starts(code: array[int], words: Sequence[int]) -> Ints:
    """Return where in a block's code each event and each loop begins.

    Args:
        code: of the block.
        words: integers that the places of each template take.
    """
    found = array("q")
    at, end = 0, len(code)
    while at < end:
        found.append(at)
        number = code[at]
        at += 2 if number < 0 else 2 + words[number]
    return np.frombuffer(found, np.int64) if found else np.zeros(0, np.int64)


def written(recording: Recording) -> set[int]:
    """Return the numbers of the storages that some instruction writes."""
    templates = recording.templates
    words = [template.words for template in templates]
    leaves_of = [
        [
            2 + 2 * i
            for i, leaf in enumerate(leaf_roles(template))
            if leaf.writes and isinstance(leaf.form, TileForm)
        ]
        for template in templates
    ]
    found: set[int] = set()
    blocks = [recording.body]
    while blocks:
        block = blocks.pop()
        blocks += [loop.body for loop in block.loops]
        at = starts(block.code, words)
        if not len(at):
            continue
        code = np.frombuffer(block.code, np.int64)
        numbers = code[at]
        for number in np.unique(numbers[numbers >= 0]).tolist():
            events = at[numbers == number]
            for word in leaves_of[number]:
                found.update(np.unique(code[events + word]).tolist())
    return found


class Times:
    """When each storage of a recording is first and last used; instructions are numbered.

    In a loop, what was created outside of it is in use from its beginning to its end.

    Attributes:
        first: number of the instruction by storage, -1 of what no instruction uses.
        last: likewise.
        used: like `first`, but within loops.
        location: the user's line of each instruction.
    """

    def __init__(self, recording: Recording, depth: Callable[[int], int]) -> None:
        """Look at a recording.

        Args:
            recording: what to look at.
            depth: tells of a storage in how many nested loops it was created.
        """
        count = len(recording.storages)
        self._templates = recording.templates
        self._words = [template.words for template in recording.templates]
        self._tensors = [
            np.array(
                [i for i, leaf in enumerate(leaf_roles(t)) if isinstance(leaf.form, TileForm)],
                np.int64,
            )
            for t in recording.templates
        ]
        self._locations: list[Ints] = []
        self._time = 0
        self._depths = np.array([depth(i) for i in range(count)], np.int64)
        self.first = np.full(count, np.iinfo(np.int64).max)
        self.used = self.first.copy()
        self.last = np.full(count, -1, np.int64)
        self._block(recording.body, 0)
        self.first[self.last < 0] = -1
        self.location = np.concatenate([np.zeros(0, np.int64), *self._locations])

    def _block(self, block: Block, depth: int) -> Ints:
        """Return the storages that a block uses."""
        at = starts(block.code, self._words)
        code = np.frombuffer(block.code, np.int64) if len(at) else np.zeros(0, np.int64)
        numbers = code[at]
        found: list[Ints] = []
        begin = 0
        for i in (*np.flatnonzero(numbers < 0).tolist(), len(at)):
            found.append(self._events(code, at[begin:i]))
            begin = i + 1
            if i < len(at):
                found.append(self._loop(block.loops[code[at[i] + 1]], depth))
        return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    def _loop(self, loop: Loop, depth: int) -> Ints:
        begin = self._tick(np.array([loop.location], np.int64))
        used = self._block(loop.body, depth + 1)
        end = self._tick(np.array([loop.location], np.int64))
        outer = used[self._depths[used] <= depth]
        self.first[outer] = np.minimum(self.first[outer], begin)
        self.last[outer] = np.maximum(self.last[outer], end)
        return used

    def _tick(self, locations: Ints) -> int:
        self._locations.append(locations)
        self._time += len(locations)
        return self._time - len(locations)

    def _events(self, code: Ints, at: Ints) -> Ints:
        begin = self._tick(code[at + 1])
        numbers = code[at]
        order = np.argsort(numbers, kind="stable")
        cuts = np.flatnonzero(np.diff(numbers[order])) + 1
        found: list[Ints] = []
        for chosen in np.split(order, cuts) if len(order) else ():
            template = int(numbers[chosen[0]])
            if self._templates[template].hidden or not len(self._tensors[template]):
                continue
            words = at[chosen][:, None] + 2 + 2 * self._tensors[template]
            storages, times = code[words], np.broadcast_to(begin + chosen[:, None], words.shape)
            np.minimum.at(self.first, storages, times)
            np.minimum.at(self.used, storages, times)
            np.maximum.at(self.last, storages, times)
            found.append(np.unique(storages))
        return np.concatenate(found) if found else np.zeros(0, np.int64)


def accesses(event: Event, roles: Sequence[Leaf]) -> Iterator[TensorAccess]:
    """Iterate over the tensors that an event reads or writes."""
    for leaf, place in zip(roles, event.places, strict=True):
        if isinstance(leaf.form, TileForm):
            yield TensorAccess(leaf, leaf.form, place, event.location)


def events_of(
    block: Block, templates: list[Template], chosen: Sequence[bool], repeats: int = 2
) -> Iterator[Event]:
    """Iterate over the events of some templates, those in loops several times."""
    words = [template.words for template in templates]
    at = starts(block.code, words)
    if not len(at):
        return
    code = np.frombuffer(block.code, np.int64)
    # A loop has the number -1, and is always wanted.
    wanted: Any = np.array([*chosen, True], np.bool_)[code[at]]
    for start in at[wanted].tolist():
        number = int(code[start])
        if number < 0:
            loop = block.loops[code[start + 1]]
            for _ in range(repeats):
                yield from events_of(loop.body, templates, chosen, repeats)
            continue
        places = block.code[start + 2 : start + 2 + words[number]]
        pairs = tuple(zip(places[::2], places[1::2], strict=True))
        yield Event(templates[number], block.code[start + 1], pairs)
