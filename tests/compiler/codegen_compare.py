"""Comparing compiled kernels with the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neuronxcc.codegen.llvm import CompiledModule, Host, compile_kernels
from neuronxcc.codegen.loop import Kernel
from neuronxcc.codegen.objects import ObjectCache
from neuronxcc.ir import DType
from neuronxcc.ir.dtypes import from_numpy

Array = np.ndarray[Any, np.dtype[Any]]

HOSTS = sorted(
    {h for h in (Host.detect(), Host.avx2(), Host.portable()) if h.runs_here()},
    key=lambda h: h.lanes,
)


def host_id(host: Host) -> str:
    return f"{host.lanes}lanes"


def compiled(kernels: Sequence[Kernel], host: Host) -> CompiledModule:
    """Compiles without the user's cache."""
    return compile_kernels(kernels, host, ObjectCache(None))


def ordered(x: Array) -> Array:
    """Floats as integers that count representable values: -0.0 and 0.0 are neighbours."""
    width = x.dtype.itemsize
    bits = x.view(f"i{width}").astype(np.int64)
    least = np.int64(-(1 << (8 * width - 1)))
    return np.where(bits < 0, least - bits - 1, bits)


def ulps(got: Array, expected: Array) -> Array:
    """Distance in units of the last place; 0 where both are NaN, huge where one is."""
    if np.iscomplexobj(got):
        part = got.real.dtype
        return np.maximum(
            ulps(np.ascontiguousarray(got.real, part), np.ascontiguousarray(expected.real, part)),
            ulps(np.ascontiguousarray(got.imag, part), np.ascontiguousarray(expected.imag, part)),
        )
    if not from_numpy(got.dtype).is_float:
        return np.where(got == expected, 0, 1 << 60)
    if from_numpy(got.dtype) is DType.F8E8M0:
        return np.where(got.view(np.uint8) == expected.view(np.uint8), 0, 1 << 60)
    nan_got, nan_expected = np.isnan(got.astype(float)), np.isnan(expected.astype(float))
    distance = np.abs(ordered(got) - ordered(expected)).astype(float)
    return np.where(nan_got & nan_expected, 0, np.where(nan_got != nan_expected, 1e18, distance))


def check(got: Array, expected: Array, limit: float, what: str) -> None:
    """Fails with the worst element if the arrays differ by more than `limit` ulp."""
    assert got.dtype == expected.dtype
    if not got.size:
        return
    distance = ulps(got, expected)
    worst = int(np.argmax(distance))
    assert distance[worst] <= limit, (
        f"{what}: element {worst} is {got[worst]!r}, should be {expected[worst]!r}"
        f" ({distance[worst]:g} ulp, allowed {limit:g})"
    )
