"""Tapes: what an instruction costs beyond its arithmetic, and products of tiles against matmul.

    python -m benchmarks.nki_replay [--threads N] [--only REGEX]

A row of instructions is a tape of 100000 additions, of [128, columns] float32 each. "one" and
"all" are nanoseconds per instruction on one thread and on all.

The products are 2048 x 2048 x 2048 as 4 x 16 x 16 tiles of 512 x 128 x 128, accumulated in
float32, as a kernel for the tensor engine does it.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Access, Dim, Kernel, Slot, Store
from neuronxcc.ir import DType, Op
from neuronxcc.program.memory import Buffer, Register
from neuronxcc.program.program import AnyStep, ForStep, Program
from neuronxcc.program.steps.tape import TapeStep
from neuronxcc.program.tape_functions import TapeLoop, TapeProduct
from neuronxcc.program.tape_writer import TapeWriter
from torch_neuronx.program.executable import Executable

F32 = DType.F32
PARTITIONS, COUNT, SIDE = 128, 100_000, 2048
_ROW = PARTITIONS * 4096  # bytes of one operand, at most


def addition(rows: int, columns: int) -> Kernel:
    """Slot 2 = slot 0 + slot 1."""
    strides = (columns, 1)
    value = build.op(Op.ADD, *(build.load(F32, slot, strides) for slot in range(2)))
    dims = (Dim(rows), Dim(columns))
    return Kernel("add", dims, (Slot(F32),) * 3, (Store(Access(2, strides), value),))


def additions(columns: int, rows: int, together: int, count: int = COUNT) -> TapeStep:
    """Additions of [128, columns], `together` of them in a group."""
    writer = TapeWriter()
    size = rows * columns * 4
    kernel = writer.function(TapeLoop(addition(rows, columns), lanes=True, advance=(size,) * 3))
    line = writer.location("benchmark")
    for number in range(count):
        if number % together == 0:
            writer.group(PARTITIONS // rows)
        place = number % 3
        writer.add(kernel, line, (0, place * _ROW, 0, (place + 1) % 3 * _ROW, 0, 3 * _ROW))
    return writer.step()


def program(steps: tuple[AnyStep, ...], outputs: tuple[Buffer, ...], *more: Buffer) -> Program:
    return Program("replay", (*outputs, *more), steps, tuple(range(len(outputs))))


def seconds(run: Callable[[], object], least: float = 0.5) -> float:
    """The best time of several runs."""
    run()
    best, end = float("inf"), time.perf_counter() + least
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def rows() -> Iterator[tuple[str, Program, int]]:
    """Name, program, instructions."""
    memory = Buffer("output", DType.U8, (4 * _ROW,), (1,), 0)
    for columns in (1, 32, 512):
        for chunk in (16, 64, 128):
            for together in (1, 8):
                name = f"add [128,{columns}] in chunks of {chunk}, {together} in a group"
                yield name, program((additions(columns, chunk, together),), (memory,)), COUNT
    body = additions(32, 64, 1, 1)
    registers = Buffer("output", DType.S32, (1,), (1,), 1)
    loop = ForStep((Register(1, 0),), 0, COUNT, 1, (body,))
    yield "add [128,32] in a loop", program((loop,), (memory, registers)), COUNT


def products(dtype: DType) -> Program:
    """The product by tiles."""
    writer = TapeWriter()
    line = writer.location("benchmark")
    m, n, k, size = 128, 512, 128, dtype.itemsize
    tiles = [
        writer.function(
            TapeProduct(m, n, k, dtype, F32, (SIDE, 1), (SIDE, 1), (SIDE, 1), accumulate)
        )
        for accumulate in (False, True)
    ]
    for j in range(0, SIDE, n):
        for i in range(0, SIDE, m):
            for q in range(0, SIDE, k):
                writer.group(0)
                places = ((0, (i * SIDE + j) * 4), (1, (q * SIDE + i) * size),
                          (2, (q * SIDE + j) * size))  # fmt: skip
                writer.add(tiles[q > 0], line, sum(places, ()))
    matrix = ((SIDE, SIDE), (SIDE, 1))
    inputs = (Buffer("input", dtype, *matrix, number) for number in (0, 1))
    return program((writer.step(),), (Buffer("output", F32, *matrix, 0),), *inputs)


def product_rates(dtype: DType) -> tuple[float, float]:
    """GFLOP/s by tiles and by matmul on the device."""
    kind = torch.bfloat16 if dtype is DType.BF16 else torch.float32
    a, b = (torch.randn(SIDE, SIDE).to(kind).to("neuron") for _ in range(2))
    run = Executable(products(dtype), "neuron")
    times = (seconds(partial(run, (a, b)), 1.0), seconds(partial(torch.matmul, a.T, b), 1.0))
    return 2e-9 * SIDE**3 / times[0], 2e-9 * SIDE**3 / times[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print(f"{'nanoseconds per instruction':52} {'one':>8} {'all':>8}")
    for name, made, count in rows():
        if re.search(options.only, name):
            start = time.perf_counter()
            run = Executable(made, "cpu")
            load = time.perf_counter() - start
            found = []
            for threads in (1, options.threads):
                torch.set_num_threads(threads)
                found.append(seconds(partial(run, ())) / count * 1e9)
            print(f"{name:52} {found[0]:8.0f} {found[1]:8.0f}   loaded in {load:.2f} s")
    torch.set_num_threads(options.threads)
    for dtype in (DType.BF16, F32):
        name = f"product {dtype.value}"
        if re.search(options.only, name):
            tiles, whole = product_rates(dtype)
            print(f"{name:52} {tiles:.0f} GFLOP/s by tiles, {whole:.0f} by matmul")


if __name__ == "__main__":
    main()
