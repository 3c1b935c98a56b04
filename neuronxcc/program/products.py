"""Products that need no machine code for their epilogue, because the product can do it by itself.

It stores its sums rounded once to its own type, straight from registers, and in float32 it can
start from another tensor (a bias, a residual) instead of zero. Both save a pass over every tile.
"""

from __future__ import annotations

import dataclasses

from neuronxcc.codegen.bounds import reaches
from neuronxcc.codegen.loop import Access, Kernel, Scalar
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.program.program import GemmStep, View


def plain_product(step: GemmStep) -> GemmStep:
    """The step without its epilogue, if that does nothing more; else the step as it is.

    Raises:
        ValueError: The epilogue does not fit the product.
    """
    if step.epilogue is None:
        return step
    _check(step, step.epilogue)
    found = None if step.c0 is not None else _does(step, step.epilogue)
    if found is None:
        return step
    out, c0 = found
    return dataclasses.replace(step, out=out, c0=c0, epilogue=None, epilogue_operands=())


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


def _check(step: GemmStep, kernel: Kernel) -> None:
    """Machine code trusts the product to call it for places inside the kernel's dims only."""
    if len(step.a.shape) != 3 or len(step.b.shape) != 3:
        raise ValueError("the operands of a product must have three dimensions")
    product = (step.a.shape[0], step.a.shape[1], step.b.shape[2])
    check_epilogue(kernel, product, step.epilogue_operands)


def check_epilogue(
    kernel: Kernel, product: tuple[int, ...], operands: tuple[tuple[int, int], ...]
) -> None:
    """Whether machine code of a kernel can be called for the tiles of a product.

    Args:
        kernel: The epilogue.
        product: Extents of batch, rows and columns.
        operands: For its slots, but the tile's.

    Raises:
        ValueError: It does not fit the product.
    """
    reaches(kernel)  # its parts fit each other
    extents = tuple(dim.extent for dim in kernel.dims)
    if extents != product:
        raise ValueError(f"epilogue {kernel.name} covers {extents}, the product has {product}")
    tiles = [i for i, slot in enumerate(kernel.slots) if slot.tile]
    if tiles != [0]:
        raise ValueError(f"epilogue {kernel.name} has its tile in slots {tiles} instead of 0")
    if len(kernel.slots) - 1 != len(operands):
        raise ValueError(
            f"kernel {kernel.name} has {len(kernel.slots) - 1} slots, "
            f"{len(operands)} operands are given"
        )


def _view(step: GemmStep, access: Access) -> View | None:
    """What the epilogue touches through an access, None if data decides."""
    assert step.epilogue is not None
    if access.slot == 0 or access.indices:
        return None
    buffer, offset = step.epilogue_operands[access.slot - 1]
    shape = tuple(dim.extent for dim in step.epilogue.dims)
    dtype = step.epilogue.slots[access.slot].dtype
    return View(buffer, dtype, shape, access.strides, offset + access.offset)


def _in_rows(out: View) -> bool:
    """Whether the product writes such a result without help."""
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
