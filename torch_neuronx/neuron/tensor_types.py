"""The tensor types of old code: ``torch.neuron.FloatTensor``, ``torch.neuron.sparse.FloatTensor``.

As CUDA's they are constructors, what ``tensor.type(...)`` takes, and types that ``isinstance``
tells apart by device, dtype and layout. A tensor's class is ``torch.Tensor``, whatever they say.
"""

from types import ModuleType
from typing import Any, Final

import torch

_DTYPES: Final = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


class NeuronTensorType(type):
    """A type of tensors on the device.

    Attributes:
        dtype: of their elements.
        layout: ``torch.strided`` or ``torch.sparse_coo``.
    """

    dtype: torch.dtype
    layout: torch.layout

    @property
    def is_sparse(cls) -> bool:
        """Return whether the layout is ``torch.sparse_coo``."""
        return cls.layout is torch.sparse_coo

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.device.type == "neuron"
            and instance.dtype == cls.dtype
            and instance.layout == cls.layout
        )

    def __call__(cls, *args: Any) -> torch.Tensor:
        """Make a tensor on the current core from sizes, from a sequence, or from nothing."""
        empty = torch.empty(0, dtype=cls.dtype, device="neuron", layout=cls.layout)
        return empty.new(*args)


def _make(prefix: str, layout: torch.layout) -> dict[str, NeuronTensorType]:
    # Tensor.type() reads the whole name where other classes have the last part of it.
    return {
        name: NeuronTensorType(
            f"{prefix}.{name}",
            (),
            {"__module__": prefix, "__qualname__": name, "dtype": dtype, "layout": layout},
        )
        for name, dtype in _DTYPES.items()
    }


#: Name -> type of dense tensors.
DENSE: Final = _make("torch.neuron", torch.strided)

#: The module ``torch.neuron.sparse``.
sparse: Final = ModuleType("torch.neuron.sparse", "The types of sparse tensors on the device.")
vars(sparse).update(_make("torch.neuron.sparse", torch.sparse_coo))
