"""Lowered kernels do what their recordings mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.lowering import lower
from tests.nki.lowering_scenarios import SCENARIOS, agree, recorder
from tests.nki.lowering_tools import items, lowered, record


@pytest.mark.parametrize("name", SCENARIOS)
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_kernel(name: str, data: Any) -> None:
    SCENARIOS[name](data.draw, lowered)


def test_values_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        t = nl.ndarray((2, 3), nl.int32)
        nisa.dma_copy(dst=t, src=a)
        recorder().device_print("values", t[:, ::2])
        return a

    lowered(
        record(kernel, np.arange(6, dtype=np.int32).reshape(2, 3)),
        [np.arange(6, dtype=np.int32).reshape(2, 3)],
    )
    assert capsys.readouterr().out == "values [[0 2]\n [3 5]]\n"


def test_a_kernel_of_tiles_is_one_lane_group() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        for i in range(4):
            t, total = nl.ndarray((128, 64), a.dtype), nl.ndarray((128, 1), nl.float32)
            nisa.dma_copy(dst=t, src=a[i * 128 : (i + 1) * 128])
            nisa.activation_reduce(dst=t, op="exp", data=t, reduce_op="add", reduce_res=total)
            nisa.reciprocal(dst=total, data=total)
            nisa.tensor_scalar(dst=t, data=t, op0="multiply", operand0=total)
            nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128], src=t)
        return out

    a = items(0, (512, 64), "float32", special=False)
    program = lower(record(kernel, a))
    tape = program.steps[-1]
    assert tape.code.array[:2].tolist() == [20, 8]  # type: ignore[union-attr]
    # Tiles of later iterations take the memory of earlier ones.
    assert program.scratch_bytes < 128 * 64 * 4 * 2
    agree(kernel, a, ulps=16)
