"""Functions of the C library that kernels call lane by lane, for what is not written as vectors."""

from __future__ import annotations

import ctypes
import functools

from neuronxcc.ir.op import Op

# Operator -> name for double; float32's has the suffix f.
UNARY = {
    Op.EXP: "exp", Op.EXP2: "exp2", Op.EXPM1: "expm1", Op.LOG: "log", Op.LOG2: "log2",
    Op.LOG10: "log10", Op.LOG1P: "log1p", Op.SIN: "sin", Op.COS: "cos", Op.TAN: "tan",
    Op.SINH: "sinh", Op.COSH: "cosh", Op.TANH: "tanh", Op.ASIN: "asin", Op.ACOS: "acos",
    Op.ATAN: "atan", Op.ASINH: "asinh", Op.ACOSH: "acosh", Op.ATANH: "atanh", Op.ERF: "erf",
    Op.ERFC: "erfc", Op.LGAMMA: "lgamma",
}  # fmt: skip
BINARY = {Op.POWER: "pow", Op.ATAN2: "atan2", Op.REMAINDER: "fmod"}
_OTHER = ("hypot",)

# What LLVM itself calls where the processor lacks the instruction.
_IMPLICIT = ("fma", "floor", "ceil", "trunc", "roundeven", "rint", "nearbyint")


@functools.cache
def symbols() -> dict[str, int]:
    """Addresses of all functions that compiled kernels may call."""
    library = ctypes.CDLL("libm.so.6")  # glibc's; to ask the linker would start a process
    names = [*UNARY.values(), *BINARY.values(), *_OTHER, *_IMPLICIT]
    found = {}
    for name in [*names, *(n + "f" for n in names)]:
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        assert address
        found[name] = address
    process = ctypes.CDLL(None)
    for name in ("memset", "memcpy", "memmove"):
        address = ctypes.cast(getattr(process, name), ctypes.c_void_p).value
        assert address
        found[name] = address
    return found
