"""Pieces of models as tensor IR, for the tests of lowering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuronxcc.ir import DType, Graph, Node, Operand, TensorType, build, indexing, parameter

F32 = DType.F32


class Model:
    """A graph that is being made."""

    def __init__(self) -> None:
        self.params: list[Node] = []

    def param(self, *shape: int, dtype: DType = F32, name: str = "") -> Node:
        """A new parameter."""
        node = parameter(len(self.params), TensorType(dtype, shape), name)
        self.params.append(node)
        return node

    def graph(self, name: str, *results: Node, aliases: dict[int, int] | None = None) -> Graph:
        """The graph of these results."""
        return build.graph(name, self.params, results, aliases)


def mean(x: Node) -> Node:
    """Of the last dimension, which stays with extent 1."""
    total = build.reduce(x, "add", -1, keep=True)
    return build.multiply(total, 1 / x.shape[-1])


def spread(x: Node, like: Node) -> Node:
    return build.broadcast_to(x, like.shape)


def layer_norm(x: Node, weight: Node, bias: Node) -> tuple[Node, Node, Node]:
    """The result, the mean and the reciprocal deviation."""
    middle = mean(x)
    centred = build.subtract(x, spread(middle, x))
    scale = build.rsqrt(build.add(mean(build.multiply(centred, centred)), 1e-5))
    scaled = build.multiply(centred, spread(scale, x))
    return build.add(build.multiply(scaled, spread(weight, x)), spread(bias, x)), middle, scale


def rms_norm(x: Node, weight: Node) -> Node:
    scale = build.rsqrt(build.add(mean(build.multiply(x, x)), 1e-6))
    return build.multiply(build.multiply(x, spread(scale, x)), spread(weight, x))


def softmax(x: Node) -> Node:
    shifted = build.subtract(x, spread(build.reduce(x, "max", -1, keep=True), x))
    powers = build.exp(shifted)
    return build.divide(powers, spread(build.reduce(powers, "add", -1, keep=True), x))


def log_softmax(x: Node) -> Node:
    shifted = build.subtract(x, spread(build.reduce(x, "max", -1, keep=True), x))
    total = build.reduce(build.exp(shifted), "add", -1, keep=True)
    return build.subtract(shifted, spread(build.log(total), x))


def picked(x: Node, labels: Node) -> Node:
    """x[i, labels[i]]."""
    column = build.reshape(labels, (*labels.shape, 1))
    return build.reshape(indexing.take_along(x, column, 1), labels.shape)


def linear(x: Node, weight: Node, bias: Node | None = None) -> Node:
    """x @ weight.T + bias."""
    product = build.dot_general(x, weight, lhs_contract=(-1,), rhs_contract=(1,))
    return product if bias is None else build.add(product, spread(bias, product))


def gelu(x: Node) -> Node:
    cube = build.multiply(build.multiply(x, x), x)
    inner = build.multiply(build.add(x, build.multiply(cube, 0.044715)), 0.7978845608)
    return build.multiply(build.multiply(x, 0.5), build.add(build.tanh(inner), 1.0))


def heads(x: Node, count: int) -> Node:
    """[batch, tokens, width] to [batch, heads, tokens, width / heads]."""
    batch, tokens, width = x.shape
    split = build.reshape(x, (batch, tokens, count, width // count))
    return build.transpose(split, (0, 2, 1, 3))


def attention(q: Node, k: Node, v: Node) -> Node:
    """By ATen's kernel for CPUs, whose second result nobody uses."""
    types = (q.type, TensorType(F32, q.shape[:3]))
    call = build.custom_call(
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        types,
        (q, k, v),
        args=tuple(map(Operand, range(3))),
        kwargs={"is_causal": True},
    )
    return build.get(call, 0)


def block(m: Model, x: Node, count: int) -> Node:
    """A transformer's block."""
    batch, tokens, width = x.shape
    h, _, _ = layer_norm(x, m.param(width), m.param(width))
    qkv = linear(h, m.param(3 * width, width), m.param(3 * width))
    parts = (build.slice_dim(qkv, 2, i * width, (i + 1) * width) for i in range(3))
    mixed = attention(*(heads(part, count) for part in parts))
    merged = build.reshape(build.transpose(mixed, (0, 2, 1, 3)), (batch, tokens, width))
    x = build.add(x, linear(merged, m.param(width, width), m.param(width)))
    h, _, _ = layer_norm(x, m.param(width), m.param(width))
    h = gelu(linear(h, m.param(4 * width, width), m.param(4 * width)))
    return build.add(x, linear(h, m.param(width, 4 * width), m.param(width)))


def decoder(layers: int, width: int = 32, tokens: int = 8, words: int = 50) -> Graph:
    """Embedding, blocks, norm, logits."""
    m = Model()
    ids = m.param(2, tokens, dtype=DType.S64)
    table, places = m.param(words, width), m.param(tokens, width)
    x = indexing.take(table, ids, 0)
    x = build.add(x, spread(places, x))
    for _ in range(layers):
        x = block(m, x, 4)
    h, _, _ = layer_norm(x, m.param(width), m.param(width))
    return m.graph("decoder", linear(h, table))


def headlines(text: str) -> list[str]:
    """The lines of a program's text that are steps."""
    return [line.strip() for line in text.splitlines() if line[2:6] in _STEPS]


_STEPS: Sequence[Any] = ("loop", "gemm", "conv", "aten", "copy", "cond", "whil", "call")
