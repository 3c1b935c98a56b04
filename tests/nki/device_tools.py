"""Comparing device programs with the meaning of the tensor IR."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.reference import evaluate
from neuronxcc.options import Options
from nki.device import DeviceProgram, lower
from nki.device.calls import without_calls


def compiled(
    graph: Graph, target: str = "trn2", *, passes: bool = False, **options: object
) -> DeviceProgram:
    """The device program of a graph, all of which has instructions."""
    program = lower(graph, target, Options(target=target, **options), passes=passes)  # type: ignore[arg-type]
    assert not program.missing, [section.reason for section in program.missing]
    return program


def roundings(got: np.ndarray, wanted: np.ndarray, floor: float = 0.0) -> float:
    """How many roundings of its type a result is off at the most.

    Args:
        got: the result.
        wanted: what it should be.
        floor: numbers below this are taken to be as large.
    """
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    if not got.size:
        return 0.0
    if wanted.dtype.kind in "iub":
        return float("inf") if (got != wanted).any() else 0.0
    facts = ml_dtypes.finfo(wanted.dtype)  # type: ignore[no-untyped-call]
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(all="ignore"):
        least = np.maximum(np.abs(b), max(float(facts.tiny), floor))
        off = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b) / least)
    worst = float(np.where(np.isnan(off), np.inf, off).max())
    return worst / float(facts.eps)


def check(
    graph: Graph,
    args: Sequence[np.ndarray],
    program: DeviceProgram | None = None,
    *,
    most: float = 4,
    floor: float = 0.0,
    by: str = "reference",
) -> DeviceProgram:
    """Run a graph on the device and compare with its meaning; return the program."""
    program = program or compiled(graph)
    wanted = evaluate(without_calls(graph), args)
    for got, expected in zip(program.run(args, by=by), wanted, strict=True):
        assert roundings(got, expected, floor) <= most
    return program


def given_(index: int, dtype: DType, *shape: int) -> Node:
    """A parameter of a graph."""
    return parameter(index, TensorType(dtype, shape))


def graph_of(*results: Node) -> Graph:
    """A graph with the parameters that the results need, in their order."""
    made = Graph("test", (), results)
    params = sorted(
        (node for node in made.nodes() if node.op.value == "parameter"), key=lambda n: n["index"]
    )
    return Graph("test", tuple(params), results)


def numbers(node: Node, seed: int = 0) -> np.ndarray:
    """Values for a parameter: floats about 1, small integers that are not negative."""
    rng = np.random.default_rng(seed + node["index"])
    if node.dtype is DType.PRED:
        return rng.integers(0, 2, node.shape).astype(np.bool_)
    if node.dtype.is_integer:
        return rng.integers(0, 9, node.shape).astype(node.dtype.numpy)
    return rng.normal(size=node.shape).astype(node.dtype.numpy)


def arguments(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    """Values for all parameters."""
    return [numbers(node, seed) for node in graph.params]
