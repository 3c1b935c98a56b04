"""The meaning of tapes in NumPy: one instruction after another, one chunk after another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuronxcc.codegen.reference import run_kernel
from neuronxcc.ir.meaning.elementwise import Array, cast
from neuronxcc.program.natives import NativeError, native
from neuronxcc.program.tape import (
    TapeFunction,
    TapeLoop,
    TapeNative,
    TapeProduct,
    TapeStep,
    instructions,
    is_lanes,
    slot_count,
)


def run_tape(step: TapeStep, memory: Sequence[Array]) -> None:
    """Run a tape.

    Args:
        step: The tape, which has been checked.
        memory: The bytes of every buffer (uint8), written in place.

    Raises:
        IndexError: A native function refuses the data; names the line.
    """
    code = step.code.array
    words = [2 * slot_count(function) for function in step.functions]
    for start, number, chunks, _ in zip(*instructions(step), strict=True):
        function = step.functions[number]
        places = code[start + 2 : start + 2 + words[number]].reshape(-1, 2)
        for chunk in range(max(int(chunks), 1)):
            advance = function.advance if is_lanes(function) else (0,) * len(places)
            slots = [
                memory[buffer][offset + chunk * by :]
                for (buffer, offset), by in zip(places, advance, strict=True)
            ]
            try:
                _run(function, slots)
            except NativeError as error:
                place = step.locations[code[start + 1]]
                text = f"{error.what}; {place}; {error.remedy} [{error.code}]"
                raise IndexError(text) from None


def _run(function: TapeFunction, slots: Sequence[Array]) -> None:
    match function:
        case TapeLoop():
            kernel = function.kernel
            pairs = zip(kernel.slots, slots, strict=True)
            run_kernel(kernel, [as_elements(data, slot.dtype.numpy) for slot, data in pairs])
        case TapeProduct():
            _product(function, *slots)
        case TapeNative():
            native(function.name).run(function.params, slots)


def as_elements(data: Array, dtype: np.dtype) -> Array:
    """Return bytes as elements, without a last one that is not whole."""
    return data[: data.size // dtype.itemsize * dtype.itemsize].view(dtype)


def _product(f: TapeProduct, out: Array, a: Array, b: Array) -> None:
    def window(
        data: Array, dtype: np.dtype, shape: tuple[int, int], strides: tuple[int, int]
    ) -> Array:
        steps = tuple(stride * dtype.itemsize for stride in strides)
        return np.ndarray(shape, dtype, data, 0, steps)

    left = window(a, f.dtype.numpy, (f.k, f.m), f.a_strides).astype(np.float64)
    right = window(b, f.dtype.numpy, (f.k, f.n), f.b_strides).astype(np.float64)
    target = window(out, f.out_dtype.numpy, (f.m, f.n), f.out_strides)
    sums = left.T @ right
    if f.accumulate:
        sums = target.astype(np.float64) + sums
    target[...] = cast(sums.astype(np.float32), f.out_dtype)


def print_values(prefix: str, values: Array) -> None:
    """Do what a PrintStep does."""
    print(prefix, values)  # noqa: T201 - the user asked for it
