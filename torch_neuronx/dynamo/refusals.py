"""Captured graphs in which PyTorch lost or overlooked something: compiled they would be wrong."""

from __future__ import annotations

import re
from typing import Any

import torch

from torch_neuronx.dynamo.errors import CaptureError, RefusedArgumentError
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


def check_states(gm: torch.fx.GraphModule) -> None:
    """Compare the states of recurrent networks with their layers.

    `torch.nn` does it for its modules. PyTorch's function reads behind the states that there are.

    Raises:
        RefusedArgumentError: There is not one for each layer and direction.
    """
    for node in gm.graph.nodes:
        at = _flags_at(node.args) if node.target in _NETWORKS else None
        if at is None or len(node.args) < at + 5:
            continue
        wanted = node.args[at + 1] * (2 if node.args[at + 4] else 1)
        states = torch.fx.map_arg(node.args[at - 2], lambda n: n.meta.get("example_value"))
        for state in states if isinstance(states, list | tuple) else [states]:
            shape = tuple(state.shape)
            if len(shape) != 3 or shape[0] != wanted:
                name = node.target.__name__
                text = f"{name} of {wanted} layers and directions has a state of shape {shape}"
                raise RefusedArgumentError(name, location(node), text)


def _flags_at(args: tuple[Any, ...]) -> int | None:
    """Where `has_biases` is: behind the states and the list of parameters.

    The arguments are (input, hx, params, has_biases, num_layers, dropout, train, bidirectional),
    or for packed sequences (data, batch_sizes, hx, params, has_biases, ...).
    """
    return next((i for i, arg in enumerate(args) if i >= 3 and isinstance(arg, bool)), None)


def _drops_between(args: tuple[Any, ...]) -> bool:
    first = _flags_at(args)
    if first is None or len(args) < first + 4:
        return False
    layers, dropout, train = args[first + 1 : first + 4]
    return bool(train) and dropout != 0 and layers > 1


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
