"""Asynchronous tensor parallelism: a collective and the product beside it as one operator.

Inductor's switch `_micro_pipeline_tp` (torchtitan's `enable_async_tensor_parallel`) asks for it.
The patterns are PyTorch's own, found by its functions; its last step, which puts the operators of
symmetric memory in, only works where NCCL is, so that is done here.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

aten = torch.ops.aten
_VIEWS = (aten.view.default, aten._unsafe_view.default)


def fuse_collectives(gm: GraphModule) -> None:
    """Replace `all_gather` with products, and products with `reduce_scatter`, if that is asked for.

    Args:
        gm: A graph of AOTAutograd, which is changed. Only collectives of groups that
            `enable_symm_mem_for_group` was called for are replaced.
    """
    if not inductor_config._micro_pipeline_tp:
        return
    # Late: these import most of Inductor.
    from torch._inductor.fx_passes import micro_pipeline_tp as upstream  # noqa: PLC0415
    from torch._inductor.pattern_matcher import stable_topological_sort  # noqa: PLC0415

    graph = gm.graph
    for view in _VIEWS:
        for node in graph.find_nodes(op="call_function", target=view):
            node.target = aten.reshape.default  # what the patterns look for
    for gather in upstream.find_all_gather_patterns(graph):
        _fuse_gather(upstream, gather)
    for scatter in upstream.find_reduce_scatter_patterns(graph):
        _fuse_scatter(upstream, scatter)
    stable_topological_sort(graph)
    gm.recompile()


def _enabled(group: Any) -> bool:
    from torch.distributed._symmetric_memory import is_symm_mem_enabled_for_group  # noqa: PLC0415

    return is_symm_mem_enabled_for_group(group)


def _fuse_gather(upstream: Any, gather: Any) -> None:
    """The products of a gathered tensor; along their summed dimension there is nothing to gain."""
    shard, whole, dim = gather.shard_node, gather.res_node, gather.gather_dim
    rank = shard.meta["val"].dim()
    if not _enabled(gather.group_name) or rank < 2 or dim % rank == rank - 1:
        return
    products = [
        product
        for product in upstream._find_consumer_matmuls(whole)
        if type(product) is upstream._Matmul and whole not in product.arg_ancestor_nodes
    ]
    if not products:
        return
    taken = {node for product in products for node in product.nodes}
    used = any(user not in taken for user in whole.users)
    graph = gather.ag_node.graph
    with graph.inserting_before(gather.ag_node):
        matrices = [product.B_node for product in products]
        fused = _call(
            graph,
            torch.ops.symm_mem.fused_all_gather_matmul.default,
            (shard, matrices, dim, gather.group_name),
            {"return_A": used},
            like=products[0].nodes[0],
        )
        if used:
            gather.replace_with(_call(graph, operator.getitem, (fused, 0), like=whole))
        results = _call(graph, operator.getitem, (fused, 1), like=whole)
        for i, product in enumerate(products):
            like = product.nodes[-1]
            product.replace_with(_call(graph, operator.getitem, (results, i), like=like))
            product.erase()
    gather.erase()


def _fuse_scatter(upstream: Any, scatter: Any) -> None:
    """The product that is reduced, if nobody else wants it."""
    whole, ended = scatter.input_node, scatter.wait_tensor_node
    if not _enabled(scatter.group_name) or scatter.reduce_op not in ("sum", "avg"):
        return
    product = upstream._find_producer_matmul(whole)
    found = scatter.match if isinstance(scatter.match, list) else scatter.match.nodes
    if (
        type(product) is not upstream._Matmul
        or any(user not in found for user in whole.users)
        or ended in product.arg_ancestor_nodes
    ):
        return
    graph = ended.graph
    with graph.inserting_before(ended):
        fused = _call(
            graph,
            torch.ops.symm_mem.fused_matmul_reduce_scatter.default,
            (
                product.A_node,
                product.B_node,
                scatter.reduce_op,
                scatter.scatter_dim,
                scatter.group_name,
            ),
            like=ended,
        )
    scatter.replace_with(fused)
    scatter.erase()
    product.erase()


def _call(
    graph: Graph,
    target: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    like: Node,
) -> Node:
    """A node with what PyTorch would note of it: the fake result, and the line of `like`."""
    node = graph.call_function(target, tuple(args), kwargs)
    node.meta = {name: value for name, value in like.meta.items() if name != "val"}

    def fake(value: Any) -> Any:
        return map_arg(value, lambda each: each.meta["val"])

    node.meta["val"] = target(*fake(node.args), **fake(node.kwargs))
    return node
