"""Splitting the joint graph of AOTAutograd into forward and backward."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import Node
from torch.utils.checkpoint import CheckpointPolicy

aten = torch.ops.aten


def partition(
    joint: torch.fx.GraphModule, inputs: Any, **options: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """PyTorch's min-cut partitioner; random numbers are always saved, never drawn again.

    Drawing them again would need the generator's state of the first time; what they were used
    for (dropout masks) is small.

    What is computed element by element from something that is saved is not saved as well, not even
    if a product wants it in memory: of gelu the argument is kept, of a layer norm the argument and
    the statistics. That takes a fifth off the peak memory of a transformer's training step.
    """
    for node in joint.graph.nodes:
        target = node.target
        if (
            "recompute" in node.meta
            and isinstance(target, torch._ops.OpOverload)
            and torch.Tag.nondeterministic_seeded in target.tags
        ):
            # Without the mark it is like any operator outside of checkpoints: never run twice.
            for each in (node, *node.users):
                if each is node or each.target is operator.getitem:
                    each.meta.pop("recompute", None)
    norms_from_statistics(joint.graph)
    keep_old_values(joint.graph, options["num_fwd_outputs"])
    with functorch_config.patch(
        ban_recompute_materialized_backward=False, ban_recompute_used_far_apart=False
    ):
        return min_cut_rematerialization_partition(joint, inputs, **options)


def keep_old_values(graph: torch.fx.Graph, results: int) -> None:
    """Read arguments that the forward pass writes to from copies, if the backward pass needs them.

    PyTorch's partitioner gives the backward pass the argument itself, which holds the new value by
    then. Of the copy, or what is computed from it, it saves what is smaller; a copy that nothing
    saves is no work.

    Args:
        graph: AOTAutograd's joint graph; changed in place.
        results: How many of its outputs are those of the forward pass.
    """
    (output,) = graph.find_nodes(op="output")
    arguments = graph.find_nodes(op="placeholder")
    backward = _reached(a for a in arguments if "tangents" in str(a.target))
    backward |= {n for n in output.args[0][results:] if isinstance(n, Node)}
    # Tokens of the backward pass are arguments that come late.
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for write in graph.find_nodes(op="call_function", target=aten.copy_.default):
        held = write.args[0]
        readers = [user for user in held.users if user is not write and user is not output]
        if held.op != "placeholder" or not backward & _reached(readers):
            continue
        with graph.inserting_before(first):
            old = graph.call_function(aten.clone.default, (held,))
        old.meta = {**held.meta, "recompute": CheckpointPolicy.MUST_SAVE}
        for reader in readers:
            reader.replace_input_with(held, old)


def _reached(nodes: Iterable[Node]) -> set[Node]:
    """The nodes and all that is computed from them, but for what is written to arguments."""
    found: set[Node] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node not in found and node.op != "output" and node.target is not aten.copy_.default:
            found.add(node)
            left.extend(node.users)
    return found


def norms_from_statistics(graph: torch.fx.Graph) -> None:
    """Compute the result of every layer norm from its argument and statistics, by simple operators.

    The backward pass wants these anyway; the partitioner now sees that the result need not be saved
    for it, too. The lowering of the operator computes the same in the same order. A norm whose
    statistics have less precision than its arithmetic is left whole.

    Args:
        graph: AOTAutograd's joint graph; changed in place.
    """
    for norm in graph.find_nodes(op="call_function", target=aten.native_layer_norm.default):
        parts = {user.args[1]: user for user in norm.users}
        if parts.keys() != {0, 1, 2}:
            continue  # no backward pass wants the statistics
        x, _, weight, bias, _ = norm.args
        result, mean, rstd = (parts[i] for i in range(3))
        dtype = result.meta["val"].dtype
        if mean.meta["val"].dtype != torch.promote_types(dtype, torch.float32):
            continue
        result.prepend(mean)
        result.prepend(rstd)
        y = _before(result, aten.sub.Tensor, x, mean)
        y = _before(result, aten.mul.Tensor, y, rstd)
        if weight is not None:
            y = _before(result, aten.mul.Tensor, y, weight)
        if bias is not None:
            y = _before(result, aten.add.Tensor, y, bias)
        if y.meta["val"].dtype != dtype:
            y = _before(result, torch.ops.prims.convert_element_type.default, y, dtype)
        y.meta["val"] = result.meta["val"]  # with the strides of the norm, which is contiguous
        result.replace_all_uses_with(y)
        graph.erase_node(result)


def _before(place: Node, target: Any, *args: Any) -> Node:
    """A new call in front of a node, with its meta data apart from the value."""
    with place.graph.inserting_before(place):
        node = place.graph.call_function(target, args)
    values = (arg.meta["val"] if isinstance(arg, Node) else arg for arg in args)
    node.meta = {**place.meta, "val": target(*values)}
    return node
