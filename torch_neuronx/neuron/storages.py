"""The typed storage classes, ``torch.neuron.FloatStorage`` and so on.

PyTorch deprecates them in favour of ``torch.UntypedStorage``, but finds them by name when old code
asks for the type of a storage or compares it with one.
"""

from types import new_class
from typing import Any, cast

import torch
from torch.storage import _LegacyStorage

_DTYPES = {
    "BFloat16Storage": torch.bfloat16,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "ShortStorage": torch.int16,
}


class NeuronStorage(_LegacyStorage):
    """The base of the device's typed storages: they are not shared through files."""

    @classmethod
    def from_buffer(cls, *_args: Any, **_kwargs: Any) -> Any:
        """Raise: host memory cannot become device memory without a copy."""
        raise RuntimeError("from_buffer: not available for neuron storages")

    @classmethod
    def _new_with_weak_ptr(cls, *_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("_new_with_weak_ptr: not available for neuron storages")

    @classmethod
    def _new_shared_filename(cls, *_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("_new_shared_filename: not available for neuron storages")


def storage_class(name: str) -> type[NeuronStorage] | None:
    """Return the class called ``name``, or ``None`` if the device has none of that name."""
    return _CLASSES.get(name)


def _make(name: str, dtype: torch.dtype) -> type[NeuronStorage]:
    # PyTorch reads the device of such a class from the last part of its module's name.
    members = {"dtype": dtype, "_dtype": dtype, "__module__": "torch.neuron"}
    made = new_class(name, (NeuronStorage,), exec_body=lambda scope: scope.update(members))
    return cast("type[NeuronStorage]", made)


_CLASSES = {name: _make(name, dtype) for name, dtype in _DTYPES.items()}
