"""Operands of products that are computed while the product reads them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neuronxcc.codegen.check import extents_size
from neuronxcc.codegen.loop import Access, Kernel, Kind, scalars
from neuronxcc.ir.arithmetic import Array
from neuronxcc.ir.dtypes import DType
from neuronxcc.program.errors import NeffError
from neuronxcc.program.spec import operands_of
from neuronxcc.program.step import NEAR, Maker, Spec
from neuronxcc.program.words import operands_text

if TYPE_CHECKING:
    from neuronxcc.program.machine import Machine


@dataclass(frozen=True, slots=True)
class Made:
    """An operand of a product that is computed while the product reads it.

    Attributes:
        kernel: Over dims (batch, rows, columns), or (batch, columns, rows) if `by_columns`. Its
            only store goes to slot 0, a tile (Slot.tile) of `dtype`, and it does not read that.
        operands: `operands[i]` is slot i + 1 of the kernel: buffer, offset in elements.
        dtype: Of the operand.
        shape: Of the operand: batch, rows, columns.
        by_columns: Neighbours in a row of the kernel are neighbours in a column of the operand.
    """

    kernel: Kernel
    operands: tuple[tuple[int, int], ...]
    dtype: DType
    shape: tuple[int, ...]
    by_columns: bool = False

    def check(self) -> None:
        """Check that the kernel makes every element of the operand, and nothing else.

        Raises:
            NeffError: It does not.
        """
        kernel, shape = self.kernel, self.shape
        if len(shape) != 3:
            raise NeffError("operands of a product have three dimensions")
        extents_size(shape)
        if self.by_columns:
            shape = (shape[0], shape[2], shape[1])
        if [slot.tile for slot in kernel.slots] != [True] + [False] * (len(kernel.slots) - 1):
            raise NeffError("slot 0, and no other, of what makes an operand is the tile")
        if kernel.slots[0].dtype is not self.dtype:
            raise NeffError(f"a tile of {kernel.slots[0].dtype.value} for {self.dtype.value}")
        if tuple(dim.extent for dim in kernel.dims) != shape or any(
            dim.kind is Kind.REDUCE for dim in kernel.dims
        ):
            raise NeffError("the dims of what makes an operand are those of the operand")
        whole = Access(0, (shape[1] * shape[2], shape[2], 1))
        stores = [(store.access, store.mask, store.combine) for store in kernel.stores]
        if stores != [(whole, None, None)]:
            raise NeffError(
                "what makes an operand stores every element of its tile, and nothing else"
            )
        if any(s.access is not None and s.access.slot == 0 for s in scalars(kernel)):
            raise NeffError("what makes an operand does not read its tile")

    def text(self) -> str:
        """How it reads."""
        shape = ",".join(map(str, self.shape))
        order = " by columns" if self.by_columns else ""
        made = f"{self.kernel.name}({operands_text(self.operands)})"
        return f"{made}:{self.dtype.value}[{shape}]{order}"

    def run(self, machine: Machine) -> Array:
        """Its elements."""
        batch, rows, columns = self.shape
        shape = (batch, columns, rows) if self.by_columns else self.shape
        tile = np.empty(math.prod(shape), self.dtype.numpy)
        machine.kernel(self.kernel, self.operands, tile)
        made = tile.reshape(shape)
        return made.swapaxes(1, 2) if self.by_columns else made

    def spec(self, maker: Maker) -> Spec:
        """It for the native executor."""
        return {
            "address": maker.function((self.kernel, NEAR)).address,
            "operands": operands_of(self.kernel, self.operands, 1),
            "dtype": maker.dtype(self.dtype),
            "shape": self.shape,
            "by_columns": self.by_columns,
        }
