"""Functional collectives: what several ranks compute together, as steps of the program.

In PyTorch a functional collective starts and `wait_tensor` ends it. Here the pair is one node that
means the result; when it starts and when it is waited for is decided when the program is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory  # defines the operators of `symm_mem`
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed.distributed_c10d import GroupName

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from torch_neuronx.dynamo.errors import LoweringError
from torch_neuronx.dynamo.registry import Context, lowers, positions, rebuilt

functional = torch.ops._c10d_functional
autograd = torch.ops._c10d_functional_autograd
dtensor = torch.ops._dtensor
symmetric = torch.ops.symm_mem

_KINDS = {
    "sum": "add",
    "avg": "avg",
    "product": "mul",
    "min": "min",
    "max": "max",
    "band": "and",
    "bor": "or",
    "bxor": "xor",
}
# As PyTorch's process groups reduce truth values.
_TRUTH = {"add": "or", "max": "or", "mul": "and", "min": "and"}


def _common(cx: Context, group: Any) -> dict[str, Any]:
    """Group, name and channel of a collective.

    The ranks are those of this rank's group only, which is all that PyTorch says.
    """
    name = group.group_name if isinstance(group, dist.ProcessGroup) else GroupName(str(group))
    found = group if isinstance(group, dist.ProcessGroup) else _resolve_process_group(name)
    ranks = dist.get_process_group_ranks(found)
    return {"group": (tuple(ranks),), "name": name, "channel": next(cx.sequences)}


def _kept(cx: Context, node: Node) -> Node:
    """A collective is done also if nobody on this rank wants the result: the others wait."""
    cx.effects.append(node)
    return node


def _kind(cx: Context, x: Node, reduce_op: str) -> str:
    kind = _KINDS.get(reduce_op.lower())
    if kind is None:
        text = f"reduce_op {reduce_op!r}; allowed: {', '.join(_KINDS)}"
        raise LoweringError(str(cx.fx.target), cx.loc, text)
    return _TRUTH.get(kind, kind) if x.dtype is DType.PRED else kind


@lowers(functional.all_reduce.default)
def all_reduce(cx: Context, x: Node, reduce_op: str, group: Any) -> Node:
    return _kept(cx, build.all_reduce(x, _kind(cx, x, reduce_op), **_common(cx, group)))


@lowers(functional.all_gather_into_tensor.default, autograd.all_gather_into_tensor.default)
def all_gather(
    cx: Context,
    input: Node,
    group_size: int,
    group_name: Any,
) -> Node:
    del group_size
    return _kept(cx, build.all_gather(input, 0, **_common(cx, group_name)))


@lowers(functional.reduce_scatter_tensor.default, autograd.reduce_scatter_tensor.default)
def reduce_scatter(
    cx: Context,
    input: Node,
    reduce_op: str,
    group_size: int,
    group_name: Any,
) -> Node:
    del group_size
    kind = _kind(cx, input, reduce_op)
    return _kept(cx, build.reduce_scatter(input, kind, 0, **_common(cx, group_name)))


@lowers(functional.all_to_all_single.default, autograd.all_to_all_single.default)
def all_to_all(
    cx: Context, x: Node, receive: Sequence[int], send: Sequence[int], group: Any
) -> Node:
    rows: dict[str, Any] = {"send": tuple(send), "receive": tuple(receive)} if len(send) else {}
    return _kept(cx, build.all_to_all(x, 0, 0, **rows, **_common(cx, group)))


@lowers(dtensor.shard_dim_alltoall.default)
def shard_dim_alltoall(cx: Context, x: Node, gather_dim: int, shard_dim: int, group: Any) -> Node:
    return _kept(cx, build.all_to_all(x, shard_dim, gather_dim, **_common(cx, group)))


@lowers(functional.broadcast.default)
def broadcast(cx: Context, x: Node, src: int, group: Any) -> Node:
    common = _common(cx, group)
    return _kept(cx, build.collective_broadcast(x, root=src, **common))


def _each(one: Callable[..., Node]) -> Callable[..., tuple[Node, ...]]:
    """Several tensors are several collectives; the program does them as one if they are small."""

    def lowering(cx: Context, inputs: Sequence[Node], *args: Any) -> tuple[Node, ...]:
        return tuple(one(cx, x, *args) for x in inputs)

    return lowering


lowers(functional.all_reduce_coalesced.default)(_each(all_reduce))
lowers(functional.all_gather_into_tensor_coalesced.default)(_each(all_gather))
lowers(functional.reduce_scatter_tensor_coalesced.default)(_each(reduce_scatter))


@lowers(functional.wait_tensor.default)
def wait_tensor(cx: Context, x: Node) -> Node:
    """A collective of this graph ends with its program; an argument may be of one outside of it."""
    source = x
    while source.op in Group.MOVEMENT and len(source.srcs) == 1:  # a view
        source = source.srcs[0]
    if source.op is Op.PARAMETER:
        cx.awaited.add(source["index"])
    return x


@lowers(
    symmetric.fused_all_gather_matmul.default,
    symmetric.fused_matmul_reduce_scatter.default,
    symmetric._low_contention_all_gather.default,
    symmetric._low_contention_reduce_scatter.default,
)
def through_symmetric_memory(cx: Context, *args: Any, **kwargs: Any) -> Any:
    """A step that all ranks do together, in order: the operator of the device's library."""
    if not cx.on_device:
        raise NotImplementedError("symmetric memory is that of the device")
    target: Any = cx.fx.target
    places = positions(cx.value)
    results = cx.call(target, args, kwargs, outs=places, device=True, effect=True)
    return rebuilt(cx.value, iter(results))


@lowers(functional.isend.default, functional.irecv.default, functional.batch_p2p_ops.default)
def point_to_point(cx: Context, *_args: Any, **_kwargs: Any) -> Node:
    raise LoweringError(
        str(cx.fx.target),
        cx.loc,
        "messages between two ranks are not compiled; keep them outside of compiled functions",
    )
