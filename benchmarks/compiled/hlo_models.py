"""Model files for `neuronx-cc compile`, as JAX writes them, and graphs of many operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from neuronxcc.frontends.hlo.exporter import export_hlo
from neuronxcc.ir import DType, Graph, Node, TensorType, build
from neuronxcc.ir.graph import parameter

LAYERS, WIDTH, HEADS, VOCABULARY, POSITIONS = 12, 768, 12, 50257, 1024  # GPT-2 small
ROWS, COLUMNS = 32, 64  # of the tensors in graphs of many operators


def gpt2_shapes() -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters by name."""
    found: dict[str, tuple[int, ...]] = {
        "wte": (VOCABULARY, WIDTH), "wpe": (POSITIONS, WIDTH), "g": (WIDTH,), "b": (WIDTH,)
    }  # fmt: skip
    for n in range(LAYERS):
        for name, rows, columns in (("qkv", 1, 3), ("out", 1, 1), ("up", 1, 4), ("down", 4, 1)):
            found[f"{n}.{name}"] = (rows * WIDTH, columns * WIDTH)
            found[f"{n}.{name}.bias"] = (columns * WIDTH,)
        found |= {f"{n}.{name}": (WIDTH,) for name in ("g1", "b1", "g2", "b2")}
    return found


def _gpt2(p: Any, tokens: Any) -> Any:
    import jax  # noqa: PLC0415 - only these models are JAX's
    import jax.numpy as jnp  # noqa: PLC0415

    batch, length = tokens.shape

    def norm(x: Any, g: Any, b: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * g + b

    def linear(x: Any, name: str) -> Any:
        return x @ p[name] + p[f"{name}.bias"]

    def heads(x: Any) -> Any:
        return x.reshape(batch, length, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)

    x = p["wte"][tokens] + p["wpe"][:length]
    mask = jnp.tril(jnp.ones((length, length), bool))
    for n in range(LAYERS):
        h = norm(x, p[f"{n}.g1"], p[f"{n}.b1"])
        q, k, v = map(heads, jnp.split(linear(h, f"{n}.qkv"), 3, -1))
        scores = jnp.where(mask, q @ k.swapaxes(-1, -2) / 8.0, -1e9)
        mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(batch, length, WIDTH)
        x = x + linear(mixed, f"{n}.out")
        h = norm(x, p[f"{n}.g2"], p[f"{n}.b2"])
        x = x + linear(jax.nn.gelu(linear(h, f"{n}.up")), f"{n}.down")
    return norm(x, p["g"], p["b"]) @ p["wte"].T


def _lowered(function: Callable[..., Any], *args: Any) -> bytes:
    import jax  # noqa: PLC0415

    module: Any = jax.jit(function).lower(*args).compiler_ir("hlo")
    content: bytes = module.as_serialized_hlo_module_proto()
    return content


def _shape(dtype: str, *shape: int) -> Any:
    import jax  # noqa: PLC0415

    return jax.ShapeDtypeStruct(shape, dtype)


def gpt2() -> bytes:
    """GPT-2 small, 1 x 128 tokens, weights are parameters."""
    weights = {name: _shape("float32", *shape) for name, shape in gpt2_shapes().items()}
    return _lowered(_gpt2, weights, _shape("int32", 1, 128))


def gpt2_constants() -> bytes:
    """The same with random weights as constants: a file of 650 MB."""
    import jax.numpy as jnp  # noqa: PLC0415

    rng = np.random.default_rng(0)
    weights = {
        name: rng.standard_normal(shape, np.float32) * 0.02 for name, shape in gpt2_shapes().items()
    }
    constants = {name: jnp.asarray(value) for name, value in weights.items()}
    return _lowered(lambda tokens: _gpt2(constants, tokens), _shape("int32", 1, 128))


def matmul() -> bytes:
    """A product of matrices of 16384 x 16384."""
    return _lowered(lambda x, y: x @ y, *[_shape("float32", 16384, 16384)] * 2)


def argmax() -> bytes:
    """The positions of the largest of 131072 numbers, in 8 rows."""
    return _lowered(lambda x: x.argmax(-1), _shape("float32", 8, 131072))


class _Params:
    """Parameters as they are needed."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def __call__(self, rows: int = ROWS) -> Node:
        type_ = TensorType(DType.F32, (rows, COLUMNS))
        self.nodes.append(parameter(len(self.nodes), type_, f"p{len(self.nodes)}"))
        return self.nodes[-1]


def _chain(new: _Params, count: int) -> list[Node]:
    """Each operator needs the one before."""
    x = y = new()
    for n in range(count // 2):
        x = build.tanh(build.add(x, y) if n % 2 else build.multiply(x, y))
    return [x]


def _wide(new: _Params, count: int) -> list[Node]:
    """As many short chains as are needed, each with a parameter and a result of its own."""
    found = []
    for _ in range(count // 10):
        x = new()
        for n in range(10):
            x = build.tanh(x) if n % 2 else build.negate(x)
        found.append(x)
    return found


def _layer(new: _Params, x: Node) -> Node:
    """Attention and a feed-forward part; 31 operators."""
    square = build.reduce(build.multiply(x, x), "add", [1], keep=True)
    h = build.multiply(x, build.broadcast_to(build.rsqrt(square), x.shape))
    q, k, v = (build.matmul(h, new(COLUMNS)) for _ in range(3))
    scores = build.matmul(q, build.swap_dims(k))
    top = build.reduce(scores, "max", [1], keep=True)
    e = build.exp(build.subtract(scores, build.broadcast_to(top, scores.shape)))
    total = build.reduce(e, "add", [1], keep=True)
    mixed = build.matmul(build.divide(e, build.broadcast_to(total, e.shape)), v)
    x = build.add(x, build.matmul(mixed, new(COLUMNS)))
    return build.add(x, build.matmul(build.tanh(build.matmul(x, new(COLUMNS))), new(COLUMNS)))


def _layers(new: _Params, count: int) -> list[Node]:
    x = new()
    for _ in range(count // 31):
        x = _layer(new, x)
    return [x]


def _mixed(new: _Params, count: int) -> list[Node]:
    """Layers, chains from each, and shared results that are used far later."""

    def grow() -> Iterator[Node]:
        x, early = new(), []
        for n in range(count // 34):
            x = _layer(new, x)
            early.append(x)
            y = x
            for _ in range(8):
                y = build.tanh(build.add(y, early[n // 2]))
            if n % 4 == 0:
                yield build.reduce(y, "add", [0])
        yield x

    return list(grow())


FORMS: dict[str, Callable[[_Params, int], list[Node]]] = {
    "chain": _chain,
    "wide": _wide,
    "layers": _layers,
    "mixed": _mixed,
}


def operators(form: str, count: int) -> bytes:
    """A module of about `count` operators, one of FORMS."""
    new = _Params()
    results = FORMS[form](new, count)
    return export_hlo(Graph(f"{form}{count}", tuple(new.nodes), tuple(results)))
