"""Tapes, loops and prints as the plain data that `_C.Program` is built from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from neuronxcc.codegen.bounds import bounded
from neuronxcc.codegen.llvm import Function
from neuronxcc.codegen.loop import Kernel, scalars
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.meaning.elementwise import Array
from neuronxcc.ir.op import Group, Op
from neuronxcc.program.program import ForStep, PrintStep, Register, Step, WhileStep
from neuronxcc.program.tape import (
    TapeFunction,
    TapeLoop,
    TapeNative,
    TapeProduct,
    TapeStep,
    instructions,
)
from neuronxcc.program.tape_check import product_slots
from torch_neuronx.program.dtypes import TO_TORCH

Spec = dict[str, object]

# A kernel, and its slots that are written piece by piece to something larger than the cache.
Code = tuple[Kernel, frozenset[int]]

# Of an operator on one element, and how many others an exponential or a gathered element is worth.
_NANOSECONDS, _FUNCTION, _GATHERED = 0.025, 20, 20
_FUNCTIONS = frozenset(op for op in Group.UNARY | {Op.POWER, Op.ATAN2, Op.DIVIDE} if op not in {
    Op.ABS, Op.NEGATE, Op.SIGN, Op.CEIL, Op.FLOOR, Op.ROUND_EVEN, Op.TRUNC, Op.NOT,
})  # fmt: skip


def codes_of(step: TapeStep, far: Array) -> tuple[Code | None, ...]:
    """What is compiled for each function of a tape; None for those that are no loops.

    Args:
        step: The tape, of which nothing is known to be right.
        far: For every buffer whether it is larger than the cache, and none of the scratchpad.

    Raises:
        ValueError: There is such a buffer, and the tape is malformed.
    """
    found = instructions(step) if far.any() else None
    codes: list[Code | None] = []
    for number, function in enumerate(step.functions):
        if not isinstance(function, TapeLoop):
            codes.append(None)
            continue
        slots: set[int] = set()
        if found is not None:
            starts = found.starts[found.functions == number]
            for slot in {store.access.slot for store in function.kernel.stores}:
                buffers = step.code.array[starts + 2 + 2 * slot]
                known = (buffers >= 0) & (buffers < len(far))
                if known.all() and far[buffers].all():
                    slots.add(slot)
        codes.append((function.kernel, frozenset(slots)))
    return tuple(codes)


def tape_spec(
    step: TapeStep, codes: tuple[Code | None, ...], functions: Mapping[Code, Function]
) -> Spec:
    """A tape.

    Args:
        step: The tape.
        codes: See `codes_of`.
        functions: The machine code.

    Raises:
        ValueError: A function contradicts itself or cannot be bounded.
    """
    return {
        "kind": "tape",
        "name": f"tape of {len(step.functions)} functions",
        "loc": "",
        "functions": [
            _function(function, None if code is None else functions[code])
            for function, code in zip(step.functions, codes, strict=True)
        ],
        "locations": step.locations,
        "code": bytes(step.code.content),
    }


def _function(function: TapeFunction, code: Function | None) -> Spec:
    match function:
        case TapeLoop():
            kernel = function.kernel
            if any(slot.tile for slot in kernel.slots):
                raise ValueError(f"kernel {kernel.name} has a tile, but is run alone")
            assert code is not None
            sizes = [slot.dtype.itemsize for slot in kernel.slots]
            return {
                "kind": "loop",
                "name": kernel.name,
                "address": code.address,
                "items": code.items,
                "grain": code.grain,
                "scratch_bytes": code.scratch_bytes,
                "nanoseconds": _nanoseconds(kernel),
                "reach": [
                    (reach.low * size, reach.high * size, reach.written)
                    for reach, size in zip(bounded(kernel), sizes, strict=True)
                ],
                "lanes": function.lanes,
                "advance": function.advance,
            }
        case TapeProduct():
            product_slots(function)  # its types have names in PyTorch
            f = function
            return {
                "kind": "product",
                "name": f"product {f.m}x{f.n}x{f.k}",
                "shape": (f.m, f.n, f.k),
                "strides": (*f.out_strides, *f.a_strides, *f.b_strides),
                "dtype": TO_TORCH[f.dtype],
                "out_dtype": TO_TORCH[f.out_dtype],
                "accumulate": f.accumulate,
                "lanes": False,
                "advance": (),
            }
        case TapeNative():
            return {
                "kind": "native",
                "name": function.name,
                "native": function.name,
                "params": function.params,
                "lanes": function.lanes,
                "advance": function.advance,
            }


def _nanoseconds(kernel: Kernel) -> float:
    """Roughly what a kernel takes on one thread, in the cache: is it worth several?"""
    work = len(kernel.stores)
    for scalar in scalars(kernel):
        if scalar.access is not None and scalar.access.indices:
            work += _GATHERED
        elif scalar.op in _FUNCTIONS:
            work += _FUNCTION
        elif scalar.what not in ("const", "index"):
            work += 1
    return math.prod(dim.extent for dim in kernel.dims) * work * _NANOSECONDS


def loop_spec(step: ForStep | WhileStep, make: Callable[[Step], Spec]) -> Spec:
    """A loop; `make` makes the steps of its body."""
    spec: Spec = {
        "name": "for" if isinstance(step, ForStep) else "while",
        "loc": "",
        "counters": [_register(register) for register in step.counters],
        "body": [make(inner) for inner in step.body],
    }
    if isinstance(step, ForStep):
        ends = _register(step.lower), _register(step.upper)
        return {"kind": "for", **spec, "lower": ends[0], "upper": ends[1], "step": step.step}
    ends = _register(step.initial), _register(step.next)
    return {"kind": "repeat_while", **spec, "lower": ends[0], "upper": ends[1], "step": 1}


def _register(register: int | Register) -> int | tuple[int, int]:
    if isinstance(register, int):
        return register
    return register.buffer, register.element


def print_spec(step: PrintStep, view: object) -> Spec:
    """A print; `view` is its view for the executor."""
    return {
        "kind": "print",
        "name": f"print {step.prefix}",
        "loc": step.location,
        "view": view,
        "printer": _printer(step.prefix, step.view.dtype, step.view.shape),
    }


def _printer(prefix: str, dtype: DType, shape: tuple[int, ...]) -> Callable[[bytes], None]:
    # A saved model is loaded without the rest of the compiler, which this would import.
    from neuronxcc.program.tape_reference import print_values  # noqa: PLC0415

    def show(data: bytes) -> None:
        values: Array = np.ndarray(shape, dtype.numpy, data)
        print_values(prefix, values)

    return show
