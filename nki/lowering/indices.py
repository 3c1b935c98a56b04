"""Indices that operands have at run time, as expressions of kernels.

They are clamped to what stays in memory, so that a kernel cannot leave it; before that
`nki.lowering.index_checks` stops the program, or, where the instruction skips what is out of
bounds, a mask leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Scalar
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from nki.dtypes import info
from nki.lowering.draft import Draft
from nki.lowering.operands import Leaf, Operand, element_strides
from nki.lowering.overlap import index_bytes
from nki.recording import IndirectForm, RegisterForm, TileForm

__all__ = ["IndexTerm", "Moved"]

IndexTerm = tuple[Scalar, int, int, int]  # expression, stride, least and greatest value


@dataclass(frozen=True, slots=True)
class Moved:
    """An indirect operand with what is known of its index."""

    work: Draft
    name: str

    @property
    def form(self) -> TileForm:
        """Its form."""
        form = self.work.form(self.name)
        assert isinstance(form, TileForm)
        return form

    @property
    def indirect(self) -> IndirectForm:
        """The form of its indirection."""
        assert self.form.indirect is not None
        return self.form.indirect

    @property
    def kind(self) -> str:
        """`scalar`, `vector` or `tensor`."""
        return self.indirect.kind

    @property
    def skips(self) -> bool:
        """Return whether elements that are out of bounds are left out."""
        return bool(self.work.attributes.get("oob_mode") == "skip")

    @property
    def highest(self) -> int:
        """The greatest index that is in bounds, -1 if none is."""
        return self.work.variant.highest[self.work.first(self.name)]

    @property
    def step(self) -> int:
        """Elements from one index to the next."""
        if self.kind == "tensor":
            return 1
        step, size = index_bytes(self.form), info(self.form.dtype).itemsize
        assert step % size == 0
        return step // size

    @property
    def source(self) -> Operand | Leaf:
        """The tensor of indices, or a register's place."""
        source = self.indirect.source
        leaf = Leaf(self.work.first(self.name) + 1)
        if isinstance(source, RegisterForm):
            return leaf
        return Operand("", source.dtype, source.shape, element_strides(source), leaf)

    def index(self, item: Scalar) -> IndexTerm:
        """Return what an access takes for a loaded index."""
        wide = build.convert(item, DType.S64)
        zero = build.const(0, DType.S64)
        highest = max(self.highest, 0)
        clamped = build.op(Op.CLAMP, zero, wide, build.const(highest, DType.S64))
        return clamped, self.step, 0, highest

    def inside(self, item: Scalar) -> Scalar | None:
        """Return whether a loaded index is in bounds; None if it is checked before."""
        if not self.skips:
            return None
        wide = build.convert(item, DType.S64)
        low, high = build.compare("GE", wide, 0), build.compare("LE", wide, self.highest)
        return build.op(Op.AND, low, high)
