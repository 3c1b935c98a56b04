"""PyTorch's tensors as arguments of kernels: on the CPU and on neuron devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy.typing as npt
import torch
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from neuronxcc.targets import Target
from nki.errors import NkiError, NkiTypeError
from nki.frontends import Frontend
from nki.launch import Launch
from torch_neuronx import _config
from torch_neuronx.nki import execution
from torch_neuronx.nki.launches import results_of, run_as_operator, typed_arguments
from torch_neuronx.nki.types import host_array, name_of

__all__ = ["FRONTEND", "TorchFrontend", "recording_for"]

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
_DEVICES = ("cpu", "neuron")
_ASKED: ContextVar[Target | None] = ContextVar("asked", default=None)


@contextmanager
def recording_for(target: Target) -> Iterator[None]:
    """Record kernels for a chip that is not the emulated one, in a `with` block: for estimates."""
    token = _ASKED.set(target)
    try:
        yield
    finally:
        _ASKED.reset(token)


class TorchFrontend(Frontend):
    """Tensors, those that tracers see included."""

    name = "torch"
    rank = 20

    def owns(self, value: Any) -> bool:
        """Return whether a value is a tensor."""
        return isinstance(value, torch.Tensor)

    def describe(self, value: Any) -> tuple[tuple[int, ...], str]:
        """Return shape and NKI's type name; sizes that a tracer leaves open are fixed."""
        return tuple(map(int, value.shape)), name_of(value.dtype)

    def host(self, value: Any) -> npt.NDArray[Any]:
        """Return a tensor's contents."""
        if type(value) not in _PLAIN or value.is_meta:
            raise NkiError(
                "NKI271",
                f"the kernel looks at the contents of a {type(value).__name__}",
                "a kernel whose Python depends on data cannot be compiled into a graph; decide on "
                "the device with nl.dynamic_range or nl.while_loop, or call it outside of "
                "torch.compile",
            )
        return host_array(value)

    def target(self, values: list[Any]) -> Target:
        """Return the emulated device's target for tensors on it, else NKI's default."""
        if any(isinstance(v, torch.Tensor) and v.device.type == "neuron" for v in values):
            return _ASKED.get() or _config.machine().target
        return super().target(values)

    def execute(self, launch: Launch, values: list[Any]) -> Any:
        """Run on the tensors' device, in the order of its current stream."""
        device = _device(values)
        typed = typed_arguments(launch, values)
        if _is_watched(values):
            return run_as_operator(launch, typed, values)
        used = [value.detach().contiguous() for value in typed]
        outputs = execution.run(launch, used, device)
        for i in launch.written:
            if used[i].data_ptr() != values[i].data_ptr():
                values[i].detach().copy_(used[i])
            if not values[i].is_inference():
                increment_version(values[i])
        return results_of(launch, outputs, values)


def _is_watched(values: list[Any]) -> bool:
    """Return whether somebody must see the call: a tracer, a mode, or autograd."""
    if is_in_torch_dispatch_mode():
        return True
    if any(type(value) not in _PLAIN or value.is_meta for value in values):
        return True
    return torch.is_grad_enabled() and any(value.requires_grad for value in values)


def _device(values: list[Any]) -> torch.device:
    for value in values:
        if not isinstance(value, torch.Tensor):
            raise NkiTypeError(
                "NKI272",
                f"a kernel is called with tensors and a {type(value).__name__}",
                "give all arrays of one call as tensors: torch.from_numpy(array)",
            )
    devices = list(dict.fromkeys(value.device for value in values))
    if len(devices) > 1:
        raise NkiError(
            "NKI272",
            f"a kernel is called with tensors on {' and '.join(map(str, devices))}",
            "move them to one device",
        )
    device: torch.device = devices[0]
    if device.type not in (*_DEVICES, "meta"):
        raise NkiError(
            "NKI272",
            f"a kernel is called with tensors on {device}",
            "kernels run on the CPU and on neuron devices",
        )
    return device


FRONTEND = TorchFrontend()
