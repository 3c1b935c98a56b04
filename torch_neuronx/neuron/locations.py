"""Where ``torch.load`` puts tensors: the device's old name, in files and as ``map_location``."""

import torch

_Storage = torch.types.Storage | torch.TypedStorage | torch.UntypedStorage

_OLD_NAME = "privateuseone"


def register() -> None:
    """Teach PyTorch's serialization the old name; it knows "neuron" itself."""
    # After PyTorch's own entries, which leave this name alone.
    torch.serialization.register_package(100, _tag, _restore)


def _tag(_storage: object) -> str | None:
    return None  # tensors are saved under the name "neuron"


def _restore(storage: _Storage, location: str) -> _Storage | None:
    name, _, _index = location.partition(":")
    if name != _OLD_NAME:
        return None
    found: _Storage = torch.serialization.default_restore_location(
        storage, str(torch.device(location))
    )
    return found
