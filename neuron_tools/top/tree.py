"""The tree of memory: what hangs off a core, and off the programs that are loaded there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Document = dict[str, Any]
_NAMES = {
    "tensors": "Tensors", "constants": "Constants", "model_code": "Model Code",
    "runtime_memory": "Runtime Memory", "model_shared_scratchpad": "Model Scratchpad",
    "dma_buffers": "DMA Buffers", "application_memory": "App. Memory",
}  # fmt: skip


@dataclass
class Node:
    """A node: its memory is that of its children, if it has any.

    Attributes:
        key: Tells it from all others.
        name: What is shown.
        model: The number of a program, "" for others.
        host: Bytes of the host's memory.
        device: Bytes of the device's.
        children: What it is made of.
    """

    key: str
    name: str
    model: str = ""
    host: int = 0
    device: int = 0
    children: list[Node] = field(default_factory=list)


def _parent(key: str, name: str, children: list[Node], model: str = "") -> Node:
    host, device = sum(c.host for c in children), sum(c.device for c in children)
    return Node(key, name, model, host, device, children)


def memory_tree(runtimes: Sequence[Document], per_device: int) -> list[Node]:
    """Return a node for each process: below it the host, and the cores that it uses.

    Args:
        runtimes: Entries of `neuron_runtime_data`.
        per_device: Cores of a device.
    """
    found = []
    for runtime in runtimes:
        used = runtime["report"].get("memory_used")
        if used is None:
            continue
        pid = f"{runtime['pid']}"
        parts = used["neuron_runtime_used_bytes"]["usage_breakdown"]
        host = [
            Node(f"{pid}/host/{key}", _NAMES[key], host=size) for key, size in parts["host"].items()
        ]
        children = [_parent(f"{pid}/host", "Host", host)]
        for index, sizes in parts["neuroncore_memory_usage"].items():
            device, core = divmod(int(index), per_device)
            models = [m for m in used["loaded_models"] if _place(m) == (device, core)]
            children.append(
                _parent(
                    f"{pid}/{index}", f"ND {device} NC {core}", _core(pid, index, sizes, models)
                )
            )
        found.append(_parent(pid, f"{runtime['neuron_runtime_tag']} ({pid})", children))
    return found


def _place(model: Document) -> tuple[int, int]:
    part = model["subgraphs"]["sg_00"]
    return part["neuron_device_index"], part["neuroncore_index"]


def _core(pid: str, index: str, sizes: dict[str, int], models: list[Document]) -> list[Node]:
    """The programs on a core, and the rest by category: what belongs to a program counts there."""
    left, nodes = dict(sizes), []
    for model in models:
        memory = model["subgraphs"]["sg_00"]["memory_used_bytes"]["usage_breakdown"]
        key = f"{pid}/{index}/{model['model_id']}"
        leaves = []
        for category, size in memory["neuron_device"].items():
            own = min(size, left[category])
            left[category] -= own
            leaves.append(Node(f"{key}/{category}", _NAMES[category], device=own))
        nodes.append(_parent(key, model["name"], leaves, str(model["model_id"])))
    rest = [Node(f"{pid}/{index}/{c}", _NAMES[c], device=size) for c, size in left.items()]
    return nodes + rest


def visible(nodes: Sequence[Node], opened: set[str], depth: int = 0) -> Iterator[tuple[int, Node]]:
    """The nodes that are shown, with their depth: children of those that are open."""
    for node in nodes:
        yield depth, node
        if node.key in opened:
            yield from visible(node.children, opened, depth + 1)


def every(nodes: Sequence[Node]) -> Iterator[Node]:
    """All nodes."""
    for node in nodes:
        yield node
        yield from every(node.children)
