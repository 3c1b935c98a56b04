"""Stochastic rounding in NumPy and float64, slow and obvious: what `stochastic` is held to."""

from __future__ import annotations

import numpy as np

from neuronxcc.ir.dtypes import DType
from neuronxcc.passes.stochastic import DROPPED

_LEAST = {DType.BF16: -126, DType.F16: -14}  # exponent of the least normal number
_MANTISSA = {DType.BF16: 7, DType.F16: 10}  # bits
_OVERFLOW = {DType.BF16: 2.0**128, DType.F16: 2.0**16}


def neighbours(x: np.ndarray, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of a type around finite numbers, toward zero and away from it.

    Args:
        x: float32.
        dtype: BF16 or F16, thought of with exponents without an upper bound.

    Returns:
        Two float64 arrays of magnitudes, one step of the type apart; where x is of the type, the
        first is its magnitude.
    """
    magnitude = np.abs(x.astype(np.float64))
    exponent = np.frexp(magnitude)[1] - 1
    step = np.ldexp(1.0, np.maximum(exponent, _LEAST[dtype]) - _MANTISSA[dtype])
    near = np.floor(magnitude / step) * step
    return near, near + step


def round_stochastically(x: np.ndarray, words: np.ndarray, dtype: DType) -> np.ndarray:
    """Round float32 numbers by chance.

    Args:
        x: float32.
        words: uint32 of the same shape, the chances.
        dtype: BF16 or F16.

    Returns:
        An array of the type `dtype` in NumPy.
    """
    number = np.where(np.isfinite(x), x, np.copysign(np.float32(0), x))
    near, far = neighbours(number, dtype)
    fraction = (np.abs(number.astype(np.float64)) - near) / (far - near)
    small = (dtype is DType.F16) & (np.abs(number) < 2.0 ** _LEAST[dtype])
    bits = np.where(small, 24, DROPPED[dtype]).astype(np.int64)
    chance = np.ldexp((words.astype(np.int64) >> (32 - bits)).astype(np.float64), -bits)
    magnitude = np.where(fraction + chance >= 1, far, near)
    magnitude = np.where(magnitude >= _OVERFLOW[dtype], np.inf, magnitude)
    finite = np.copysign(magnitude, number).astype(np.float32)
    with np.errstate(all="ignore"):  # infinities and signalling NaNs are no news
        return np.where(np.isfinite(x), finite, x).astype(dtype.numpy)


def hashed(words: np.ndarray) -> np.ndarray:
    """The hash of uint32 words, in Python's integers."""
    return np.array([_hash(int(word)) for word in words.ravel()], np.uint32).reshape(words.shape)


def chances(state: tuple[int, int], site: int, count: int) -> np.ndarray:
    """The words of the elements 0 to `count` - 1 at a rounding."""
    first = _hash(state[0] ^ (site * 0x9E3779B1) % 2**32)
    second = _hash(state[1] ^ (site * 0x85EBCA77) % 2**32 ^ first)
    return np.array([_hash(index % 2**32 ^ first, second) for index in range(count)], np.uint32)


def _hash(word: int, key: int = 0) -> int:
    word ^= word >> 16
    word = (word * 0x21F0AAAD + key) % 2**32
    word ^= word >> 15
    word = word * 0x735A2D97 % 2**32
    return word ^ word >> 15
