"""Sample graphs of every operator, with arguments: what conformance tests run.

Each is made of a case in the operator's block. Values are drawn with a fixed seed, so samples are
the same in every process.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from neuronxcc.ir import build
from neuronxcc.ir.arithmetic import cast
from neuronxcc.ir.dtypes import COMPLEX, DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import ShapeError
from neuronxcc.ir.operators.definition import Case
from neuronxcc.ir.table import TABLE

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


def _node(op: Op, case: Case, params: tuple[Node, ...]) -> Node:
    if op is Op.PARAMETER:
        return params[0]
    if op is Op.IOTA:
        return build.iota(case.types[0].dtype, case.types[0].shape, **(case.attrs or {}))
    return build.make(op, params, **(case.attrs or {}))


def _sample(op: Op, case: Case) -> Sample:
    name = f"{op.value} {case.name}".strip()
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    types = () if op is Op.IOTA else case.types
    params = tuple(parameter(i, t) for i, t in enumerate(types))
    outputs = build.results(_node(op, case, params))
    args = tuple(values(t, rng, special=case.special, low=case.low) for t in types)
    return Sample(name, Graph(name, params, outputs), args)


def samples_of(op: Op) -> Iterator[Sample]:
    """The samples whose result is made by that operator."""
    for case in TABLE[op].cases():
        try:
            yield _sample(op, case)
        except ShapeError:  # one of `each_type` that the operator does not take
            continue


def in_type(op: Op, given: DType, other: DType) -> Iterator[Sample]:
    """The samples of an operator that have a type, with another one in its place."""
    for case in TABLE[op].cases():
        if given not in {t.dtype for t in case.types}:
            continue
        types = tuple(TensorType(other, t.shape) if t.dtype is given else t for t in case.types)
        attrs = {
            k: other if v is given and op is not Op.CONVERT else v
            for k, v in (case.attrs or {}).items()
        }
        name = case.name.replace(given.value, other.value)
        try:
            yield _sample(op, dataclasses.replace(case, name=name, types=types, attrs=attrs))
        except (ShapeError, TypeError):  # graphs among the attributes are of the old type
            continue


def samples() -> Iterator[Sample]:
    """Samples of all operators but GET and custom and host calls: some hundreds of small graphs."""
    for op in TABLE:
        yield from samples_of(op)
