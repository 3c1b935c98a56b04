"""Sample graphs of every operator, with arguments: what conformance tests run.

Values are drawn with a fixed seed, so samples are the same in every process.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neuronxcc.ir import build, indexing
from neuronxcc.ir.dtypes import COMPLEX, DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.meaning.elementwise import cast
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Group, Op
from neuronxcc.ir.shapes import CUMULATIVE_KINDS, REDUCE_KINDS, SCATTER_KINDS, ShapeError

SPECIAL = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, 3e38, -0.5, 2.5)


@dataclass(frozen=True, slots=True)
class Sample:
    """A graph and arguments for it. `name` says what is particular."""

    name: str
    graph: Graph
    args: tuple[np.ndarray, ...]


def values(
    type_: TensorType, rng: np.random.Generator, *, special: bool = True, low: int = -9
) -> np.ndarray:
    """An array of that type: floats about 1 with special values strewn in, small integers.

    Args:
        type_: What to make.
        rng: Where numbers come from.
        special: Strew in zeros, infinities, NaN, denormals and (integers) the extremes.
        low: Least ordinary integer; the greatest is 9.
    """
    dtype, shape = type_.dtype, type_.shape
    if dtype is DType.PRED:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_integer:
        least = max(low, 0) if dtype.is_unsigned else low
        array = rng.integers(least, 10, shape).astype(dtype.numpy)
        if special and type_.size > 3:
            info = np.iinfo(dtype.numpy)
            array.reshape(-1)[:2] = info.min, info.max
        return array
    drawn = rng.normal(scale=2.0, size=shape)
    if special:
        chosen = rng.random(shape) < 0.3
        drawn = np.where(chosen, rng.choice(SPECIAL, shape), drawn)
    with np.errstate(all="ignore"):
        if dtype in COMPLEX:
            return (drawn + 1j * rng.normal(size=shape)).astype(dtype.numpy)
        return cast(np.asarray(drawn), dtype)


def _sample(
    name: str,
    types: Sequence[TensorType],
    make: Callable[..., Node],
    *,
    special: bool = True,
    low: int = -9,
) -> Sample:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    params = tuple(parameter(i, t) for i, t in enumerate(types))
    outputs = build.results(make(*params))
    args = tuple(values(t, rng, special=special, low=low) for t in types)
    return Sample(name, Graph(name, params, outputs), args)


def _accepted(op: Op, count: int, shape: tuple[int, ...], **attrs: object) -> Iterator[Sample]:
    """A sample for every data type that the operator takes."""
    for dtype in DType:
        types = [TensorType(dtype, shape)] * count

        def make(*srcs: Node) -> Node:
            return build.make(op, srcs, **attrs)

        try:
            yield _sample(f"{op.value} {dtype.value}", types, make)
        except ShapeError:
            continue


F32 = DType.F32
KINDS_OF_DOT = (F32, DType.BF16, DType.F16, DType.F8E4M3, DType.S8, DType.S32, DType.C64, DType.F64)


def _t(dtype: DType, *shape: int) -> TensorType:
    return TensorType(dtype, shape)


def _leaves() -> Iterator[Sample]:
    yield _sample("parameter", [_t(F32, 3)], lambda x: x)
    for dtype in (F32, DType.BF16, DType.S32, DType.PRED):
        array = np.array([[1, 0, 1], [0, 1, 1]]).astype(dtype.numpy)
        yield _sample(f"constant {dtype}", [], lambda a=array: build.constant(a))
        if dtype is not DType.PRED:
            yield _sample(f"iota {dtype}", [], lambda d=dtype: build.iota(d, (3, 4), 1))


def _elementwise() -> Iterator[Sample]:
    for op in Op:
        if op in Group.UNARY or op in (Op.IS_FINITE, Op.IS_NAN, Op.REAL, Op.IMAG):
            yield from _accepted(op, 1, (3, 5))
        elif op in Group.BINARY or op is Op.COMPLEX:
            yield from _accepted(op, 2, (3, 5))
    yield from _accepted(Op.CLAMP, 3, (3, 5))
    for direction in ("EQ", "NE", "LT", "LE", "GT", "GE"):
        yield from _accepted(Op.COMPARE, 2, (7,), direction=direction)
    for dtype in DType:
        types = [_t(DType.PRED, 3, 5), _t(dtype, 3, 5), _t(dtype, 3, 5)]
        yield _sample(f"select {dtype}", types, build.select)
        for target in DType:
            if target is not dtype:
                name = f"convert {dtype} {target}"
                yield _sample(name, [_t(dtype, 9)], lambda x, t=target: build.convert(x, t))
    for source, target in ((F32, DType.S32), (DType.BF16, DType.U16), (DType.S64, DType.F64)):
        name = f"bitcast_convert {source} {target}"
        yield _sample(name, [_t(source, 9)], lambda x, t=target: build.bitcast_convert(x, t))
    for exponent, mantissa in ((8, 10), (5, 10), (4, 3)):
        yield _sample(
            f"reduce_precision {exponent} {mantissa}",
            [_t(F32, 64)],
            lambda x, e=exponent, m=mantissa: build.reduce_precision(x, e, m),
        )


def _movement() -> Iterator[Sample]:
    x, indices = _t(F32, 3, 4, 5), _t(DType.S32, 2, 3)
    scalar = _t(DType.S64)
    cases: list[tuple[str, list[TensorType], Callable[..., Node]]] = [
        (
            "broadcast_in_dim",
            [_t(F32, 3, 1)],
            lambda p: build.broadcast_in_dim(p, (2, 3, 4), (1, 2)),
        ),
        ("reshape", [x], lambda p: build.reshape(p, (6, 10))),
        ("transpose", [x], lambda p: build.transpose(p, (2, 0, 1))),
        ("slice", [x], lambda p: build.slice_(p, (0, 1, 1), (3, 4, 5), (2, 1, 3))),
        ("pad", [x], lambda p: build.pad(p, 7.0, (1, -1, 0), (0, 2, -2), (0, 1, 0))),
        ("concatenate", [x, _t(F32, 3, 1, 5)], lambda p, q: build.concatenate([p, q], 1)),
        ("reverse", [x], lambda p: build.reverse(p, (0, 2))),
        ("dynamic_slice", [x, scalar], lambda p, i: build.dynamic_slice(p, [i, 1, i], (2, 2, 3))),
        (
            "dynamic_update_slice",
            [x, _t(F32, 2, 2, 3), scalar],
            lambda p, u, i: build.dynamic_update_slice(p, u, [i, 1, i]),
        ),
        ("gather take", [x, indices], lambda p, i: indexing.take(p, i, 1)),
        (
            "gather along",
            [x, _t(DType.S64, 3, 2, 5)],
            lambda p, i: indexing.take_along(p, i, 1),
        ),
        ("gather nd", [x, _t(DType.S32, 4, 2)], lambda p, i: indexing.take_nd(p, i, (2, 0))),
    ]
    for name, types, make in cases:
        yield _sample(name, types, make)
    for kind in SCATTER_KINDS:
        yield _sample(
            f"scatter {kind}",
            [x, indices, _t(F32, 3, 2, 3, 5)],
            lambda p, i, u, k=kind: indexing.put(p, i, u, 1, k),
            special=False,
            low=-1,
        )


def _contractions() -> Iterator[Sample]:
    for dtype in KINDS_OF_DOT:
        yield _sample(
            f"dot_general {dtype}", [_t(dtype, 2, 3, 4), _t(dtype, 2, 4, 5)], build.matmul,
            special=False,
        )  # fmt: skip
    for dtype in (F32, DType.BF16):
        image, weights = _t(dtype, 2, 4, 6, 7), _t(dtype, 6, 2, 3, 3)
        yield _sample(
            f"convolution {dtype}",
            [image, weights],
            lambda x, w: build.convolution(x, w, strides=2, low=1, high=1, feature_group_count=2),
            special=False,
        )


def _reductions() -> Iterator[Sample]:
    for kind in REDUCE_KINDS:
        dtype = DType.S32 if kind in ("and", "or", "xor") else F32
        special = kind in ("min", "max")
        yield _sample(
            f"reduce {kind}", [_t(dtype, 3, 4, 5)], lambda x, k=kind: build.reduce(x, k, (0, 2)),
            special=special,
        )  # fmt: skip
    for kind in ("min", "max"):
        yield _sample(
            f"arg_reduce {kind}", [_t(F32, 4, 6)], lambda x, k=kind: build.arg_reduce(x, k, 1)
        )
    for kind in ("add", "max"):
        yield _sample(
            f"reduce_window {kind}",
            [_t(F32, 2, 7, 6)],
            lambda x, k=kind: build.reduce_window(
                x, k, (1, 3, 2), strides=(1, 2, 1), low=(0, 1, 0), high=(0, 1, 1)
            ),
            special=kind == "max",
        )
    yield _sample(
        "select_and_scatter",
        [_t(F32, 2, 6, 6), _t(F32, 2, 3, 3)],
        lambda x, s: build.select_and_scatter(x, s, (1, 2, 2), strides=(1, 2, 2)),
        special=False,
    )
    for kind in CUMULATIVE_KINDS:
        yield _sample(
            f"cumulative {kind}", [_t(F32, 3, 7)], lambda x, k=kind: build.cumulative(x, k, 1),
            special=False,
        )  # fmt: skip
    pair = [_t(F32, 3, 8), _t(DType.S64, 3, 8)]
    for descending in (False, True):
        yield _sample(
            f"sort {descending}",
            pair,
            lambda a, b, d=descending: build.sort([a, b], 1, descending=d),
        )
        yield _sample(
            f"topk {descending}",
            [_t(F32, 3, 8)],
            lambda x, d=descending: build.topk(x, 3, largest=d),
        )


def _control() -> Iterator[Sample]:
    vector = _t(F32, 4)
    x, n = parameter(0, vector), parameter(1, _t(DType.S64))
    twice = Graph("twice", (x,), (build.add(x, x),))
    square = Graph("square", (x,), (build.multiply(x, x),))
    cond = Graph("more", (x, n), (build.less(n, 3),))
    body = Graph("step", (x, n), (build.add(x, x), build.add(n, 1)))
    yield _sample("call", [vector], lambda p: build.call(twice, [p]))
    yield _sample(
        "conditional",
        [_t(DType.PRED), vector],
        lambda c, p: build.conditional(c, [twice, square], [p]),
    )
    yield _sample(
        "while", [vector], lambda p: build.while_(cond, body, [p, build.constant(0, DType.S64)])
    )


def _collectives() -> Iterator[Sample]:
    """Of one rank, so that they run alone."""
    x, group = _t(F32, 4, 2), [(0,)]
    yield _sample("all_reduce", [x], lambda p: build.all_reduce(p, "add", group))
    yield _sample("all_gather", [x], lambda p: build.all_gather(p, 0, group))
    yield _sample("reduce_scatter", [x], lambda p: build.reduce_scatter(p, "add", 0, group))
    yield _sample("all_reduce avg", [x], lambda p: build.all_reduce(p, "avg", group, channel=1))
    yield _sample("collective_broadcast", [x], lambda p: build.collective_broadcast(p, group))
    yield _sample(
        "all_to_all rows", [x], lambda p: build.all_to_all(p, 0, 0, group, send=[4], receive=[4])
    )
    yield _sample("all_to_all", [x], lambda p: build.all_to_all(p, 0, 1, group))
    yield _sample("collective_permute", [x], lambda p: build.collective_permute(p, [(0, 0)]))


def samples() -> Iterator[Sample]:
    """Samples of all operators but custom and host calls, some hundreds of small graphs."""
    for family in (
        _leaves, _elementwise, _movement, _contractions, _reductions, _control, _collectives,
    ):  # fmt: skip
        yield from family()


def samples_of(op: Op) -> list[Sample]:
    """The samples whose result is made by that operator."""
    return list(_by_op().get(op, ()))


@functools.cache
def _by_op() -> dict[Op, list[Sample]]:
    grouped: dict[Op, list[Sample]] = {}
    for sample in samples():
        node = sample.graph.results[0]
        node = node.srcs[0] if node.op is Op.GET else node
        grouped.setdefault(node.op, []).append(sample)
    return grouped
