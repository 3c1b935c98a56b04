"""Tensors in the memory of a core."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from neuronxcc.status import Status
from nrtpy.errors import NrtpyError
from nrtpy.runtime import Runtime, get_nrtpy_singleton, translated

if TYPE_CHECKING:
    from torch_neuronx.nrt.memory import Held

Array = np.ndarray[Any, Any]


class NrtTensor:
    """Memory of a core. Made by the library; several NrtpyTensors may refer to one.

    Attributes:
        data: The memory; None after it was freed. Not part of the API.
        runtime: The runtime that it belongs to.
        core_id: The core that it lies on.
    """

    __slots__ = ("__weakref__", "core_id", "data", "runtime")

    def __init__(self, data: Held, runtime: Runtime, core_id: int) -> None:
        self.data: Held | None = data
        self.runtime = runtime
        self.core_id = core_id
        runtime.tensors.add(self)

    def memory(self) -> Held:
        """The memory.

        Raises:
            NrtpyError: It was freed, or the runtime was closed.
        """
        if self.data is None:
            raise NrtpyError(
                "the tensor belongs to a runtime that nrtpy.reset() has closed (NRT_CLOSED(14))"
                if self.runtime.closed
                else "the tensor was freed"
            )
        return self.data

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.memory().nbytes


class NrtpyTensor:
    """A tensor in a core's memory. It is freed when Python forgets it, or by `free_tensor`.

    Attributes:
        shape: Its extents.
        dtype: NumPy's type of its elements; bfloat16 and 8-bit floats are those of ml_dtypes.
        name: For people; "" if it has none.
    """

    __slots__ = ("_ref", "dtype", "name", "shape")

    def __init__(
        self,
        tensor_ref: NrtTensor,
        shape: tuple[int, ...] | int,
        dtype: Any,
        name: str | None = None,
    ) -> None:
        """A tensor of existing memory.

        Args:
            tensor_ref: The memory.
            shape: Extents; a number is one extent.
            dtype: NumPy's type of the elements.
            name: For people.

        Raises:
            ValueError: It would have another size in bytes than the memory.
        """
        self._ref = tensor_ref
        self.shape: tuple[int, ...] = (
            (int(shape),) if isinstance(shape, int) else tuple(map(int, shape))
        )
        self.dtype = np.dtype(dtype)
        self.name = name or ""
        size = math.prod(self.shape) * self.dtype.itemsize
        if min(self.shape, default=0) < 0 or size != tensor_ref.nbytes:
            raise ValueError(
                f"{self.dtype}{list(self.shape)} has {size} bytes, the memory has "
                f"{tensor_ref.nbytes}"
            )

    @classmethod
    def from_numpy(cls, array: Array, name: str | None = None, core_id: int = 0) -> NrtpyTensor:
        """Copy an array to a core.

        Args:
            array: Of any shape, layout and byte order.
            name: For people.
            core_id: The core, counted from 0 among the visible ones.

        Raises:
            TypeError: It is no array, or of a type that cores don't have.
            NrtError: There is no such core (9), or its memory is full (4).
        """
        if not isinstance(array, np.ndarray | np.generic):
            raise TypeError(f"from_numpy takes a NumPy array, got {type(array).__name__}")
        array = np.asarray(array)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        runtime = get_nrtpy_singleton()
        device = runtime.device(core_id)
        runtime.memory.device_type(array.dtype)  # says if there is none
        try:
            data = runtime.memory.to_device(array, device)
        except Exception as error:
            what = f"Failed to allocate {array.nbytes} bytes for tensor {name or ''!r}"
            raise translated(error, "nrt_tensor_allocate", what, Status.FAILURE) from error
        return cls._made(NrtTensor(data, runtime, core_id), array.shape, array.dtype, name or "")

    @classmethod
    def _made(
        cls, ref: NrtTensor, shape: tuple[int, ...], dtype: np.dtype[Any], name: str
    ) -> NrtpyTensor:
        """Like the constructor, for what is known to fit."""
        made = cls.__new__(cls)
        made._ref, made.shape, made.dtype, made.name = ref, shape, dtype, name  # noqa: SLF001
        return made

    def write_from_numpy(self, array: Array) -> None:
        """Write an array's elements into the tensor's memory.

        Args:
            array: Of the same size in bytes; shape and dtype may differ.

        Raises:
            ValueError: It has another size.
            NrtpyError: The tensor was freed.
        """
        if not isinstance(array, np.ndarray | np.generic):
            raise TypeError(f"write_from_numpy takes a NumPy array, got {type(array).__name__}")
        memory = self._ref.memory()
        array = np.asarray(array)
        if array.nbytes != memory.nbytes:
            raise ValueError(
                f"tensor {self.name!r} is {self}, {memory.nbytes} bytes; the array is "
                f"{array.dtype}{list(array.shape)}, {array.nbytes} bytes"
            )
        self._ref.runtime.memory.write(memory, array)

    def numpy(self) -> Array:
        """A copy of the elements, of the tensor's shape and dtype.

        Raises:
            NrtpyError: The tensor was freed.
        """
        ref = self._ref
        array: Array = ref.runtime.memory.read(ref.memory(), self.dtype, self.shape)
        return array

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def __repr__(self) -> str:
        where = "freed" if self._ref.data is None else f"core {self._ref.core_id}"
        return f"NrtpyTensor({self.name!r}, {self}, {where})"
