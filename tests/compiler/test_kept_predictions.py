"""What a compiler leaves in a program about the time that it is predicted to take."""

from __future__ import annotations

import math
from typing import Any

import pytest

from neuronxcc.compiler import compile_graph
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import TensorType
from neuronxcc.neff import NeffInfo, read_neff, write_neff
from neuronxcc.options import Options
from neuronxcc.passes import pipeline
from neuronxcc.perf.graphs import Machine, kept, sections_of
from neuronxcc.perf.graphs.kept import ENTRY, NoPredictionError, predicted_us
from neuronxcc.targets import get_target

X = parameter(0, TensorType(DType.F32, (256, 128)))
Y = parameter(1, TensorType(DType.F32, (128, 64)))
PRODUCT = build.dot_general(X, Y, lhs_contract=(1,), rhs_contract=(0,))
GRAPH = Graph("product", (X, Y), (build.add(PRODUCT, PRODUCT),))


@pytest.mark.parametrize(("target", "lnc"), [("trn1", 1), ("trn2", 1), ("trn2", 2), ("trn3", 2)])
def test_a_neff_has_the_estimate_of_its_graph(target: str, lnc: int) -> None:
    options = Options(target=target, lnc=lnc)
    graph = pipeline.run(GRAPH, options)
    wanted = sum(one.us for one in sections_of(graph, Machine.of(get_target(target), lnc)))
    assert wanted > 0
    program = compile_graph(GRAPH, options)
    assert predicted_us(program.meta) == wanted
    read = read_neff(write_neff(program, NeffInfo("product", target, lnc))).program
    assert predicted_us(read.meta) == wanted


def test_a_prediction_that_raises_fails_no_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a rate is zero")

    monkeypatch.setattr(kept, "sections_of", broken)
    program = compile_graph(GRAPH, Options())
    assert program.steps
    with pytest.raises(NoPredictionError, match="ZeroDivisionError: a rate is zero"):
        predicted_us(program.meta)
    read = read_neff(write_neff(program, NeffInfo("product"))).program
    with pytest.raises(NoPredictionError, match="a rate is zero"):
        predicted_us(read.meta)


@pytest.mark.parametrize(
    "entry",
    [1.5, "x", {}, {"us": 1}, {"us": True}, {"us": -1.0}, {"us": math.nan}, {"us": math.inf},
     {"us": "1.0"}, {"error": 3}, ["us"]],
)  # fmt: skip
def test_a_file_may_say_anything(entry: object) -> None:
    with pytest.raises(NoPredictionError, match="no number where the prediction should be"):
        predicted_us({ENTRY: entry})


def test_what_has_no_entry_says_so() -> None:
    with pytest.raises(NoPredictionError, match="not compiled from a graph, or by an earlier"):
        predicted_us({})
