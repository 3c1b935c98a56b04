"""Tapes for tests: memory laid out as on chip, kernels on tiles of it, random programs of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Access, Dim, Kernel, Scalar, Slot, Store
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.program.memory import Buffer
from neuronxcc.program.program import AnyStep, Program
from neuronxcc.program.reference import run_program
from neuronxcc.program.steps.tape import TapeStep
from neuronxcc.program.tape_functions import TapeLoop, TapeNative, TapeProduct
from neuronxcc.program.tape_writer import TapeWriter
from torch_neuronx.program.executable import Executable

F32, S32, U8 = DType.F32, DType.S32, DType.U8
Draw = Callable[[st.SearchStrategy[Any]], Any]

PARTITIONS, TILES = 32, 5


def flat(kind: str, dtype: DType, count: int, index: int = -1, offset: int = -1) -> Buffer:
    return Buffer(kind, dtype, (count,), (1,), index, offset)


def program(steps: tuple[AnyStep, ...], *buffers: Buffer) -> Program:
    """A program whose results are its outputs."""
    results = [(b.index, n) for n, b in enumerate(buffers) if b.kind == "output"]
    ends = [b.offset + b.shape[0] * b.dtype.itemsize for b in buffers if b.kind == "temp"]
    return Program(
        "tapes", buffers, steps, tuple(n for _, n in sorted(results)), max(ends, default=0)
    )


def clamped(op: Op, rows: int, columns: int, pitch: int) -> Kernel:
    """Slot 2 = op(slot 0, slot 1) kept within 4, of tiles whose rows are `pitch` elements apart."""
    strides = (pitch, 1)
    value = build.op(op, *(build.load(F32, slot, strides) for slot in range(2)))
    store = Store(Access(2, strides), build.op(Op.CLAMP, -4.0, value, 4.0))
    return Kernel(op.value, (Dim(rows), Dim(columns)), (Slot(F32),) * 3, (store,))


def copied(value: Scalar, *slots: DType) -> Kernel:
    """Stores one value to element 0 of the last slot."""
    store = Store(Access(len(slots) - 1, (0,)), value)
    return Kernel("one", (Dim(1),), tuple(map(Slot, slots)), (store,))


@st.composite
def tapes(draw: Draw, columns: int) -> TapeStep:
    """Instructions on five tiles of [32, columns] float32 in one memory of 32 rows, buffer 0.

    All values are small integers, so that every result is exact. Buffer 1 has indices 0, 1, 2...
    """
    writer = TapeWriter()
    pitch = TILES * columns
    places = [tile * columns * 4 for tile in range(TILES)]
    tile = st.integers(0, TILES - 1)
    ops = st.sampled_from([Op.ADD, Op.SUBTRACT, Op.MULTIPLY, Op.MAXIMUM])

    def loop(rows: int, *, lanes: bool) -> None:
        by = (rows * pitch * 4,) * 3 if lanes else ()
        number = writer.function(TapeLoop(clamped(draw(ops), rows, columns, pitch), lanes, by))
        x, y, out = (places[draw(tile)] for _ in range(3))
        writer.add(number, writer.location(f"loop.py:{draw(tile)}"), (0, x, 0, y, 0, out))

    for _ in range(draw(st.integers(1, 6))):
        rows = draw(st.sampled_from([1, 8, 16, 32]))
        match draw(st.integers(0, 3)):
            case 0 | 1:
                writer.group(PARTITIONS // rows)
                for _ in range(draw(st.integers(1, 5))):
                    loop(rows, lanes=True)
            case 2:
                writer.group(0)
                for _ in range(draw(st.integers(1, 2))):
                    loop(PARTITIONS, lanes=False)
            case _:
                m, n, k = (draw(st.sampled_from(extents)) for extents in
                           ((1, 5, 8), (1, 7, columns), (1, 6, 32)))  # fmt: skip
                strides = (pitch, 1)
                swap = draw(st.booleans()) and n <= 32
                out = strides[::-1] if swap else strides
                product = TapeProduct(m, n, k, F32, F32, out, strides, strides, draw(st.booleans()))
                to, x, y = draw(st.permutations(places))[:3]
                writer.group(0)
                line = writer.location("product.py:1")
                if not swap or m <= columns:
                    writer.add(writer.function(product), line, (0, to, 0, x, 0, y))
                check = TapeNative("check_index", (3, 2, 5))
                writer.add(writer.function(check), line, (1, 0))
                # Back to small numbers.
                least = writer.function(TapeLoop(clamped(Op.MINIMUM, 32, columns, pitch)))
                writer.add(least, line, (0, to, 0, to, 0, to))
    return writer.step()


def memory_of(columns: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Arguments of a program of `tapes`."""
    data = np.random.default_rng(seed).integers(-4, 5, PARTITIONS * TILES * columns)
    return data.astype(np.float32), np.arange(8, dtype=np.int32)


def on_tapes(columns: int, *steps: AnyStep) -> Program:
    """A program of `tapes`; it works on its first argument, which is its result."""
    count = PARTITIONS * TILES * columns
    buffers = (flat("input", F32, count, 0), flat("input", S32, 8, 1))
    return Program("tapes", buffers, steps, (0,))


def both(made: Program, *args: np.ndarray, device: str = "cpu") -> tuple[Any, Any]:
    """Results by the reference, and by the native executor."""
    wanted = run_program(made, args)
    run = Executable(made, device)
    found = run(tuple(torch.from_numpy(arg.copy()).to(device) for arg in args))
    return wanted, [result.cpu().numpy() for result in found]
