"""What random kernels of the first generation are made of: operations, and what they mean in NumPy.

All numbers are integers that float32 holds, so that results are compared exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl

__all__ = ["KINDS", "MOST", "OPERATIONS", "Operation", "Tile", "Value", "clamp"]

Array = npt.NDArray[Any]

KINDS: dict[str, Any] = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "int32": np.int32,
}
MOST = 1 << 18  # from here on numbers are clamped
_EXACT = 1 << 8  # bfloat16 holds integers up to this


class Value(NamedTuple):
    """What is known of a value before it is computed.

    Attributes:
        kind: NKI's name of its type.
        bound: the largest magnitude.
        lane: it has one element for each row.
    """

    kind: str
    bound: int
    lane: bool = False


@dataclass
class Tile:
    """A tile of the kernel's arrays, for instructions or for NumPy.

    Attributes:
        p: numbers of its rows, (n, 1): an index expression, or integers.
        f: numbers of its columns, (1, m).
        at: what chooses it of an array.
        rows: what chooses its rows of an array of one column.
        mask: which of its elements there are; None for all.
        shape: its size.
        height: rows that there are, as a mask of one column; None for all.
        depth: columns that there are, as a mask of rows.
        arrays: the kernel's arguments by name.
        scratch: memory in HBM by type, to store to and load from.
    """

    p: Any
    f: Any
    at: Any
    rows: Any
    mask: Any
    shape: tuple[int, int]
    height: Any
    depth: Any
    arrays: dict[str, Any]
    scratch: dict[str, Any]


Draw = random.Random


class Operation(NamedTuple):
    """An operation of random kernels.

    Attributes:
        draw: chooses operands' numbers and attributes; None if there is nothing that fits.
        kernel: computes it, of a tile, operands and attributes.
        meaning: the same in NumPy.
    """

    draw: Callable[[Draw, list[Value]], tuple[tuple[int, ...], dict[str, Any], Value] | None]
    kernel: Callable[..., Any]
    meaning: Callable[..., Array]


# --- choosing operands ---------------------------------------------------------------------------


def _pick(
    rng: Draw, values: list[Value], *, lane: bool | None = False, kinds: Any = ("float32",),
    bound: int = MOST,
) -> int | None:  # fmt: skip
    fitting = [
        n for n, v in enumerate(values)
        if v.kind in kinds and v.bound <= bound and lane in (None, v.lane)
    ]  # fmt: skip
    # Later values depend on more.
    return rng.choice(fitting[-4:] + fitting) if fitting else None


def _unary(
    result: Callable[[Value], Value],
    *,
    kinds: Any = ("float32",),
    bound: int = MOST,
    **options: Any,
) -> Any:
    def draw(rng: Draw, values: list[Value]) -> Any:
        x = _pick(rng, values, kinds=kinds, bound=bound)
        if x is None:
            return None
        return (x,), {k: rng.choice(v) for k, v in options.items()}, result(values[x])

    return draw


def _same(value: Value) -> Value:
    return value


def _binary_bound(op: str, x: int, y: int) -> int:
    return {"multiply": x * y, "add": x + y, "subtract": x + y}.get(op, max(x, y))


_ARITHMETIC = ("add", "subtract", "multiply", "maximum", "minimum")


def _draw_binary(rng: Draw, values: list[Value]) -> Any:
    op = rng.choice(_ARITHMETIC)
    x = _pick(rng, values, kinds=tuple(KINDS))
    y = _pick(rng, values, kinds=tuple(KINDS), lane=None)
    if x is None or y is None:
        return None
    bound = _binary_bound(op, values[x].bound, values[y].bound)
    if bound > 1 << 23:
        return None
    forms = ["function", "masked"]
    forms += ["operator"] if "float32" in (values[x].kind, values[y].kind) else []
    same = values[x].kind == values[y].kind == "float32"
    forms += ["instruction"] if same else []
    forms += ["in place"] if same and not values[y].lane else []
    return (x, y), {"op": op, "form": rng.choice(forms)}, Value("float32", bound)


def _binary(t: Tile, x: Any, y: Any, *, op: str, form: str) -> Any:
    if form == "in place":
        made = nl.copy(x)
        for name, change in (
            ("add", made.__iadd__),
            ("subtract", made.__isub__),
            ("multiply", made.__imul__),
        ):
            if name == op:
                return change(y)
        form = "function"
    if form == "operator" and op in ("add", "subtract", "multiply"):
        return {"add": lambda: x + y, "subtract": lambda: x - y, "multiply": lambda: x * y}[op]()
    if form == "instruction":
        return nisa.tensor_tensor(x, y, getattr(np, op), mask=t.mask)
    mask = t.mask if form == "masked" else None
    return getattr(nl, op)(x, y, dtype=nl.float32, mask=mask)


def _draw_lanes(rng: Draw, values: list[Value]) -> Any:
    x, y = _pick(rng, values, bound=1 << 10), _pick(rng, values, lane=True, bound=1 << 10)
    if x is None or y is None:
        return None
    ops = rng.choice(_ARITHMETIC), rng.choice(_ARITHMETIC)
    number = float(rng.randint(-3, 3))
    bound = _binary_bound(ops[0], values[x].bound, 3)
    bound = _binary_bound(ops[1], bound, values[y].bound)
    attributes = {"ops": ops, "number": number, "reverse": rng.random() < 0.5}
    return (x, y), attributes, Value("float32", bound)


def _lanes(t: Tile, x: Any, y: Any, *, ops: Any, number: float, reverse: bool) -> Any:
    return nisa.tensor_scalar(
        x, getattr(np, ops[0]), number, reverse0=reverse, op1=getattr(nl, ops[1]), operand1=y,
        mask=t.mask,
    )  # fmt: skip


def _lanes_meaning(_: Tile, x: Array, y: Array, *, ops: Any, number: float, reverse: bool) -> Array:
    first, second = (getattr(np, op) for op in ops)
    one = np.float32(number)
    return np.asarray(second(first(one, x) if reverse else first(x, one), y))


def _draw_three(rng: Draw, values: list[Value]) -> Any:
    x, y = _pick(rng, values, bound=1 << 10), _pick(rng, values, bound=1 << 10)
    if x is None or y is None:
        return None
    ops, number = (rng.choice(_ARITHMETIC), rng.choice(_ARITHMETIC)), rng.randint(-3, 3)
    bound = _binary_bound(ops[1], _binary_bound(ops[0], values[x].bound, 3), values[y].bound)
    return (x, y), {"ops": ops, "number": float(number)}, Value("float32", bound)


def _draw_activation(rng: Draw, values: list[Value]) -> Any:
    x, y = _pick(rng, values), _pick(rng, values, lane=True)
    if x is None or y is None:
        return None
    bound = 2 * values[x].bound + values[y].bound
    return (x, y), {}, Value("float32", bound)


def _draw_where(rng: Draw, values: list[Value]) -> Any:
    x, y, z = (_pick(rng, values) for _ in range(3))
    if x is None or y is None or z is None:
        return None
    number = float(rng.randint(-9, 9))
    numbers = rng.random() < 0.5
    bound = max(values[x].bound, 9 if numbers else values[z].bound)
    attributes = {"op": rng.choice(["less", "greater_equal", "equal"]), "number": number}
    return (x, y, x if numbers else z), {**attributes, "numbers": numbers}, Value("float32", bound)


# --- masks ---------------------------------------------------------------------------------------

# Conditions of numbers of rows and columns, as text that both nl and NumPy understand.
CONDITIONS = (
    "p < 17", "p >= 5", "f < 3", "f >= 2", "p - f >= 0", "p + f < 12", "p % 2 == 0", "f % 3 == 1",
    "p < 0", "f >= 0", "2 * p - 3 * f + 4 > 0", "10 - f >= 0",
)  # fmt: skip


def _condition(t: Tile, texts: tuple[str, ...]) -> Any:
    found = None
    for text in texts:
        one = eval(text, {"p": t.p, "f": t.f})  # noqa: S307 (the texts above)
        found = one if found is None else found & one
    return found


def _draw_overlay(rng: Draw, values: list[Value]) -> Any:
    x, y = _pick(rng, values), _pick(rng, values)
    if x is None or y is None:
        return None
    texts = tuple(rng.sample(CONDITIONS, rng.randint(1, 2)))
    number = float(rng.randint(-3, 3))
    bound = max(values[x].bound, values[y].bound + 3)
    how = rng.choice(["scalar", "tensor", "copy", "activation", "memory"])
    return (x, y), {"texts": texts, "number": number, "how": how}, Value("float32", bound)


def _overlay(t: Tile, x: Any, y: Any, *, texts: Any, number: float, how: str) -> Any:
    """Write to the part of a copy that a mask leaves."""
    made = nl.copy(x)
    mask = _condition(t, texts)
    mask = mask if t.mask is None else mask & t.mask
    if how == "scalar":
        made[...] = nisa.tensor_scalar(y, np.add, number, mask=mask)
    elif how == "tensor":
        ones = nl.full(t.shape, number, dtype=nl.float32)
        made[...] = nl.add(y, ones, mask=mask)
    elif how == "activation":
        made[...] = nisa.activation(nl.relu, y, mask=mask)
    elif how == "copy":
        made[...] = nl.copy(y, mask=mask)
    else:
        hbm = t.scratch["float32"]
        nl.store(hbm[t.at], x, mask=t.mask)
        nl.store(hbm[t.at], y, mask=mask)
        return nl.load(hbm[t.at], mask=t.mask)
    return made


def _overlay_meaning(t: Tile, x: Array, y: Array, *, texts: Any, number: float, how: str) -> Array:
    mask = _condition(t, texts)
    new = y + np.float32(number) if how in ("scalar", "tensor") else y
    return np.where(mask, np.maximum(y, 0) if how == "activation" else new, x)


# --- reductions ----------------------------------------------------------------------------------

_REDUCED: dict[str, Any] = {"sum": np.sum, "max": np.max, "min": np.min}


def _draw_reduction(rng: Draw, values: list[Value]) -> Any:
    x = _pick(rng, values, bound=1 << 12)
    if x is None:
        return None
    op = rng.choice(sorted(_REDUCED))
    bound = values[x].bound * (64 if op == "sum" else 1)
    negate = rng.random() < 0.3
    return (x,), {"op": op, "negate": negate}, Value("float32", bound, lane=True)


def _reduction(t: Tile, x: Any, *, op: str, negate: bool) -> Any:
    if negate:
        name = {"sum": np.add, "max": np.max, "min": np.minimum}[op]
        return nisa.tensor_reduce(name, x, axis=(1,), negate=True, keepdims=True, mask=t.mask)
    return getattr(nl, op)(x, axis=[1], keepdims=True, mask=t.mask)


def _reduction_meaning(_: Tile, x: Array, *, op: str, negate: bool) -> Array:
    made = _REDUCED[op](x, axis=1, keepdims=True)
    return np.asarray(-made if negate else made)


def _activation_reduce(t: Tile, x: Any) -> Any:
    made = nl.zeros((t.shape[0], 1), dtype=nl.float32)
    nisa.activation_reduce(nl.relu, x, reduce_op=np.add, reduce_res=made, mask=t.mask)
    return made


def _scan(_: Tile, x: Any, y: Any) -> Any:
    return nisa.tensor_tensor_scan(x, y, 0.0, np.add, np.maximum)


def _scan_meaning(_: Tile, x: Array, y: Array) -> Array:
    made, state = np.empty_like(x), np.zeros(len(x), np.float32)
    for k in range(x.shape[1]):
        made[:, k] = state = np.maximum(x[:, k] + state, y[:, k])
    return made


def _draw_pair(bound: int, result: Callable[[int, int], int]) -> Any:
    def draw(rng: Draw, values: list[Value]) -> Any:
        x, y = _pick(rng, values, bound=bound), _pick(rng, values, bound=bound)
        if x is None or y is None:
            return None
        return (x, y), {}, Value("float32", result(values[x].bound, values[y].bound))

    return draw


# --- products ------------------------------------------------------------------------------------


def _gram(t: Tile, x: Any, y: Any) -> Any:
    """``x @ (x.T @ y)``: over the rows that there are, then over the columns that there are."""
    inner = nisa.nc_matmul(x, y, mask=t.height)
    turned = nisa.nc_transpose(x)
    return nisa.nc_matmul(turned, inner, mask=t.depth)


def _transposed(t: Tile, x: Any) -> Any:
    tile = nl.ndarray((t.shape[1], t.shape[0]), dtype=nl.float32)
    tile[...] = nisa.nc_transpose(x)
    return nl.transpose(tile)


# --- memories ------------------------------------------------------------------------------------


def _moved(t: Tile, x: Any, *, to: str, kind: str) -> Any:
    if to == "psum":
        tile = nl.ndarray(t.shape, dtype=x.dtype, buffer=nl.psum)
        tile[...] = nl.copy(x)  # also what a mask has left undefined in x
        return tile
    if to == "copy":
        return nisa.tensor_copy(x, engine=nisa.gpsimd_engine)
    hbm = t.scratch[kind]
    nl.store(hbm[t.at], x, mask=t.mask)
    return nl.load(hbm[t.at], mask=t.mask)


def _draw_moved(rng: Draw, values: list[Value]) -> Any:
    x = _pick(rng, values, kinds=tuple(KINDS))
    if x is None:
        return None
    attributes = {"to": rng.choice(["psum", "copy", "hbm"]), "kind": values[x].kind}
    return (x,), attributes, values[x]


def _draw_cast(rng: Draw, values: list[Value]) -> Any:
    x = _pick(rng, values, kinds=tuple(KINDS))
    if x is None:
        return None
    kinds = [k for k in KINDS if k != "bfloat16" or values[x].bound <= _EXACT]
    kind = rng.choice(kinds)
    return (x,), {"kind": kind}, values[x]._replace(kind=kind)


def _draw_input(rng: Draw, __: list[Value]) -> Any:
    name = rng.choice(["a", "b", "h", "n"])
    kind = {"h": "bfloat16", "n": "int32"}.get(name, "float32")
    return (), {"name": name}, Value(kind, 8)


def _draw_index(rng: Draw, __: list[Value]) -> Any:
    steps = rng.randint(-3, 3), rng.randint(-3, 3), rng.randint(-5, 5)
    return (), {"steps": steps, "kind": rng.choice(["float32", "int32"])}, Value("float32", 2000)


def _iota(t: Tile, *, steps: Any, kind: str) -> Any:
    made = nisa.iota(steps[0] * t.p + steps[1] * t.f + steps[2], dtype=KINDS[kind])
    return nl.copy(made, dtype=nl.float32)


def _draw_select(rng: Draw, values: list[Value]) -> Any:
    x = _pick(rng, values)
    if x is None:
        return None
    steps = rng.randint(-2, 2), rng.randint(1, 2), rng.randint(-5, 5)
    return (x,), {"steps": steps}, Value("float32", max(values[x].bound, 3))


OPERATIONS: dict[str, Operation] = {
    "input": Operation(
        _draw_input,
        lambda t, *, name: nl.load(t.arrays[name][t.at], mask=t.mask),
        lambda t, *, name: t.arrays[name][t.at],
    ),
    "gathered": Operation(
        lambda _, __: ((), {}, Value("float32", 8)),
        lambda t: nl.load(
            t.arrays["table"][nl.load(t.arrays["rows"][t.rows], mask=t.height), t.f],
            mask=t.mask if t.mask is None else t.f < t.arrays["table"].shape[1],
        ),
        lambda t: t.arrays["table"][t.arrays["rows"][t.rows][:, 0]][:, t.f[0]],
    ),
    "iota": Operation(
        _draw_index, _iota,
        lambda t, *, steps, **_: (steps[0] * t.p + steps[1] * t.f + steps[2]).astype(np.float32),
    ),
    "cast": Operation(
        _draw_cast,
        lambda _, x, *, kind: nl.copy(x, dtype=KINDS[kind]),
        lambda _, x, *, kind: x.astype(KINDS[kind]),
    ),
    "moved": Operation(_draw_moved, _moved, lambda _, x, **__: x),
    "binary": Operation(
        _draw_binary, _binary,
        lambda _, x, y, *, op, **__: getattr(np, op)(x.astype(np.float32), y.astype(np.float32)),
    ),
    "negative": Operation(
        _unary(_same), lambda _, x: -x, lambda _, x: -x,
    ),
    "relu": Operation(
        _unary(_same, masked=(False, True)),
        lambda t, x, *, masked: nl.relu(x, mask=t.mask if masked else None),
        lambda _, x, **__: np.maximum(x, 0),
    ),
    "square": Operation(
        _unary(lambda v: Value("float32", v.bound**2), bound=1 << 9),
        lambda _, x: nl.square(x), lambda _, x: x * x,
    ),
    "sign": Operation(
        _unary(lambda _: Value("float32", 1)),
        lambda _, x: nl.sign(x), lambda _, x: np.sign(x),
    ),
    "lanes": Operation(_draw_lanes, _lanes, _lanes_meaning),
    "three": Operation(
        _draw_three,
        lambda t, x, y, *, ops, number: nisa.scalar_tensor_tensor(
            data=x, op0=getattr(np, ops[0]), operand0=number, op1=getattr(np, ops[1]), operand1=y,
            mask=t.mask,
        ),
        lambda _, x, y, *, ops, number: getattr(np, ops[1])(
            getattr(np, ops[0])(x, np.float32(number)), y
        ),
    ),
    "activation": Operation(
        _draw_activation,
        lambda t, x, y: nisa.activation(nl.relu, x, scale=2.0, bias=y, mask=t.mask),
        lambda _, x, y: np.maximum(x * np.float32(2) + y, 0),
    ),
    "where": Operation(
        _draw_where,
        lambda _, x, y, z, *, op, number, numbers: nl.where(
            getattr(nl, op)(x, y), x, number if numbers else z
        ),
        lambda _, x, y, z, *, op, number, numbers: np.where(
            getattr(np, op)(x, y), x, np.float32(number) if numbers else z
        ),
    ),
    "select": Operation(
        _draw_select,
        lambda t, x, *, steps: nisa.affine_select(
            steps[0] * t.p + steps[1] * t.f + steps[2] >= 0, x, -3.0
        ),
        lambda t, x, *, steps: np.where(
            steps[0] * t.p + steps[1] * t.f + steps[2] >= 0, x, np.float32(-3)
        ),
    ),
    "overlay": Operation(_draw_overlay, _overlay, _overlay_meaning),
    "reduction": Operation(_draw_reduction, _reduction, _reduction_meaning),
    "activation and sum": Operation(
        _unary(lambda v: Value("float32", v.bound * 64, lane=True), bound=1 << 12),
        _activation_reduce,
        lambda _, x: np.maximum(x, 0).sum(axis=1, keepdims=True),
    ),
    "scan": Operation(
        _draw_pair(1 << 12, lambda x, y: 65 * x + y), _scan, _scan_meaning
    ),
    "gram": Operation(
        _draw_pair(8, lambda x, y: 128 * 64 * x * x * y),
        _gram,
        lambda _, x, y: (x.astype(float) @ (x.astype(float).T @ y)).astype(np.float32),
    ),
    "transposed": Operation(_unary(_same), _transposed, lambda _, x: x),
}  # fmt: skip


def clamp(number: int) -> tuple[Callable[..., Any], Callable[..., Array]]:
    """Return what limits a value to numbers from -number to number, for nl and in NumPy."""
    return (
        lambda x: nl.minimum(nl.maximum(x, -float(number)), float(number)),
        lambda x: np.clip(x, -number, number),
    )
