"""A step that multiplies matrices.

A product stores its sums rounded once to its own type, straight from registers, and in float32 it
can start from another tensor (a bias, a residual) instead of zero. An epilogue that does no more
than that needs no machine code; leaving it out saves a pass over every tile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neuronxcc.codegen.loop import Access, Kernel, Scalar
from neuronxcc.ir.arithmetic import Array, precise
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.program.errors import NeffError
from neuronxcc.program.memory import View
from neuronxcc.program.spec import check_epilogue, epilogue_spec
from neuronxcc.program.step import NEAR, Code, Maker, Spec, Step
from neuronxcc.program.steps.made import Made
from neuronxcc.program.words import kernel_lines, operands_text, view_text

if TYPE_CHECKING:
    from neuronxcc.program.checker import Checker
    from neuronxcc.program.machine import Machine


#: Types of operands, of products and of convolutions.
PRODUCT_TYPES = frozenset({DType.F32, DType.BF16, DType.F16})


@dataclass(frozen=True, slots=True)
class GemmStep(Step):
    """out[b] = a[b] @ b[b] (+ c0[b]), or the epilogue's stores instead of out.

    a, b, out, c0 are views of rank 3 (batch, rows, columns); a batch stride of 0 repeats a matrix.
    a and b may be Made instead.
    Operands are float32, bfloat16 or float16, all of one type; sums are float32.
    """

    a: View | Made
    b: View | Made
    out: View | None
    c0: View | None = None
    # Set: a kernel over dims (batch, m, n) whose slot 0 is the accumulator tile (Slot.tile). It
    # does all storing, `out` is None, `epilogue_operands[i]` is slot i + 1.
    epilogue: Kernel | None = None
    epilogue_operands: tuple[tuple[int, int], ...] = ()
    # B is (a view of) an input that callers pass unchanged many times: keep its packed form.
    constant_b: bool = False

    def check(self, checker: Checker) -> None:
        for operand in (self.a, self.b):
            if isinstance(operand, Made):
                operand.check()
                checker.operands(operand.kernel, operand.operands, skip=1)
            else:
                checker.views((operand,))
        checker.views((self.c0,))
        checker.outs((self.out,))
        shape = self._shape()
        for view in (self.c0, self.out):
            if view is not None and view.shape != shape:
                raise NeffError(f"{list(view.shape)} for a product of {list(shape)}")
        if (self.out is None) == (self.epilogue is None):
            raise NeffError("a product needs either a result or an epilogue")
        checker.epilogue(self.epilogue, shape, self.epilogue_operands)

    def _shape(self) -> tuple[int, ...]:
        """Shape of a batch of matrix products."""
        a, b = self.a, self.b
        if len(a.shape) != 3 or len(b.shape) != 3:
            raise NeffError("operands of a product have three dimensions")
        if a.dtype is not b.dtype or a.dtype not in PRODUCT_TYPES:
            raise NeffError(f"a product of {a.dtype.value} and {b.dtype.value}")
        if (a.shape[0], a.shape[2]) != b.shape[:2]:
            raise NeffError(f"a product of {list(a.shape)} and {list(b.shape)}")
        return (*a.shape[:2], b.shape[2])

    def lines(self, *, kernels: bool) -> Iterator[str]:
        packed = " constant" if self.constant_b else ""
        extra = "" if self.c0 is None else f" + {view_text(self.c0)}"
        text = f"gemm {_operand_text(self.a)} @ {_operand_text(self.b)}{packed}{extra}"
        if self.epilogue is None:
            assert self.out is not None
            yield f"{text} -> {view_text(self.out)}"
        else:
            given = operands_text(self.epilogue_operands)
            yield f"{text} -> {self.epilogue.name}(tile, {given})"
        if kernels:
            for kernel in (*self._makers(), self.epilogue):
                if kernel is not None:
                    yield from kernel_lines(kernel)

    def _makers(self) -> list[Kernel]:
        return [operand.kernel for operand in (self.a, self.b) if isinstance(operand, Made)]

    def run(self, machine: Machine) -> None:
        a, b = (precise(_elements(machine, operand)) for operand in (self.a, self.b))
        sums = np.matmul(a, b)
        if self.c0 is not None:
            sums = sums + precise(machine.array(self.c0))
        machine.store(sums, self.out, self.epilogue, self.epilogue_operands)

    def codes(self, far: Array) -> Iterator[Code]:
        del far
        for operand in (self.a, self.b):
            if isinstance(operand, Made):
                operand.check()  # its machine code has no checks
                yield operand.kernel, NEAR
        epilogue = self.plain().epilogue
        if epilogue is not None:
            yield epilogue, NEAR

    def spec(self, maker: Maker) -> Spec:
        plain = self.plain()
        batch, m, k = plain.a.shape
        title = f"gemm {batch}x{m}x{k}x{plain.b.shape[2]} {plain.a.dtype.value}"
        return {
            "kind": "gemm",
            "loc": "",
            "a": _operand_spec(maker, plain.a),
            "b": _operand_spec(maker, plain.b),
            "out": maker.value(plain.out),
            "c0": maker.value(plain.c0),
            "constant_b": plain.constant_b,
            **epilogue_spec(maker, title, plain.epilogue, plain.epilogue_operands, "product"),
        }

    def summary(self) -> str:
        batch, rows, depth = self.a.shape
        tail = "" if self.epilogue is None else f", then {self.epilogue.name}"
        made = [kernel.name for kernel in self._makers()]
        head = f" of {' and '.join(made)}" if made else ""
        return f"product {batch}x{rows}x{depth}x{self.b.shape[2]}{head}{tail}"

    def plain(self) -> GemmStep:
        """The step without its epilogue, if that does nothing more; else the step as it is.

        Raises:
            ValueError: Its parts do not fit each other; machine code would trust them.
        """
        if len(self.a.shape) != 3 or len(self.b.shape) != 3:
            raise ValueError("the operands of a product must have three dimensions")
        if self.epilogue is None:
            return self
        product = (self.a.shape[0], self.a.shape[1], self.b.shape[2])
        check_epilogue(self.epilogue, product, self.epilogue_operands)
        found = None if self.c0 is not None else _does(self, self.epilogue)
        if found is None:
            return self
        out, c0 = found
        return dataclasses.replace(self, out=out, c0=c0, epilogue=None, epilogue_operands=())


def _operand_text(operand: View | Made) -> str:
    return operand.text() if isinstance(operand, Made) else view_text(operand)


def _elements(machine: Machine, operand: View | Made) -> Array:
    return operand.run(machine) if isinstance(operand, Made) else machine.array(operand)


def _operand_spec(maker: Maker, operand: View | Made) -> object:
    return operand.spec(maker) if isinstance(operand, Made) else maker.view(operand)


def _does(step: GemmStep, kernel: Kernel) -> tuple[View, View | None] | None:
    """Where the epilogue stores the sums, and what it adds to them; None if it does more."""
    if len(kernel.stores) != 1 or kernel.stores[0].combine or kernel.stores[0].mask:
        return None
    store = kernel.stores[0]
    out = _view(step, store.access)
    if out is None or out.dtype is not step.a.dtype or not _in_rows(out):
        return None
    value = store.value
    if value.op is Op.CONVERT and value.srcs[0].dtype is DType.F32:
        value = value.srcs[0]
    c0: View | None = None
    if value.op is Op.ADD and out.dtype is DType.F32:
        value, c0 = _sum_and_addend(step, value)
        # What is added may be replaced by the result, but not be moved by it.
        if c0 is not None and c0.buffer == out.buffer and c0 != out:
            return None
    return (out, c0) if _is_tile(kernel, value) else None


def _view(step: GemmStep, access: Access) -> View | None:
    """The view that the epilogue touches through an access, None if data decides."""
    assert step.epilogue is not None
    if access.slot == 0 or access.indices:
        return None
    buffer, offset = step.epilogue_operands[access.slot - 1]
    shape = tuple(dim.extent for dim in step.epilogue.dims)
    dtype = step.epilogue.slots[access.slot].dtype
    return View(buffer, dtype, shape, access.strides, offset + access.offset)


def _in_rows(out: View) -> bool:
    """Return whether the product writes such a result without help."""
    batch, rows, columns = out.shape
    batch_stride, row_stride, column_stride = out.strides
    if (columns > 1 and column_stride != 1) or (rows > 1 and row_stride < columns):
        return False
    return batch <= 1 or batch_stride >= (rows - 1) * row_stride + columns


def _is_tile(kernel: Kernel, value: Scalar) -> bool:
    return value.access is not None and kernel.slots[value.access.slot].tile and not value.srcs


def _sum_and_addend(step: GemmStep, value: Scalar) -> tuple[Scalar, View | None]:
    """The operand of an addition that is the tile, and the memory that is added to it."""
    assert step.epilogue is not None
    for tile, other in (value.srcs, value.srcs[::-1]):
        if _is_tile(step.epilogue, tile) and other.access is not None and not other.srcs:
            addend = _view(step, other.access)
            if addend is not None:  # else the sum is more than a product can do
                return tile, addend
    return value, None
