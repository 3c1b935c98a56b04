"""The random number generators inside the Vector Engine and GpSimd.

The documentation names the algorithm, XORWOW (before NeuronCore-v4 the Vector Engine has an LFSR),
and the size of the state, six words a lane in GpSimd and four times six in the Vector Engine, but
no bit streams. The streams here are ours and fixed:

- the words of a state are x, y, z, w, v, d of Marsaglia's xorwow ("Xorshift RNGs", 2003);
- element j of a lane is drawn from state j modulo the number of states, from 0 in each instruction;
- before any seeding, and by `set_rng_seed`, states are filled from SplitMix64 of the seed, the lane
  and the position, the default seed being 0;
- every generation uses XORWOW.
"""

from __future__ import annotations

import numpy as np

from nki.isa.cast import Array

__all__ = ["GPSIMD_STATES", "LANES", "VECTOR_STATES", "WORDS", "Xorwow", "uniform"]

LANES = 128
WORDS = 6
GPSIMD_STATES = 1
VECTOR_STATES = 4

_WEYL = np.uint32(362437)
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _splitmix64(counter: int) -> int:
    z = (counter * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class Xorwow:
    """The generator of one engine of one core.

    Attributes:
        state: uint32, shape (128 lanes, states, 6 words).
    """

    def __init__(self, states: int, seed: int = 0) -> None:
        self.state: Array = np.empty((LANES, states, WORDS), np.uint32)
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Fill every state from one 32-bit number."""
        count = self.state.size
        base = (seed & 0xFFFFFFFF) << 32
        words = [_splitmix64(base + position + 1) & 0xFFFFFFFF for position in range(count)]
        self.state[:] = np.array(words, np.uint32).reshape(self.state.shape)

    def load(self, words: Array, first_lane: int = 0) -> None:
        """Replace the states of some lanes by words of shape (lanes, 6 * states)."""
        lanes = words.shape[0]
        states = self.state.shape[1]
        self.state[first_lane : first_lane + lanes] = words.reshape(lanes, states, WORDS)

    def store(self, lanes: int, first_lane: int = 0) -> Array:
        """Return the states of some lanes as uint32 of shape (lanes, 6 * states)."""
        return self.state[first_lane : first_lane + lanes].reshape(lanes, -1).copy()

    def draw(self, lanes: int, count: int, first_lane: int = 0) -> Array:
        """Return uint32 of shape (lanes, count) and advance the states of these lanes."""
        result = np.empty((lanes, count), np.uint32)
        used = slice(first_lane, first_lane + lanes)
        states = self.state.shape[1]
        for start in range(0, count, states):
            active = min(states, count - start)
            block = self.state[used, :active]
            x, y, z, w, v, d = (block[..., word].copy() for word in range(WORDS))
            t = x ^ (x >> np.uint32(2))
            new = (v ^ (v << np.uint32(4))) ^ (t ^ (t << np.uint32(1)))
            d = d + _WEYL
            self.state[used, :active] = np.stack([y, z, w, v, new, d], axis=-1)
            result[:, start : start + active] = d + new
        return result


def uniform(bits: Array) -> Array:
    """Return float32 in [0, 1) from the upper 24 of 32 random bits: every value is exact."""
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
