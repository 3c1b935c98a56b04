"""Captured graphs in which PyTorch itself lost something: compiled they would be wrong."""

from __future__ import annotations

import re
from typing import Any

import torch

from torch_neuronx.dynamo.errors import CaptureError
from torch_neuronx.dynamo.locations import location

# Recurrent networks: where `num_layers` stands among the arguments, followed by dropout and train.
_NETWORKS = tuple(getattr(torch, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))
_GROUP = re.compile(r"\.param_groups\[(\d+)\]")


def refuse_lossy_capture(gm: torch.fx.GraphModule) -> None:
    """Raise for what Dynamo's graph, or what PyTorch makes of it, is known to compute wrongly.

    Raises:
        CaptureError: see its text.
    """
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in _NETWORKS and _drops_between(node.args):
            raise CaptureError(
                f"{node.target.__name__} with dropout between its layers: PyTorch's decomposition "
                "leaves the dropout out",
                "leave torch._dynamo.config.allow_rnn off, use one layer per module with "
                "torch.nn.Dropout between them, or set dropout=0",
                location(node),
            )
    _check_steps(gm)


def _drops_between(args: tuple[Any, ...]) -> bool:
    # (input, hx, params, has_biases, num_layers, dropout, train, ...), or for packed sequences
    # (data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, ...).
    first = next((i for i, arg in enumerate(args) if isinstance(arg, list | tuple)), None)
    first = None if first is None else next(i for i in range(first, len(args)) if _flag(args[i]))
    if first is None or len(args) < first + 4:
        return False
    layers, dropout, train = args[first + 1 : first + 4]
    return bool(train) and dropout != 0 and layers > 1


def _flag(arg: Any) -> bool:
    return isinstance(arg, bool)


def _check_steps(gm: torch.fx.GraphModule) -> None:
    """Optimizers with several groups of parameters that count steps on the CPU.

    While Dynamo captures the second group it moves the counters of the first to the device, and the
    graph goes on counting in those that it has already taken: the optimizer's state keeps 0, which
    the next compilation (a new learning rate) starts from.
    """
    sources = getattr(gm, "_param_name_to_source", None) or {}
    held = {**dict(gm.named_parameters()), **dict(gm.named_buffers())}
    groups, counters = set(), 0
    for name, source in sources.items():
        tensor = held.get(name)
        if tensor is None:
            continue
        text = source.name if isinstance(source.name, str) else source.name()
        group = _GROUP.search(text)
        if group is not None and tensor.device.type == "neuron":
            groups.add(group[1])
        counters += ".state[" in text and tensor.device.type == "cpu" and tensor.dim() == 0
    if counters and len(groups) > 1:
        raise CaptureError(
            "the step of an optimizer with several parameter groups that counts steps on the CPU: "
            "Dynamo loses the counts of all groups but the last",
            "construct the optimizer with capturable=True (or fused=True)",
        )
