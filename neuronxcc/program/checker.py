"""The check of the memory that steps name: views and operands in the buffers of a program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from neuronxcc.codegen.check import check_kernel, extents_size, span, stores_to
from neuronxcc.codegen.loop import Kernel
from neuronxcc.ir.dtypes import DType
from neuronxcc.program.errors import NeffError
from neuronxcc.program.memory import Buffer, View


class Checker:
    """Checks what steps name. Kernels are checked once: layers of a model share them.

    Attributes:
        bytes: Of each buffer of the program in work.
        constants: Those of its buffers that nothing may write to.
    """

    def __init__(self) -> None:
        self._kernels: dict[Kernel, dict[int, tuple[int, int]]] = {}
        self.bytes: list[int] = []
        self.constants: set[int] = set()

    def enter(self, buffers: Sequence[Buffer], sizes: Sequence[int]) -> None:
        """Check steps of another program from now on."""
        self.bytes = list(sizes)
        self.constants = {n for n, b in enumerate(buffers) if b.kind == "constant"}

    def kernel(self, kernel: Kernel) -> dict[int, tuple[int, int]]:
        """The elements that a kernel touches, see `check_kernel`."""
        touched = self._kernels.get(kernel)
        if touched is None:
            try:
                touched = self._kernels[kernel] = check_kernel(kernel)
            except NeffError as error:
                raise NeffError(f"kernel {kernel.name!r}: {error}") from None
        return touched

    def operands(self, kernel: Kernel, given: tuple[tuple[int, int], ...], skip: int = 0) -> None:
        """Check the memory that a kernel is given; its first `skip` slots get theirs elsewhere."""
        touched = self.kernel(kernel)
        if len(given) != len(kernel.slots) - skip:
            raise NeffError(f"{len(given)} operands for {len(kernel.slots) - skip} slots")
        for position, (number, offset) in enumerate(given):
            slot = kernel.slots[position + skip]
            size = self.buffer_bytes(number)
            if slot.tile:
                raise NeffError(f"slot {position + skip} is a tile")
            low, high = touched.get(position + skip, (0, -1))
            if high >= low:
                self.inside(offset + low, offset + high, slot.dtype, size, number)
            elif offset < 0 or offset * slot.dtype.itemsize > size:
                raise NeffError(f"offset {offset} is outside buffer {number}")
            if number in self.constants and stores_to(kernel, position + skip):
                raise NeffError(f"it writes to constant {number}")

    def epilogue(
        self,
        kernel: Kernel | None,
        shape: tuple[int, ...],
        given: tuple[tuple[int, int], ...],
    ) -> None:
        """Check what does the storing for a product of a shape, and its operands."""
        if kernel is not None:
            if not kernel.slots or not kernel.slots[0].tile:
                raise NeffError("slot 0 of an epilogue is the tile")
            if tuple(dim.extent for dim in kernel.dims) != shape:
                raise NeffError("the dims of an epilogue are those of the product")
            if stores_to(kernel, 0):
                raise NeffError("an epilogue does not write to the tile")
            self.operands(kernel, given, skip=1)
        elif given:
            raise NeffError("operands of an epilogue that is not there")

    def outs(self, views: Iterable[View | None]) -> None:
        """Check views that are written to."""
        views = tuple(views)
        self.views(views)
        for view in views:
            if view is not None and view.buffer in self.constants:
                raise NeffError(f"it writes to constant {view.buffer}")

    def views(self, views: Iterable[View | None]) -> None:
        """Check views; None stands for one that is not wanted."""
        for view in views:
            if view is None:
                continue
            size = self.buffer_bytes(view.buffer)
            if len(view.shape) != len(view.strides):
                raise NeffError(f"{len(view.shape)} extents but {len(view.strides)} strides")
            if extents_size(view.shape):
                low, high = span(view.shape, view.strides, view.offset)
                self.inside(low, high, view.dtype, size, view.buffer)

    def buffer_bytes(self, number: int) -> int:
        """Bytes of a buffer, if there is one of that number."""
        if not 0 <= number < len(self.bytes):
            raise NeffError(f"buffer {number} of {len(self.bytes)}")
        return self.bytes[number]

    @staticmethod
    def inside(low: int, high: int, dtype: DType, size: int, number: int) -> None:
        """Check that elements, the first and the last, are in a buffer of some bytes."""
        if low < 0 or (high + 1) * dtype.itemsize > size:
            raise NeffError(
                f"elements {low} to {high} of {dtype.value} are not all in the {size} bytes of "
                f"buffer {number}"
            )
