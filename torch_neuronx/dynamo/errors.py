"""Errors of the compiler's front end, with documented codes and a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from neuronxcc.ir.graph import Loc


class NeuronCompileError(RuntimeError):
    """Base of the front end's errors.

    Attributes:
        code: the documented code without brackets, for example "NCC_EUOC002".
    """

    code = "NCC_EUOC002"

    def __init__(self, text: str) -> None:
        super().__init__(f"[{self.code}] {text}")


def place(loc: Loc | None) -> str:
    """The user's line for the second line of a message."""
    if loc is None or not loc.file:
        return "  at a line that PyTorch did not record"
    return f"  at {loc}: {loc.text}" if loc.text else f"  at {loc}"


class UnsupportedOperatorError(NeuronCompileError):
    """An operator without a lowering, in strict portability.

    Attributes:
        op: Qualified name with overload, "aten::linalg_svd".
    """

    code = "NCC_EUOC002"

    def __init__(self, op: str, loc: Loc | None, reason: str, remedy: str) -> None:
        super().__init__(
            f"An unsupported operator was used: {op}\n"
            f"{place(loc)}\n"
            f"  reason: {reason}\n"
            f"  remedy: {remedy}"
        )
        self.op = op


class DynamicShapeError(NeuronCompileError):
    """A graph with symbolic sizes, in strict portability; or sizes that data decide.

    Attributes:
        instruction: Name of the value in the FX graph.
        shape: Its shape as PyTorch prints it.
    """

    code = "NCC_EMOD025"

    def __init__(self, instruction: str, shape: str, loc: Loc | None = None) -> None:
        super().__init__(
            f"Dynamic shape is not supported: instruction '{instruction}' has shape '{shape}'. The "
            "Neuron compiler requires all tensor dimensions to be statically sized\n"
            f"{place(loc)}\n"
            "  remedy: torch.compile(..., dynamic=False), and pad inputs to a few fixed sizes; or "
            "set TORCH_NEURONX_PORTABILITY=permissive to compile one program per concrete shape"
        )
        self.instruction = instruction
        self.shape = shape


class UnsupportedDTypeError(NeuronCompileError):
    """An element type that the compiler does not have."""

    code = "NCC_ESPP004"

    def __init__(self, dtype: torch.dtype, loc: Loc | None = None) -> None:
        super().__init__(
            f"data type not supported for code generation: {dtype}\n{place(loc)}\n"
            "  remedy: convert the tensor to a supported type before the compiled region"
        )
        self.dtype = dtype


class RefusedTypesError(NeuronCompileError):
    """A call that eager mode refuses because of the types of its arguments."""

    code = "NCC_ESPP004"

    def __init__(self, op: str, loc: Loc | None, text: str) -> None:
        super().__init__(
            f"{text}\n{place(loc)}\n"
            f"  {op} refuses these types in eager mode too. remedy: convert the arguments"
        )


class RefusedArgumentError(NeuronCompileError):
    """A call that eager mode refuses because of a number or a name among its arguments."""

    code = "NCC_EVRF064"

    def __init__(self, op: str, loc: Loc | None, text: str) -> None:
        super().__init__(
            f"{text}\n{place(loc)}\n"
            f"  {op} refuses this in eager mode too. remedy: give an argument that it takes"
        )


class CaptureError(NeuronCompileError):
    """PyTorch captured something else than the program does: compiled, it would be wrong."""

    code = "NCC_ICAP001"

    def __init__(self, text: str, remedy: str, loc: Loc | None = None) -> None:
        super().__init__(f"cannot compile {text}\n{place(loc)}\n  remedy: {remedy}")


class LoweringError(NeuronCompileError):
    """A lowering produced something else than PyTorch says: a defect of this compiler.

    The text names operator and line so that the report is complete.
    """

    code = "NCC_ILWR001"

    def __init__(self, op: str, loc: Loc | None, text: str) -> None:
        super().__init__(
            f"the lowering of {op} failed: {text}\n"
            f"{place(loc)}\n"
            "  This is a defect of the compiler, not of your program. remedy: exclude the function "
            "with torch.compiler.disable, and report this message"
        )
        self.op = op
