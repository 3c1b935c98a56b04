"""Random bits: xorwow, seed.

A generator has six words of state, x, y, z, w, v and d of xorwow in Marsaglia's "Xorshift RNGs".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuronxcc.ir.arithmetic import Array
from neuronxcc.program.errors import NeffError
from neuronxcc.program.natives.rows import reach, view
from neuronxcc.program.natives.table import Native, NativeSlot, Params, named

__all__ = ["NATIVES", "WORDS"]

WORDS = 6

# xorwow(rows, size, states, itemsize, out_bytes): `size` numbers for every row, drawn in turns from
# its `states` (1 or 4) generators, of which the lowest `itemsize` bytes are kept. Slots: out, and
# the generators, uint32 (rows, states, 6), which move on.


def _xorwow_slots(params: Params) -> tuple[NativeSlot, ...]:
    names = "rows, size, states, itemsize, out_bytes"
    rows, size, states, itemsize, out = named(names, params, (1, 1, 1, 1, 0))
    if states not in (1, 4) or itemsize not in (1, 2, 4):
        raise NeffError(f"the parameters {list(params)} are no ({names})")
    return (
        reach(rows, out, size * itemsize, written=True),
        NativeSlot(0, rows * states * WORDS * 4, written=True),
    )


def _next(words: Array) -> int:
    """Draw a number from a generator."""
    x, y, z, w, v, d = (int(word) for word in words)
    t = x ^ (x >> 2)
    new = (v ^ (v << 4)) ^ (t ^ (t << 1))
    words[:] = np.array([y, z, w, v, new, d + 362437], np.uint64).astype(np.uint32)
    return (new + d + 362437) & 0xFFFFFFFF


def _xorwow(params: Params, slots: Sequence[Array]) -> None:
    rows, size, states, itemsize, out = params
    generators = view(slots[1], rows * states, 4 * WORDS, WORDS, np.uint32)
    result = view(slots[0], rows, out, size, f"u{itemsize}")
    for row in range(rows):
        for at in range(size):
            number = _next(generators[row * states + at % states])
            result[row, at] = number & ((1 << 8 * itemsize) - 1)


# seed(words): fills words of generators with SplitMix64 of a seed of 32 bits. Slots: uint32
# (words), uint32 (1).

_MASK = (1 << 64) - 1


def _seed_slots(params: Params) -> tuple[NativeSlot, ...]:
    (words,) = named("words", params, (1,))
    return NativeSlot(0, 4 * words, written=True), NativeSlot(0, 4)


def _splitmix64(counter: int) -> int:
    z = (counter * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _seed(params: Params, slots: Sequence[Array]) -> None:
    (words,) = params
    base = int(slots[1][:4].view(np.uint32)[0]) << 32
    made = [_splitmix64(base + at + 1) & 0xFFFFFFFF for at in range(words)]
    slots[0][: 4 * words].view(np.uint32)[:] = made


NATIVES = {"xorwow": Native(_xorwow_slots, _xorwow), "seed": Native(_seed_slots, _seed)}
