"""Tapes, loops and prints as the plain data that `_C.Program` is built from."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from neuronxcc.codegen.llvm import Function
from neuronxcc.codegen.loop import Kernel
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.meaning.elementwise import Array
from neuronxcc.lowering.tape_reference import print_values
from neuronxcc.neff.program import ForStep, PrintStep, Register, Step, WhileStep
from neuronxcc.neff.tape import TapeFunction, TapeLoop, TapeNative, TapeProduct, TapeStep
from neuronxcc.neff.tape_check import product_slots
from torch_neuronx.dynamo.dtypes import TO_TORCH
from torch_neuronx.dynamo.kernel_bounds import bounded

Spec = dict[str, object]


def tape_spec(step: TapeStep, functions: Mapping[Kernel, Function]) -> Spec:
    """A tape.

    Args:
        step: The tape.
        functions: The machine code of its kernels.

    Raises:
        ValueError: A function contradicts itself or cannot be bounded.
    """
    return {
        "kind": "tape",
        "name": f"tape of {len(step.functions)} functions",
        "loc": "",
        "functions": [_function(function, functions) for function in step.functions],
        "locations": step.locations,
        "code": step.code.content,
    }


def _function(function: TapeFunction, functions: Mapping[Kernel, Function]) -> Spec:
    match function:
        case TapeLoop():
            kernel = function.kernel
            if any(slot.tile for slot in kernel.slots):
                raise ValueError(f"kernel {kernel.name} has a tile, but is run alone")
            code = functions[kernel]
            sizes = [slot.dtype.itemsize for slot in kernel.slots]
            return {
                "kind": "loop",
                "name": kernel.name,
                "address": code.address,
                "items": code.items,
                "grain": code.grain,
                "scratch_bytes": code.scratch_bytes,
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


def loop_spec(step: ForStep | WhileStep, make: Callable[[Step], Spec]) -> Spec:
    """A loop; `make` makes the steps of its body."""
    is_for = isinstance(step, ForStep)
    lower, upper = (step.lower, step.upper) if is_for else (step.initial, step.next)
    return {
        "kind": "for" if is_for else "repeat_while",
        "name": "for" if is_for else "while",
        "loc": "",
        "counters": [_register(register) for register in step.counters],
        "lower": _register(lower),
        "upper": _register(upper),
        "step": step.step if is_for else 1,
        "body": [make(inner) for inner in step.body],
    }


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
    def show(data: bytes) -> None:
        values: Array = np.ndarray(shape, dtype.numpy, data)
        print_values(prefix, values)

    return show
