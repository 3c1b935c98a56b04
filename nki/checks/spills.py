"""The spills of a compiler that places tensors itself: kernels of the first generation.

Such a compiler reorders and fuses loops before it places tiles, so what is counted here, in the
order of the kernel, is the most that it may need. Where more is in use than there is, the tensor
that is used longest from then on goes to HBM, as in a linear scan of lifetimes.
"""

from __future__ import annotations

import ast
import functools
import heapq
import linecache
from typing import NamedTuple

import numpy as np

from nki.checks.flow import Ints, Times
from nki.memory import Storage
from nki.recording import Recording

__all__ = ["Spill", "choose_spills", "spills_of", "variable_at"]


class Spill(NamedTuple):
    """Tiles that would be spilled: those of one name, line, type and shape.

    Attributes:
        name: of the tensor or the variable that the first use assigns to; "" if neither is known.
        memory: "sbuf" or "psum".
        dtype: of an element.
        shape: of a tile.
        tiles: how many there are.
        nbytes: of all of them together.
        where: file and line of the first use.
    """

    name: str
    memory: str
    dtype: str
    shape: tuple[int, ...]
    tiles: int
    nbytes: int
    where: tuple[str, int]

    def __str__(self) -> str:
        name = f"{self.name!r} " if self.name else ""
        many = "" if self.tiles == 1 else f"{self.tiles} tiles of "
        file, line = self.where
        return (
            f"{name}{many}{self.dtype}{list(self.shape)}, {self.nbytes} bytes, first used at "
            f"{file}:{line}"
        )


def choose_spills(
    first: Ints, last: Ints, sizes: Ints, fixed: Ints, capacity: int
) -> list[int] | None:
    """Return which tensors are spilled so that the others fit, None if all would not be enough.

    Args:
        first: number of the first instruction of each tensor.
        last: of its last one.
        sizes: what each takes.
        fixed: what cannot be spilled takes, at each instruction.
        capacity: what there is.
    """
    if int(fixed.max()) > capacity:
        return None
    rises = np.flatnonzero(np.diff(fixed, prepend=0) > 0)
    begins = np.argsort(first, kind="stable").tolist()
    ends: list[tuple[int, int]] = []  # of those in use, the next one to end first
    longest: list[tuple[int, int, int]] = []  # likewise, the last one to end first
    alive = np.zeros(len(first), bool)
    used, at, spilled = 0, 0, []
    for time in np.union1d(first, rises).tolist():
        while ends and ends[0][0] < time:
            number = heapq.heappop(ends)[1]
            used -= int(sizes[number]) * int(alive[number])
            alive[number] = False
        while at < len(begins) and int(first[begins[at]]) <= time:
            number = begins[at]
            at += 1
            if int(sizes[number]) > capacity:
                spilled.append(number)
                continue
            alive[number] = True
            used += int(sizes[number])
            heapq.heappush(ends, (int(last[number]), number))
            heapq.heappush(longest, (-int(last[number]), -int(sizes[number]), number))
        while used + int(fixed[time]) > capacity:
            number = heapq.heappop(longest)[2]
            if alive[number]:
                alive[number] = False
                used -= int(sizes[number])
                spilled.append(number)
    return spilled


def spills_of(recording: Recording, times: Times, numbers: list[int]) -> tuple[Spill, ...]:
    """Return spilled storages, equal ones together, the largest first."""
    groups: dict[tuple[str, str, str, tuple[int, ...], tuple[str, int]], list[Storage]] = {}
    for number in numbers:
        storage = recording.storages[number]
        where = recording.locations[int(times.location[times.used[number]])]
        name = storage.name or variable_at(*where)
        key = (name, storage.region.name, storage.dtype, storage.shape, where)
        groups.setdefault(key, []).append(storage)
    made = [
        Spill(*key[:4], len(found), sum(storage.nbytes for storage in found), key[4])
        for key, found in groups.items()
    ]
    return tuple(sorted(made, key=lambda spill: -spill.nbytes))


def variable_at(file: str, line: int) -> str:
    """Return the variable that the statement on a line of a file assigns to, "" if none."""
    found = [(end - begin, name) for begin, end, name in _assignments(file) if begin <= line <= end]
    return min(found, default=(0, ""))[1]


@functools.lru_cache(maxsize=32)
def _assignments(file: str) -> list[tuple[int, int, str]]:
    """Return the first line, the last line and the variable of every assignment of a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    found: list[tuple[ast.stmt, ast.expr]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            found.append((node, node.targets[0]))
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
            found.append((node, node.target))
    return [(node.lineno, node.end_lineno or node.lineno, _name(of)) for node, of in found]


def _name(target: ast.expr) -> str:
    while isinstance(target, ast.Subscript):
        target = target.value
    return ast.unparse(target) if isinstance(target, (ast.Name, ast.Attribute)) else ""
