"""The chances of stochastic rounding: which state a run of a compiled program gets.

A state is made of the seed of the process and the number of the call, over all programs with
stochastic rounding, so equal programs called in equal order give equal results.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from neuronxcc.environment.compilation import NEURON_RT_STOCHASTIC_ROUNDING_SEED

_calls = itertools.count()
_WORDS = (1 << 64) - 1


def state(seed: int, call: int) -> torch.Tensor:
    """The state of a run: torch.uint32[2] on the CPU, another one for every pair of numbers.

    Args:
        seed: 0 to 2**64 - 1.
        call: Number of the call, from 0.
    """
    # Both numbers are hashed one after the other, so that seed 1 is not seed 0 one call later.
    word = _hash((_hash(seed) + call) & _WORDS)
    return torch.tensor([word & 0xFFFFFFFF, word >> 32], dtype=torch.uint32)


def state_source() -> Callable[[], torch.Tensor]:
    """Return what gives the states of the process's calls, one per call, with the seed of now.

    Raises:
        VariableError: The seed in the environment is not valid.
    """
    given = NEURON_RT_STOCHASTIC_ROUNDING_SEED.get()
    return lambda: state(given, next(_calls))


def _hash(word: int) -> int:
    """SplitMix64's step: one-to-one on 64 bits."""
    word = (word + 0x9E3779B97F4A7C15) & _WORDS
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORDS
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORDS
    return word ^ (word >> 31)
