"""What a compiler of the first generation computes once for a loop: it moves it out of the loop.

That is an instruction which computes in each iteration of an innermost loop the same from the same:
it has the operands of an earlier one, and nothing changes them. A recording has its loops written
out. Of loops that the kernel asks for (`affine_range`, `sequential_range`) it says where they begin
and end, those written out by the kernel (`static_range`) being parts of the bodies of others;
else an earlier instruction is of the same loop that is not far away, as bodies are short.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np

from nki.checks.flow import Ints, Leaf, leaf_roles, starts
from nki.isa.spec import Role
from nki.perf.works import spreads
from nki.recording import Block, Recording, Template, TileForm

__all__ = ["without_invariants"]

_ENGINES = frozenset({"vector", "scalar", "gpsimd"})
_SPREADS = 4  # tiles to which an innermost loop spreads rows, at the most
_SPREAD_DST = 2  # the word of an instruction that spreads a row which says to which tile
_BODY = 24  # instructions of an innermost loop's body, at the most
# Their results depend on more than their operands.
_STATEFUL = frozenset({"rng", "rand2", "dropout", "rand_get_state", "iota", "memset"})


def without_invariants(recording: Recording) -> Recording:
    """Return a recording in which what a loop computes again and again is computed once.

    Kernels with loops on the device are left as they are.
    """
    if recording.body.loops:
        return recording
    templates = recording.templates
    at = starts(recording.body.code, [template.words for template in templates])
    code = np.array(recording.body.code, np.int64)
    numbers = code[at] if len(at) else at
    leaves = [leaf_roles(template) for template in templates]
    writes = _writes(recording, leaves, code, at, numbers)
    kept = np.ones(len(at), bool)
    alias = np.arange(len(recording.storages))
    spread = [number for number, template in enumerate(templates) if spreads(template)]
    gone, stands = _spread_again(code, at, np.isin(numbers, spread), writes)
    if len(gone):
        kept[np.isin(numbers, spread) & np.isin(code[at + _SPREAD_DST], gone)] = False
        alias[gone] = stands
        _rename(leaves, code, at, numbers, alias)
    loops = _loops(recording, at)
    again = True
    while again:
        again = False
        for number, template in enumerate(templates):
            if not _is_pure(template):
                continue
            mine = np.flatnonzero((numbers == number) & kept)
            found = _repeats(template, code, at[mine], mine, writes, loops[mine])
            if len(found):
                again = True
                gone, stands = mine[found[:, 0]], mine[found[:, 1]]
                kept[gone] = False
                word = _dst_word(template)
                alias[code[at[gone] + word]] = code[at[stands] + word]
        if again:
            _rename(leaves, code, at, numbers, alias)
    if kept.all():
        return recording
    sizes = 2 + np.array([template.words for template in templates], np.int64)[numbers]
    words = np.repeat(kept, sizes)
    return replace(recording, body=Block(array("q", code[words].tobytes())))


def _spread_again(code: Ints, at: Ints, mine: np.ndarray, writes: Ints) -> tuple[Ints, Ints]:
    """Return tiles to which a row is spread again, and those to which it was before.

    A row is spread by several instructions, each to some partitions of one tile.

    Args:
        code: of the program.
        at: where its instructions begin.
        mine: those that spread rows.
        writes: by storage how many instructions write it.
    """
    parts: dict[int, list[tuple[int, ...]]] = {}
    for begin in at[mine].tolist():
        template, _, tile, byte, source, place = code[begin : begin + 6].tolist()
        parts.setdefault(tile, []).append((template, byte, source, place))
    last: dict[tuple[tuple[int, ...], ...], tuple[int, int]] = {}
    gone, stands = [], []
    for number, (tile, found) in enumerate(parts.items()):
        whole = writes[tile] == len(found) and all(writes[source] <= 1 for *_, source, _ in found)
        key = tuple(sorted(found))
        before, first = last.get(key, (-_SPREADS - 1, tile))
        if whole and number - before <= _SPREADS:
            gone.append(tile)
            stands.append(first)
        else:
            first = tile
        last[key] = number, first
    return np.array(gone, np.int64), np.array(stands, np.int64)


def _is_pure(template: Template) -> bool:
    """Return whether an instruction computes a whole tile from others and does nothing else."""
    if template.engine not in _ENGINES or template.hidden or template.row.name in _STATEFUL:
        return False
    if template.attributes.get("reduce_cmd", "idle") != "idle":
        return False
    written = [leaf for leaf in leaf_roles(template) if leaf.writes]
    if len(written) != 1 or written[0].role is not Role.WRITE:
        return False
    to = written[0].form
    forms = [leaf.form for leaf in leaf_roles(template)]
    if not all(isinstance(form, TileForm) and form.indirect is None for form in forms):
        return False
    assert isinstance(to, TileForm)
    tile = template.call.tile(written[0].name)
    return to.region.on_chip and not to.addressed and tile.size * tile.info.itemsize == to.limit


def _dst_word(template: Template) -> int:
    (place,) = (i for i, leaf in enumerate(leaf_roles(template)) if leaf.writes)
    return 2 + 2 * place


def _writes(
    recording: Recording, leaves: list[tuple[Leaf, ...]], code: Ints, at: Ints, numbers: Ints
) -> Ints:
    """Return by storage how many instructions write it."""
    found = np.zeros(max(1, len(recording.storages)), np.int64)
    for number, roles in enumerate(leaves):
        mine = at[numbers == number]
        for i, leaf in enumerate(roles):
            if leaf.writes and isinstance(leaf.form, TileForm):
                np.add.at(found, code[mine + 2 + 2 * i], 1)
    return found


def _loops(recording: Recording, at: Ints) -> Ints:
    """Return by instruction the number of the innermost loop that it is in, -1 for others."""
    found = np.full(len(at), -1)
    for number, (begin, end) in enumerate(recording.innermost):
        first, last = np.searchsorted(at, [begin, end])
        found[first:last] = number
    return found


def _repeats(
    template: Template, code: Ints, begins: Ints, time: Ints, writes: Ints, loops: Ints
) -> Ints:
    """Return pairs: an instruction, and an earlier one that computes the same.

    Args:
        template: of the instructions.
        code: of the program.
        begins: where they begin.
        time: their numbers in the program.
        writes: by storage how many instructions write it.
        loops: the innermost loops that they are in, -1 for others.
    """
    reads = np.array(
        [2 * i for i, leaf in enumerate(leaf_roles(template)) if not leaf.writes], np.int64
    )
    if len(begins) < 2 or not len(reads):
        return np.zeros((0, 2), np.int64)
    storages = code[begins[:, None] + 2 + reads]
    places = np.concatenate([storages, code[begins[:, None] + 3 + reads]], 1)
    fixed = (writes[storages] <= 1).all(1) & (writes[code[begins + _dst_word(template)]] == 1)
    order = np.lexsort((time, *places.T))
    same = np.zeros(len(order), bool)
    same[1:] = (places[order][1:] == places[order][:-1]).all(1)
    ordered = loops[order]
    together = (ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0)
    near = np.diff(time[order]) <= _BODY
    same[1:] &= fixed[order][1:] & fixed[order][:-1] & (together | near)
    first = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
    return np.stack([order[same], order[first[same]]], 1)


def _rename(
    leaves: list[tuple[Leaf, ...]], code: Ints, at: Ints, numbers: Ints, alias: Ints
) -> None:
    for number, roles in enumerate(leaves):
        mine = at[numbers == number]
        for i, leaf in enumerate(roles):
            if isinstance(leaf.form, TileForm):
                code[mine + 2 + 2 * i] = alias[code[mine + 2 + 2 * i]]
