"""Results of a graph whose elements share memory, such as the windows of `unfold`.

AOTAutograd guesses that the gradient of a result has the result's strides, and copies it there if
it hasn't. Where elements share memory, those of the gradient would overwrite each other: PyTorch
2.13 sees that for `expand` alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_neuronx.dynamo.registry import flat


def returns_windows(gm: torch.nn.Module) -> bool:
    """Return whether elements of a result share memory, or might: nobody knows its strides.

    Args:
        gm: Dynamo's graph, or a module around it. Of symbolic strides those count that it was
            captured with.
    """
    if not isinstance(gm, torch.fx.GraphModule):
        return True  # what Dynamo wraps around a graph whose arguments are lists
    (output,) = gm.graph.find_nodes(op="output")
    values = (node.meta.get("example_value") for node in output.all_input_nodes)
    tensors = (v for v in flat(list(values)) if isinstance(v, torch.Tensor))
    return any(t.layout is torch.strided and _windows(t) for t in tensors)


def _windows(t: torch.Tensor) -> bool:
    size, stride = ([_known(n) for n in numbers] for numbers in (t.shape, t.stride()))
    known = [n for n in (*size, *stride) if n is not None]
    if len(known) < 2 * t.dim():
        return True
    return may_overlap(known[: t.dim()], known[t.dim() :])


def _known(number: int | torch.SymInt) -> int | None:
    hint: int | None = number if isinstance(number, int) else number.node.hint
    return hint


def may_overlap(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether two elements of a view may be one of its storage."""
    reach = 0
    for step, extent in sorted(zip(stride, size, strict=True)):
        if extent > 1 and step <= reach:
            return True
        reach += (extent - 1) * step
    return False
