"""FlexAttention: scores that a function of the user's changes, forward and backward.

The user's functions come as graphs on one score and its four indices. They are traced again on
whole tensors (batch, head, query, key), and the scores are made in full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.attention.flex_attention
from torch.fx.experimental.proxy_tensor import make_fx

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.decompositions import decompositions
from torch_neuronx.dynamo.dtypes import compute_dtype
from torch_neuronx.dynamo.lowerings.index import index_put, take_along
from torch_neuronx.dynamo.registry import Context, lowers, lowers_name
from torch_neuronx.program.dtypes import TO_TORCH

aten = torch.ops.aten
higher_order = torch.ops.higher_order
Module = torch.fx.GraphModule
Shape = tuple[int, ...]  # batch, heads, queries, keys
_KEYS = (3,)

# Which of (score, batch, head, query, key) each nested vmap runs over, outermost first.
_ORDER = ((0, 0, None, None, None), (0, None, 0, None, None), (0, None, None, 0, None),
          (0, None, None, None, 0))  # fmt: skip


def _vectorized(
    gm: Module, batched: Sequence[torch.Tensor], fixed: Sequence[Any], *, with_score: bool
) -> tuple[Module, list[int]]:
    """The user's graph on whole tensors.

    Args:
        gm: Takes (score,) batch, head, query, key, (gradient,) and captured tensors.
        batched: The score and perhaps its gradient, fake, of the full shape.
        fixed: Captured tensors and numbers, fake.
        with_score: Whether there is a score: mask functions have none.

    Returns:
        A graph of (batched..., four index vectors, fixed...) and which of the results of `gm` its
        results are: those that are None are left out.
    """
    mode = batched[0].fake_mode  # type: ignore[attr-defined]
    shape, device = batched[0].shape, batched[0].device
    kept: list[int] = []

    def tensors_only(*args: Any) -> Any:
        results = gm(*args)
        listed = results if isinstance(results, list | tuple) else [results]
        kept[:] = [i for i, r in enumerate(listed) if isinstance(r, torch.Tensor)]
        return tuple(listed[i] for i in kept)

    def added_up(*args: Any) -> Any:
        first, *gradients = tensors_only(*args)
        return first, *(_sum_of_lanes(g) for g in gradients)

    def whole(*args: Any) -> Any:
        function: Callable[..., Any] = added_up
        for row in reversed(_ORDER):
            dims = row if with_score else row[1:]
            extra = (0,) * (len(batched) - 1) if with_score else ()
            function = torch.vmap(
                function,
                in_dims=(*dims, *extra, *(None,) * len(fixed)),
                out_dims=_out_dims(gm),  # type: ignore[arg-type]
            )
        return function(*args)

    with mode:
        places = [torch.arange(n, device=device, dtype=torch.int64) for n in shape]
        args = [*batched[:1], *places, *batched[1:], *fixed] if with_score else [*places, *fixed]
        traced = make_fx(whole, decomposition_table=dict(decompositions()))(*args)
    traced.graph.eliminate_dead_code()
    return traced, kept


@torch.library.custom_op("torch_neuronx_flex::sum_of_lanes", mutates_args=())
def _sum_over(x: torch.Tensor) -> torch.Tensor:
    """The sum over all that vmap runs over: its rule for vmap does it, one vmap at a time."""
    return x.clone()


@_sum_over.register_vmap
def _sum_over_vmap(
    _info: object, in_dims: tuple[int | None, ...], x: torch.Tensor
) -> tuple[torch.Tensor, None]:
    (dim,) = in_dims
    return _sum_of_lanes(x if dim is None else x.sum(dim)), None


def _sum_of_lanes(x: torch.Tensor) -> torch.Tensor:
    """The gradient of a captured tensor that the user's function does not index.

    Gradients of indexing are added up by PyTorch and belong to no lane.
    """
    return _sum_over(x) if torch._C._functorch.is_batchedtensor(x) else x


def _out_dims(gm: Module) -> tuple[int | None, ...]:
    """The first result follows the scores; gradients of captured tensors are sums over all."""
    returned = gm.graph.output_node().args[0]
    listed = returned if isinstance(returned, list | tuple) else [returned]
    count = sum(item is not None for item in listed)
    return (0, *(None,) * (count - 1))


def _apply(
    cx: Context,
    gm: Module,
    batched: Sequence[Node],
    fixed: Sequence[Any],
    fakes: Sequence[Any],
    name: str,
    *,
    shape: Shape,
    dtype: DType,
    with_score: bool = True,
) -> tuple[list[Node], list[int]]:
    """Results of the user's graph on whole tensors, and which results they are."""
    query = cx.fx.args[0].meta["val"]  # type: ignore[union-attr]
    with query.fake_mode:
        stand_ins = [
            torch.empty(shape, dtype=TO_TORCH[dtype], device=query.device)
            for _ in range(max(len(batched), 1))
        ]
    traced, kept = _vectorized(gm, stand_ins, fakes, with_score=with_score)
    places = [b.iota(DType.S64, (n,), 0) for n in shape]
    operands: list[Any] = [*batched[:1], *places, *batched[1:], *fixed]
    body = cx.import_body(traced, operands, name)
    return body.graph.apply([operands[i] for i in body.used]), kept


def _fakes(nodes: Any) -> list[Any]:
    """The fake tensors of FX arguments."""
    return [n.meta["val"] if isinstance(n, torch.fx.Node) else n for n in nodes]


# ---- block masks --------------------------------------------------------------------------------


def _listed(counts: Node, indices: Node) -> Node:
    """Which key blocks are listed for each query block: (batch, head, query block, key block)."""
    width = indices.shape[-1]
    shape = (*indices.shape, width)
    last = len(shape) - 1
    valid = b.less(b.iota(indices.dtype, indices.shape, last - 1),
                   b.broadcast_in_dim(counts, indices.shape, range(last - 1)))  # fmt: skip
    same = b.equal(
        b.broadcast_in_dim(indices, shape, range(last)), b.iota(indices.dtype, shape, last)
    )
    hit = b.and_(same, b.broadcast_in_dim(valid, shape, range(last)))
    return b.reduce(hit, "or", last - 1)


def _positions(blocks: Node, sizes: tuple[int, int], shape: Shape) -> Node:
    """Truth per block to truth per position, of the full shape."""
    for axis, size in ((2, sizes[0]), (3, sizes[1])):
        extent = shape[axis]
        if blocks.shape[axis] == 1:
            blocks = b.broadcast_to(
                blocks, (*blocks.shape[:axis], extent, *blocks.shape[axis + 1 :])
            )
            continue
        index = b.divide(b.iota(DType.S64, (extent,), 0), e.number(size, DType.S64, (extent,)))
        blocks = take_along(blocks, [(axis, index)])
    return b.broadcast_to(blocks, shape)


def _allowed(
    cx: Context, block_mask: Sequence[Any], buffers: Any, fakes: Any, shape: Shape
) -> Node:
    """Which scores count: those in full blocks, and in other listed blocks what the mask lets."""
    kv_counts, kv_indices, full_counts, full_indices = block_mask[2:6]
    sizes = (int(block_mask[-3]), int(block_mask[-2]))
    mask = _apply(
        cx, block_mask[-1], (), buffers, fakes, "mask", shape=shape, dtype=DType.F32,
        with_score=False,
    )[0][0]  # fmt: skip
    result = b.broadcast_to(e.not_zero(mask), shape)
    if kv_counts is None:
        return result
    result = b.and_(result, _positions(_listed(kv_counts, kv_indices), sizes, shape))
    if full_counts is not None:
        full = _positions(_listed(full_counts, full_indices), sizes, shape)
        result = b.or_(result, full)
    return result


# ---- the operators ------------------------------------------------------------------------------


def _heads(x: Node, batch: int, heads: int) -> Node:
    """Keys or values for every query head and batch."""
    groups = heads // x.shape[1]
    shape = (x.shape[0], x.shape[1], groups, *x.shape[2:])
    x = b.reshape(b.broadcast_in_dim(x, shape, (0, 1, 3, 4)), (x.shape[0], heads, *x.shape[2:]))
    return b.broadcast_to(x, (batch, *x.shape[1:]))


def _scores(
    cx: Context,
    query: Node,
    key: Node,
    score_mod: Module,
    block_mask: Sequence[Any],
    scale: float,
    buffers: tuple[Any, Any],
    places: tuple[int, int],
) -> tuple[Node, Node, Node]:
    """(Scores, scores after the user's function and the mask, the mask)."""
    wide = compute_dtype(query.dtype)
    scores = b.matmul(query, b.swap_dims(key), dtype=wide)
    scores = b.multiply(scores, e.like(scores, scale))
    shape = scores.shape
    fakes = [_fakes(cx.fx.args[i]) for i in places]
    changed = _apply(
        cx,
        score_mod,
        (scores,),
        buffers[0],
        fakes[0],
        "score",
        shape=shape,
        dtype=wide,
    )[0][0]
    allowed = _allowed(cx, block_mask, buffers[1], fakes[1], shape)
    changed = b.broadcast_to(b.convert(changed, wide), shape)
    return scores, b.select(allowed, changed, e.like(changed, -math.inf)), allowed


def _powers(scores: Node) -> tuple[Node, Node, Node]:
    """exp(scores - the greatest of the row), their sums, and the greatest.

    A row without any score has nothing to attend to: powers are 0 and their sum is said to be 1.
    """
    top = b.reduce(scores, "max", _KEYS)
    empty = b.equal(top, e.like(top, -math.inf))
    safe = b.select(empty, e.like(top, 0), top)
    powers = b.exp(b.subtract(scores, e.back(safe, scores.shape, _KEYS)))
    total = b.reduce(powers, "add", _KEYS)
    return powers, b.select(empty, e.like(total, 1), total), top


@lowers(higher_order.flex_attention)
def flex_attention(
    cx: Context,
    query: Node,
    key: Node,
    value: Node,
    score_mod: Module,
    block_mask: Sequence[Any],
    scale: float,
    _options: object,
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> tuple[Node, Node, Node]:
    batch, heads = query.shape[:2]
    key, value = _heads(key, batch, heads), _heads(value, batch, heads)
    buffers = (score_buffers, mask_buffers)
    _, scores, _ = _scores(cx, query, key, score_mod, block_mask, scale, buffers, (7, 8))
    powers, divisor, top = _powers(scores)
    weights = b.divide(powers, e.back(divisor, scores.shape, _KEYS))
    out = b.matmul(b.convert(weights, query.dtype), b.convert(value, query.dtype))
    logsumexp = b.add(b.log(divisor), top)  # -inf for a row without any score
    in_twos = e.like(top, 1 / math.log(2))
    results = (out, b.multiply(logsumexp, in_twos), b.multiply(top, in_twos))
    return tuple(b.convert(r, t.dtype) for r, t in zip(results, cx.types, strict=True))  # type: ignore[return-value]


def _weights(scores: Node, logsumexp: Node) -> Node:
    """The attention weights again: exp(scores - logsumexp), from the logarithm to the base 2."""
    if scores.dtype is DType.F64:
        # PyTorch keeps the logsumexp in float32, which would spoil the gradients.
        powers, divisor, _ = _powers(scores)
        return b.divide(powers, e.back(divisor, scores.shape, _KEYS))
    lse = b.multiply(b.convert(logsumexp, scores.dtype), e.like(logsumexp, math.log(2)))
    empty = b.equal(lse, e.like(lse, -math.inf))
    safe = b.select(empty, e.like(lse, 0), lse)
    return b.exp(b.subtract(scores, e.back(safe, scores.shape, _KEYS)))


@lowers(higher_order.flex_attention_backward)
def flex_attention_backward(
    cx: Context,
    query: Node,
    key: Node,
    value: Node,
    out: Node,
    logsumexp: Node,
    grad_out: Node | None,
    grad_logsumexp: Node | None,
    score_mod: Module,
    joint: Module,
    block_mask: Sequence[Any],
    scale: float,
    _options: object,
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> tuple[Any, ...]:
    batch, heads = query.shape[:2]
    wide, narrow = compute_dtype(query.dtype), query.dtype
    keys, values = _heads(key, batch, heads), _heads(value, batch, heads)
    buffers = (score_buffers, mask_buffers)
    raw, scores, allowed = _scores(cx, query, keys, score_mod, block_mask, scale, buffers, (12, 13))
    shape = scores.shape
    if grad_out is None:
        grad_out = e.like(out, 0)
    weights = _weights(scores, logsumexp)

    grad_value = b.matmul(b.swap_dims(b.convert(weights, narrow)), grad_out)
    grad_weights = b.matmul(grad_out, b.swap_dims(values), dtype=wide)
    along = b.reduce(b.multiply(b.convert(out, wide), b.convert(grad_out, wide)), "add", _KEYS)
    if grad_logsumexp is not None:
        extra = b.convert(grad_logsumexp, wide)
        along = b.subtract(along, b.multiply(extra, e.like(extra, 1 / math.log(2))))
    grad = b.multiply(weights, b.subtract(grad_weights, e.back(along, shape, _KEYS)))

    results, kept = _apply(
        cx, joint, (raw, grad), score_buffers, _fakes(cx.fx.args[12]), "joint",
        shape=shape, dtype=wide,
    )  # fmt: skip
    grad = b.broadcast_to(b.convert(results[0], wide), shape)
    grad = b.select(allowed, grad, e.like(grad, 0))
    grad = b.convert(b.multiply(grad, e.like(grad, scale)), narrow)
    grad_query = b.matmul(grad, keys)
    grad_key = b.matmul(b.swap_dims(grad), query)
    parts = (grad_query, _fold(grad_key, key), _fold(grad_value, value))
    captured = dict(zip([i - 5 for i in kept[1:]], results[1:], strict=True))
    return (
        *(b.convert(p, t.dtype) for p, t in zip(parts, (query, key, value), strict=True)),
        tuple(
            None if not isinstance(buffer, Node) or i not in captured
            else b.convert(captured[i], buffer.dtype)
            for i, buffer in enumerate(score_buffers)
        ),
    )  # fmt: skip


def _fold(grad: Node, like: Node) -> Node:
    """Add up the gradients of what `_heads` repeated."""
    batch, heads, *rest = grad.shape
    groups = heads // like.shape[1]
    wide = b.convert(grad, compute_dtype(grad.dtype))
    total = b.reduce(b.reshape(wide, (batch, like.shape[1], groups, *rest)), "add", 2)
    return b.convert(e.sum_to(total, like.shape), grad.dtype)


@lowers_name("flex_lib::zeros_and_scatter")  # defined by a module of Dynamo
def zeros_and_scatter(
    cx: Context, shape: Sequence[int], indices: Sequence[Node], values: Node
) -> Node:
    """A tensor of zeros with values added at indices: the gradient of indexing."""
    zeros = e.number(0, cx.dtype, tuple(shape))
    if not indices:  # of a captured number, since PyTorch 2.14
        return b.add(zeros, b.convert(e.sum_to(values, tuple(shape)), cx.dtype))
    return index_put(cx, zeros, list(indices), values, accumulate=True)
