"""The answer to PyTorch's Inductor, which asks for the device's code generators: an explanation.

Inductor asks a renamed device's module for these names when it first compiles, so nothing of it is
imported before.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torch._inductor.codegen.common import DeviceOpOverrides, register_device_op_overrides


class NoInductor:
    """Stands where Inductor's classes for a device would; refuses to be made."""

    supports_caching = False  # asked before one is made: nothing of it is in Inductor's cache

    def __init__(self, *_: object) -> None:
        self.create()

    @staticmethod
    def create(*_: Any, **__: Any) -> NoReturn:
        """Say what to do instead.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(
            "Inductor, torch.compile's default backend, generates no code for neuron devices: use "
            'torch.compile(model, backend="neuron"), or call '
            'torch.compiler.set_default_backend("neuron") once'
        )


# Inductor looks these up before it makes anything of the above.
register_device_op_overrides("neuron", DeviceOpOverrides())
