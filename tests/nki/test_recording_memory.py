"""A million instructions must be recorded in less than 1 GB: what each of them takes."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

import nki.isa as nisa
import nki.language as nl
from neuronxcc.targets import get_target
from nki.launch import Slot, record

LIMIT = 1000  # bytes for each instruction


def steps(a: Any, count: int) -> Any:
    """Four instructions and a tile each, the tile being written in two parts."""
    total = nl.zeros((128, 64), dtype=a.dtype, buffer=nl.sbuf)
    for i in range(count):
        held = nl.ndarray((128, 64), dtype=a.dtype, buffer=nl.sbuf)
        for part in (slice(0, 32), slice(32, 64)):
            nisa.dma_copy(dst=held[:, part], src=a[i % 4 * 128 : (i % 4 + 1) * 128, part])
        nisa.tensor_tensor(dst=total, data1=total, data2=held, op=nl.add)
        nisa.tensor_scalar(dst=total, data=total, op0=nl.multiply, operand0=0.5)
    nisa.dma_copy(dst=a[:128], src=total)


def taken(count: int) -> tuple[int, int]:
    """Return the instructions of a recording, and the bytes that making it needs at most."""
    slot = Slot(0, "a", (512, 64), "float32")
    gc.collect()
    tracemalloc.start()
    try:
        recording = record(steps, [((slot, count), {})], target=get_target("trn2"), grid=())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(recording.templates) < 10
    return sum(1 for _ in recording.events()), most


@pytest.mark.slow
def test_memory_of_an_instruction() -> None:
    taken(10)  # what is made once per process
    (few, before), (many, after) = taken(100), taken(2100)
    assert many - few == 8000
    assert (after - before) / (many - few) < LIMIT
