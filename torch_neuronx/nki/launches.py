"""The operator that a kernel's call is to PyTorch: launches in a table, named by keys.

Fake tensors, functionalisation and compiled graphs see `torch_neuronx_nki::run`, a function: it
returns the outputs and, for each argument that the kernel writes, its new content.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from typing import Any

import torch

from neuronxcc.ir.node import Node
from nki.errors import NkiError
from nki.launch import Launch
from nki.recording import Recording
from nki.returned import Returned, assemble
from torch_neuronx.nki import execution
from torch_neuronx.nki.types import TO_TORCH, name_of

__all__ = [
    "OPERATOR",
    "enter",
    "key_of",
    "launch_of",
    "recording_of",
    "results_of",
    "run_as_operator",
    "typed_arguments",
]

OPERATOR = "torch_neuronx_nki::run"

# Keys must not mean something else in a process that reads them from a file.
_PROCESS = secrets.token_hex(4)


class _Table:
    """Launches by key. They stay: compiled graphs of the process name them."""

    def __init__(self) -> None:
        self._launches: dict[str, Launch] = {}
        self._keys: dict[int, str] = {}
        self._lock = threading.Lock()

    def key(self, launch: Launch) -> str:
        """Return the key of a launch."""
        with self._lock:
            found = self._keys.get(id(launch))
            if found is None:
                found = self._keys[id(launch)] = f"{launch.name}.{_PROCESS}.{len(self._launches)}"
                self._launches[found] = launch
            return found

    def enter(self, key: str, launch: Launch) -> None:
        """Let a further key stand for a launch."""
        with self._lock:
            self._launches[key] = launch

    def launch(self, key: str) -> Launch:
        """Return the launch of a key."""
        found = self._launches.get(key)
        if found is None:
            raise NkiError(
                "NKI270",
                f"this process has no kernel {key!r}",
                "a graph that calls kernels runs in the process that traced it",
            )
        return found


_TABLE = _Table()
key_of = _TABLE.key
enter = _TABLE.enter
launch_of = _TABLE.launch


def recording_of(node: Node) -> Recording | None:
    """Return what a call in a graph records, None for calls of other operators."""
    return launch_of(node["args"][-1]).recording if node["target"] == OPERATOR else None


@torch.library.custom_op(OPERATOR, mutates_args=(), schema="(Tensor[] given, str key) -> Tensor[]")
def _run(given: Sequence[torch.Tensor], key: str) -> list[torch.Tensor]:
    launch = launch_of(key)
    used = [
        # Results must not share memory with arguments.
        tensor.clone(memory_format=torch.contiguous_format)
        if i in launch.written
        else tensor.contiguous()
        for i, tensor in enumerate(given)
    ]
    outputs = execution.run(launch, used, given[0].device)
    return [*outputs, *(used[i] for i in sorted(launch.written))]


@_run.register_fake
def _(given: Sequence[torch.Tensor], key: str) -> list[torch.Tensor]:
    launch = launch_of(key)
    made = [given[0].new_empty(shape, dtype=TO_TORCH[dtype]) for shape, dtype in launch.outputs]
    kept = [given[i] for i in sorted(launch.written)]
    return [*made, *(t.new_empty(t.shape) for t in kept)]


def _backward(_ctx: Any, *_grads: Any) -> Any:
    raise NkiError(
        "NKI276",
        "a gradient is asked for through a kernel, which has none of its own",
        "wrap the call in a torch.autograd.Function, or in an operator made by nki_op with "
        "register_autograd",
    )


_run.register_autograd(_backward)


def typed_arguments(launch: Launch, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the array arguments in the types that the launch takes.

    They are the arguments themselves, but for those that ``NKI_PRECISE_FP=0`` widens.
    """
    pairs = zip(values, launch.arguments, strict=True)
    return [v if name_of(v.dtype) == dtype else v.to(TO_TORCH[dtype]) for v, (_, dtype) in pairs]


def run_as_operator(
    launch: Launch, typed: list[torch.Tensor], values: Sequence[torch.Tensor]
) -> Any:
    """Run a launch through the operator, so that tracers, autograd and modes see it.

    Args:
        launch: what to run.
        typed: the array arguments as :func:`typed_arguments` returns them.
        values: the array arguments; those that the kernel writes get their new content.
    """
    returned = torch.ops.torch_neuronx_nki.run(typed, key_of(launch))
    count = len(launch.outputs)
    for number, content in zip(sorted(launch.written), returned[count:], strict=True):
        values[number].copy_(content)
    return results_of(launch, returned[:count], values)


def results_of(
    launch: Launch, outputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
) -> Any:
    """Return what the call returns, from the outputs and the arguments after the run."""
    return assemble(launch.results, outputs, values, _part)


def _part(source: torch.Tensor, item: Returned) -> torch.Tensor:
    """A part of a tensor: a view where its memory is as the kernel sees it."""
    flat = source.reshape(-1).view(TO_TORCH[item.dtype])
    return flat.as_strided(item.shape, item.strides, item.offset)
