"""Calls that a caller got wrong in one place, made from PyTorch's operator samples.

A mistake changes one tensor of a call that works: it is moved to another device, gets another size,
or holds an index that is out of range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

HOME, OTHER = "neuron:0", "neuron:1"

#: OpInfo name -> why its sizes are not those that the CPU takes.
TRUSTING: Final[dict[str, str]] = dict.fromkeys(
    (
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_batch_norm_with_update",
        "_segment_reduce",
        "linalg.ldl_solve",
        "lu_unpack",
        "nn.functional.ctc_loss",
    ),
    "the CPU's kernel does not compare sizes, and reads behind its operands until it crashes",
)


@dataclass(frozen=True)
class Call:
    """An operator with its arguments as leaves of a tree; their tensors are on the CPU."""

    op: OpInfo
    leaves: tuple[Any, ...]
    spec: TreeSpec

    def dense(self) -> list[int]:
        """Positions of the strided tensors."""
        return [
            i
            for i, leaf in enumerate(self.leaves)
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
        ]

    def with_leaf(self, position: int, leaf: torch.Tensor) -> Call:
        leaves = (*self.leaves[:position], leaf, *self.leaves[position + 1 :])
        return Call(self.op, leaves, self.spec)

    def on(self, device: str, moved: int = -1, elsewhere: str = "") -> list[Any]:
        """The arguments on a device, one of them moved elsewhere."""
        return [
            _on(leaf, elsewhere if position == moved else device)
            for position, leaf in enumerate(self.leaves)
        ]

    def run(self, leaves: list[Any]) -> Any:
        tensor, args, kwargs = tree_unflatten(leaves, self.spec)
        torch.manual_seed(0)
        return self.op(tensor, *args, **kwargs)


def _on(leaf: Any, device: str) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().to(device)
    names_cpu = isinstance(leaf, (str, torch.device)) and str(leaf) == "cpu"
    return device if names_cpu else leaf


def calls(op: OpInfo, count: int) -> Iterator[Call]:
    """The operator's first samples, in float32 where it has that."""
    types = op.supported_dtypes("cpu")
    preferred = (t for t in (torch.float32, torch.int64, *types) if t in types)
    for sample in islice(op.sample_inputs("cpu", next(preferred)), count):
        leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        yield Call(op, tuple(leaves), spec)


# ---- devices ------------------------------------------------------------------------------------


def outcome(function: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What a function gives, and the error that it or the work behind it raised."""
    try:
        result = function()
        torch.accelerator.synchronize()  # errors of values come up here in strict mode
    except Exception as error:  # noqa: BLE001 - returned, for the caller to compare
        return None, error
    return result, None


def devices_by_pytorch(call: Call, moved: int, elsewhere: str) -> list[str] | None:
    """What PyTorch's own rule says, without running anything: that of its fake tensors.

    Returns:
        The devices of the results.

    Raises:
        RuntimeError: The devices must not be mixed.
        NotImplementedError: The rule has no answer, for one the results' sizes depend on values.
    """
    with FakeTensorMode():
        leaves = [
            torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=device)
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
            else _on(leaf, device)
            for position, leaf in enumerate(call.leaves)
            for device in [elsewhere if position == moved else HOME]
        ]
        try:
            return devices_of(call.run(leaves))
        except (DynamicOutputShapeException, DataDependentOutputException) as error:
            raise NotImplementedError(str(error)) from error


def devices_of(results: Any) -> list[str]:
    return [str(leaf.device) for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]


# ---- sizes and indices --------------------------------------------------------------------------


def other_sizes(t: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that one of another size might be, by mistake."""
    if t.dim() == 0:
        yield "a vector", t.expand(3).clone()
        return
    for dim, size in enumerate(t.shape):
        if size > 0:
            longer = torch.arange(size + 1).clamp(max=size - 1)
            yield f"longer in {dim}", t.index_select(dim, longer)
            yield f"empty in {dim}", t.narrow(dim, 0, 0).clone()
        if size > 1:
            yield f"shorter in {dim}", t.narrow(dim, 0, size - 1).clone()
        if size > 2:
            yield f"one in {dim}", t.narrow(dim, 0, 1).clone()
    yield "one dimension more", t.unsqueeze(0)
    yield "flat", t.reshape(-1)
    if t.numel() > 0:
        yield "a number", t.reshape(-1)[0].clone()


def other_indices(t: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """An integer tensor with an element that no dimension has."""
    if t.dtype not in {torch.int32, torch.int64} or t.numel() == 0:
        return
    for value in (-1000, -1, 10, 1000):
        changed = t.clone(memory_format=torch.contiguous_format)
        changed.view(-1)[0] = value
        yield f"holding {value}", changed
