"""Loop kernels: bandwidth against copying, and the time to compile them.

    python -m benchmarks.codegen [--only REGEX] [--threads N]

A kernel's traffic is what it reads and writes once; the copy is a loop kernel too. "busy" is the
CPU time of all threads together, which other work on the machine changes less than the wall time.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import quiet
from neuronxcc.codegen import build
from neuronxcc.codegen.llvm import CompiledModule, compile_kernels
from neuronxcc.codegen.loop import Access, Dim, Kernel, Kind, Scalar, Slot, Store
from neuronxcc.codegen.objects import ObjectCache
from neuronxcc.ir import DType, Op

SIDE = 4096
F32, BF16 = DType.F32, DType.BF16
LOOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


@dataclass(frozen=True)
class Row:
    """A kernel on square matrices; `target_ms` is on the design's machine (two cores of Zen 5)."""

    name: str
    kernel: Kernel
    matrices: int  # that it reads or writes once
    target_ms: float | None = None


def pointwise(dtype: DType, function: Callable[[Scalar], Scalar]) -> Kernel:
    x = build.load(dtype, 0, (SIDE, 1))
    return _kernel(dtype, build.convert(function(build.convert(x, F32)), dtype), ())


def _kernel(dtype: DType, value: Scalar, reduced: tuple[int, ...], slots: int = 2) -> Kernel:
    dims = tuple(Dim(SIDE, Kind.REDUCE if d in reduced else Kind.PARALLEL) for d in (0, 1))
    store = Store(Access(slots - 1, (SIDE, 1)), value)
    return Kernel("benchmark", dims, (Slot(dtype),) * slots, (store,))


def gelu_tanh(x: Scalar) -> Scalar:
    cube = build.op(Op.MULTIPLY, build.op(Op.MULTIPLY, x, x), x)
    inner = build.op(Op.ADD, x, build.op(Op.MULTIPLY, cube, 0.044715))
    t = build.op(Op.TANH, build.op(Op.MULTIPLY, inner, 0.7978845608))
    return build.op(Op.MULTIPLY, build.op(Op.MULTIPLY, x, 0.5), build.op(Op.ADD, t, 1.0))


def gelu_erf(x: Scalar) -> Scalar:
    e = build.op(Op.ERF, build.op(Op.MULTIPLY, x, 0.70710678))
    return build.op(Op.MULTIPLY, build.op(Op.MULTIPLY, x, 0.5), build.op(Op.ADD, e, 1.0))


def silu(x: Scalar) -> Scalar:
    return build.op(Op.MULTIPLY, x, build.op(Op.LOGISTIC, x))


def rms_norm(dtype: DType) -> Kernel:
    x = build.convert(build.load(dtype, 0, (SIDE, 1)), F32)
    w = build.convert(build.load(dtype, 1, (0, 1)), F32)
    mean = build.op(Op.MULTIPLY, build.reduce(Op.ADD, build.op(Op.MULTIPLY, x, x)), 1 / SIDE)
    y = build.op(Op.MULTIPLY, x, build.op(Op.RSQRT, build.op(Op.ADD, mean, 2.0**-20)))
    return _kernel(dtype, build.convert(build.op(Op.MULTIPLY, y, w), dtype), (1,), 3)


def layer_norm(dtype: DType) -> Kernel:
    x = build.convert(build.load(dtype, 0, (SIDE, 1)), F32)
    w, bias = (build.convert(build.load(dtype, s, (0, 1)), F32) for s in (1, 2))
    mean = build.op(Op.MULTIPLY, build.reduce(Op.ADD, x), 1 / SIDE)
    d = build.op(Op.SUBTRACT, x, mean)
    square = build.reduce(Op.ADD, build.op(Op.MULTIPLY, d, d))
    variance = build.op(Op.ADD, build.op(Op.MULTIPLY, square, 1 / SIDE), 2.0**-20)
    y = build.op(Op.MULTIPLY, d, build.op(Op.RSQRT, variance))
    y = build.op(Op.ADD, build.op(Op.MULTIPLY, y, w), bias)
    return _kernel(dtype, build.convert(y, dtype), (1,), 4)


def softmax(dtype: DType, axis: int = 1) -> Kernel:
    x = build.convert(build.load(dtype, 0, (SIDE, 1)), F32)
    e = build.op(Op.EXP, build.op(Op.SUBTRACT, x, build.reduce(Op.MAXIMUM, x)))
    y = build.op(Op.DIVIDE, e, build.reduce(Op.ADD, e))
    return _kernel(dtype, build.convert(y, dtype), (axis,))


def transpose(dtype: DType, *, add: bool) -> Kernel:
    value = build.load(dtype, 0, (1, SIDE))
    if not add:
        return _kernel(dtype, value, ())
    return _kernel(dtype, build.op(Op.ADD, value, build.load(dtype, 1, (SIDE, 1))), (), 3)


def total(dtype: DType, axis: int) -> Kernel:
    """Sums along an axis, one result for each position of the other."""
    x = build.convert(build.load(dtype, 0, (SIDE, 1)), F32)
    value = build.convert(build.reduce(Op.ADD, x), dtype)
    dims = tuple(Dim(SIDE, Kind.REDUCE if d == axis else Kind.PARALLEL) for d in (0, 1))
    store = Store(Access(1, (0, 1) if axis == 0 else (1, 0)), value)
    return Kernel("benchmark", dims, (Slot(dtype),) * 2, (store,))


def rows() -> Iterator[Row]:
    """What is measured; the copy comes first."""
    yield Row("copy f32", pointwise(F32, lambda x: x), 2)
    yield Row("gelu-tanh f32", pointwise(F32, gelu_tanh), 2, 3.1)
    yield Row("gelu-tanh bf16", pointwise(BF16, gelu_tanh), 2, 2.0)
    yield Row("gelu-erf f32", pointwise(F32, gelu_erf), 2)
    yield Row("silu f32", pointwise(F32, silu), 2)
    yield Row("RMSNorm f32", rms_norm(F32), 2, 3.4)
    yield Row("RMSNorm bf16", rms_norm(BF16), 2)
    yield Row("LayerNorm f32", layer_norm(F32), 2, 3.6)
    yield Row("LayerNorm bf16", layer_norm(BF16), 2)
    yield Row("softmax f32", softmax(F32), 2, 3.5)
    yield Row("softmax bf16", softmax(BF16), 2)
    yield Row("softmax f32, columns", softmax(F32, 0), 2)
    yield Row("transpose f32", transpose(F32, add=False), 2)
    yield Row("transpose bf16", transpose(BF16, add=False), 2)
    yield Row("transpose-add f32", transpose(F32, add=True), 3)
    yield Row("row sums f32", total(F32, 1), 1)
    yield Row("column sums f32", total(F32, 0), 1)
    yield Row("column sums bf16", total(BF16, 0), 1)


def aligned(count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """Memory as the device hands it out: its address is a multiple of 512."""
    memory = np.empty(count * dtype.itemsize + 512, np.uint8)
    start = -memory.ctypes.data % 512
    return memory[start : start + count * dtype.itemsize].view(dtype)


class Runner:
    """Runs a compiled kernel on several threads, chunks taken as threads become free."""

    def __init__(self, module: CompiledModule, kernel: Kernel, threads: int) -> None:
        self.module = module  # owns the code
        self.function = module.functions[0]
        rng = np.random.default_rng(0)
        block = rng.standard_normal(SIDE)
        self.buffers = []
        for slot in kernel.slots:
            buffer = aligned(SIDE * SIDE, slot.dtype.numpy).reshape(SIDE, SIDE)
            buffer[:] = block.astype(slot.dtype.numpy)
            self.buffers.append(buffer)
        self.table = (ctypes.c_void_p * len(self.buffers))(*(b.ctypes.data for b in self.buffers))
        self.threads = threads
        # Python hands the chunks out here, so they are larger than the executor's.
        self.chunk = max(self.function.grain, self.function.items // (16 * threads), 1)

    def __call__(self) -> tuple[float, float]:
        """Seconds of wall time and of CPU time of one run."""
        starts = itertools.count(0, self.chunk)
        busy: list[float] = []
        barrier = threading.Barrier(self.threads + 1)

        def work() -> None:
            size = self.function.scratch_bytes + 64
            memory = ctypes.create_string_buffer(size)
            scratch = (ctypes.addressof(memory) + 63) & ~63
            call = LOOP(self.function.address)
            barrier.wait()
            start = time.thread_time()
            for begin in starts:
                if begin >= self.function.items:
                    break
                call(self.table, begin, min(begin + self.chunk, self.function.items), scratch)
            busy.append(time.thread_time() - start)

        workers = [threading.Thread(target=work) for _ in range(self.threads)]
        for worker in workers:
            worker.start()
        barrier.wait()
        start = time.perf_counter()
        for worker in workers:
            worker.join()
        return time.perf_counter() - start, sum(busy)


def measure(options: argparse.Namespace, watch: quiet.Watch) -> int:
    """Print a line per kernel."""
    print(f"{'':22} compile    wall    busy   GB/s  of copy  target")
    copy = 0.0
    for row in rows():
        if not re.search(options.only, row.name) and copy:
            continue
        start = time.thread_time()
        module = compile_kernels([row.kernel], cache=ObjectCache(None))
        compiled = time.thread_time() - start
        runner = Runner(module, row.kernel, options.threads)
        samples = [runner() for _ in range(options.repeats)]
        wall, busy = (min(column) for column in zip(*samples, strict=True))
        rate = row.matrices * SIDE * SIDE * row.kernel.slots[0].dtype.itemsize / wall / 1e9
        copy = copy or rate
        target = "" if row.target_ms is None else f"{row.target_ms:5.1f} ms"
        print(
            f"{row.name:22}{compiled * 1e3:5.1f} ms{wall * 1e3:6.2f} ms{busy * 1e3:6.2f} ms"
            f"{rate:7.1f}{rate / copy:8.0%}  {target}"
        )
    watch.facts()
    return 0


def main() -> int:
    """Parse options, watch the machine, measure."""
    options = quiet.parser(__doc__, 10).parse_args()
    return quiet.main(options, lambda watch: measure(options, watch))


if __name__ == "__main__":
    sys.exit(main())
