"""The bounds of kernels for the native executor: the memory that each may touch of its operands.

Machine code has no checks, so what could not be called safely is refused here, whoever made it.
"""

from __future__ import annotations

from neuronxcc.codegen.bounds import Reach, bounded, reaches
from neuronxcc.codegen.loop import Kernel, noted
from neuronxcc.program.step import NEAR, Maker, Spec


def operands_of(
    kernel: Kernel, operands: tuple[tuple[int, int], ...], first: int
) -> list[tuple[int, int, int, int, bool]]:
    """(buffer, offset, low, high, written) of every slot from `first` on, in bytes."""
    slots = kernel.slots[first:]
    if len(slots) != len(operands):
        raise ValueError(
            f"kernel {kernel.name} has {len(slots)} slots, {len(operands)} operands are given"
        )
    if first == 0 and any(slot.tile for slot in slots):
        raise ValueError(f"kernel {kernel.name} is the epilogue of a product, but is run alone")
    result = []
    found = bounded(kernel)[first:]
    for slot, reach, (buffer, offset) in zip(slots, found, operands, strict=True):
        result.append((buffer, *in_bytes(slot.dtype.itemsize, offset, reach), reach.written))
    return result


def cleared(kernel: Kernel) -> list[tuple[int, int, int]]:
    """(Slot, offset, bytes) of what is 0 before the kernel runs; `operands_of` has its bounds."""
    result = []
    for access in noted(kernel):
        size = kernel.slots[access.slot].dtype.itemsize
        result.append((access.slot, access.offset * size, size))
    return result


def in_bytes(size: int, offset: int, reach: Reach) -> tuple[int, int, int]:
    """Offset, low and high end of a reach."""
    return offset * size, reach.low * size, reach.high * size


def check_epilogue(
    kernel: Kernel, product: tuple[int, ...], operands: tuple[tuple[int, int], ...]
) -> None:
    """Return whether machine code of a kernel can be called for the tiles of a product.

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


def epilogue_spec(
    maker: Maker,
    title: str,
    kernel: Kernel | None,
    operands: tuple[tuple[int, int], ...],
    what: str,
) -> Spec:
    """Name, epilogue and its operands, for a step that may have one.

    Args:
        maker: See `Maker`.
        title: Of the step.
        kernel: Its epilogue.
        operands: Of the epilogue.
        what: The kind of step, for errors.

    Raises:
        ValueError: There are operands, and no epilogue.
    """
    if kernel is not None:
        given = operands_of(kernel, operands, 1)
        address = maker.function((kernel, NEAR)).address
        return {"name": f"{title} {kernel.name}", "epilogue": address, "operands": given}
    if operands:
        raise ValueError(f"a {what} without an epilogue has operands for one")
    return {"name": title, "epilogue": None, "operands": []}
