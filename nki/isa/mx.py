"""Microscaling formats: packing four elements, block scales, and where the scales lie.

A group of 32 values is 8 partitions by 4 elements that are adjacent in a partition; one item of a
packed ``_x4`` type holds those four, the first in the lowest bits. A scale is the power of two
``2**(byte - 127)`` of ``float8_e8m0fnu``; byte 255 is NaN. The scales of one quadrant of 32
partitions lie in four adjacent partitions of that quadrant.
"""

from __future__ import annotations

import enum

import numpy as np

from nki.dtypes import info
from nki.isa.cast import Array
from nki.versions import since

__all__ = [
    "GROUP_PARTITIONS",
    "LARGEST",
    "ScaleRule",
    "block_scales",
    "dequantise",
    "pack",
    "quantise",
    "rule_in_use",
    "scale_rows",
    "unpack",
]

GROUP_PARTITIONS = 8
QUADRANT = 32
ELEMENTS = 4

# The largest exponent and the largest finite value of each element type.
LARGEST = {
    "float8_e5m2_x4": (15, 57344.0),
    "float8_e4m3fn_x4": (8, 448.0),
    "float4_e2m1fn_x4": (2, 6.0),
}
_BIAS = 127
_NAN = 255


class ScaleRule(enum.Enum):
    """How `quantize_mx` chooses the scale of a group whose largest magnitude is ``amax``.

    The two differ by a factor of 2. ``DOUBLED`` is NKI 0.5 and later: ``2**(floor(log2(amax)) -
    (emax - 1))`` rounds the largest values without clipping them. ``OCP`` is NKI before 0.5 and the
    sample algorithm of the OCP specification, ``2**(floor(log2(amax)) - emax)``, which clips.
    """

    DOUBLED = "nki-0.5"
    OCP = "ocp"


def rule_in_use() -> ScaleRule:
    """Return the rule of the version of NKI that the environment selects."""
    return ScaleRule.DOUBLED if since("quantize_mx scale") else ScaleRule.OCP


def pack(elements: Array, dtype: str) -> Array:
    """Pack elements of shape (..., 4n), of the lane type, into items of shape (..., n)."""
    kind = info(dtype)
    if kind.itemsize == ELEMENTS:
        return np.ascontiguousarray(elements).view(kind.numpy)
    nibbles = np.ascontiguousarray(elements).view(np.uint8).astype(np.uint16) & 0xF
    four = nibbles.reshape(*elements.shape[:-1], -1, ELEMENTS)
    packed = np.zeros(four.shape[:-1], np.uint16)
    for place in range(ELEMENTS):
        packed |= four[..., place] << np.uint16(4 * place)
    return packed


def unpack(items: Array, dtype: str) -> Array:
    """Return the elements of packed items of shape (..., n) as float32 of shape (..., 4n)."""
    kind = info(dtype)
    if kind.itemsize == ELEMENTS:
        return np.ascontiguousarray(items).view(kind.lane).astype(np.float32)
    places = np.arange(0, 4 * ELEMENTS, 4, dtype=np.uint16)
    nibbles = (items[..., None] >> places) & np.uint16(0xF)
    codes = nibbles.reshape(*items.shape[:-1], -1).astype(np.uint8)
    return codes.view(kind.lane).astype(np.float32)


def scale_rows(partitions: int) -> Array:
    """Return the partition of the scale tensor of each group of 8 data partitions."""
    groups = np.arange(partitions // GROUP_PARTITIONS)
    per_quadrant = QUADRANT // GROUP_PARTITIONS
    return QUADRANT * (groups // per_quadrant) + groups % per_quadrant


def block_scales(source: Array, dtype: str, rule: ScaleRule) -> Array:
    """Return the scale bytes, uint8 of shape (P / 8, F / 4), of float32 values of shape (P, F).

    A group of zeros gets byte 0, which is 2**-127; one with a NaN or an infinity gets NaN, which
    is our choice: the documentation does not say.
    """
    partitions, free = source.shape
    grouped = source.reshape(partitions // GROUP_PARTITIONS, GROUP_PARTITIONS, -1, ELEMENTS)
    assert grouped.shape[2] == free // ELEMENTS
    amax = np.abs(grouped).max(axis=(1, 3)).astype(np.float64)
    _, exponent = np.frexp(np.where(np.isfinite(amax), amax, 1.0))  # amax < 2**exponent
    offset = LARGEST[dtype][0] - (rule is ScaleRule.DOUBLED)
    byte = np.clip(exponent - 1 - offset + _BIAS, 0, _NAN - 1)
    byte = np.where(amax == 0, 0, byte)
    return np.where(np.isfinite(amax), byte, _NAN).astype(np.uint8)


def _factors(scales: Array) -> Array:
    factor = np.ldexp(1.0, scales.astype(np.int32) - _BIAS)
    factor = np.where(scales == _NAN, np.nan, factor)
    rows = np.repeat(factor, GROUP_PARTITIONS, axis=0)
    return np.repeat(rows, ELEMENTS, axis=1)


def quantise(source: Array, scales: Array, dtype: str) -> Array:
    """Divide float32 values of shape (P, F) by their scales and pack them: shape (P, F / 4).

    The cast is to nearest, ties to even, and saturates.
    """
    largest = LARGEST[dtype][1]
    scaled = source.astype(np.float64) / _factors(scales)
    # Two steps of rounding would be wrong, and float64 has no direct cast to every lane type; the
    # division by a power of two is exact in float32 wherever the result is not tiny.
    clipped = np.clip(scaled, -largest, largest).astype(np.float32)
    return pack(clipped.astype(info(dtype).lane), dtype)


def dequantise(items: Array, scales: Array, dtype: str) -> Array:
    """Return the float64 values, shape (P, 4n), of packed items and of scale bytes (P / 8, n)."""
    return unpack(items, dtype).astype(np.float64) * _factors(scales)
