"""Operands that are constants: of types that no engine has, and of every operator."""

from __future__ import annotations

import numpy as np
import pytest

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.reference import evaluate
from nki.device import lower

from .device_tools import roundings
from .test_device_operators import EXCLUDED, FLOORS, MISSING, MORE, ROUNDINGS, SAMPLES, op_of


def counted(size: int, dtype: DType = DType.F64) -> Node:
    """As PyTorch counts for `arange`: in float64, then what was asked for."""
    places = build.multiply(build.iota(dtype, (size,), 0), 0.1)
    return build.add(places, 0.05)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.S32, DType.S64])
@pytest.mark.parametrize("passes", [True, False])
def test_what_is_counted_in_float64(dtype: DType, *, passes: bool) -> None:
    """It has more digits than float32 could give, and is an operand like others."""
    x = parameter(0, TensorType(dtype, (4, 1001)))
    line = build.convert(counted(1001), dtype)
    graph = Graph("test", (x,), (build.add(x, build.broadcast_to(line, x.shape)), line))
    program = lower(graph, "trn2", passes=passes)
    assert not program.missing
    values = np.ones(x.shape, dtype.numpy)
    for got, wanted in zip(
        program.run([values], by="reference"), evaluate(graph, [values]), strict=True
    ):
        assert roundings(got, wanted) <= 1


def test_what_depends_on_a_run_is_not_computed_before() -> None:
    x = parameter(0, TensorType(DType.F32, (100,)))
    sums = build.add(build.convert(x, DType.F64), counted(100))
    program = lower(Graph("test", (x,), (build.convert(sums, DType.F32),)), "trn2")
    assert {section.code for section in program.missing} == {"NCC_ESPP004"}
    assert "no engine computes with f64" in program.missing[0].reason


def test_a_constant_that_stays_in_float64_has_no_form() -> None:
    graph = Graph("test", (), (counted(100),))
    program = lower(graph, "trn2", passes=False)
    assert program.missing
    np.testing.assert_array_equal(program.run([])[0], evaluate(graph, [])[0])


def test_constants_of_many_elements_are_not_computed_before() -> None:
    size = (1 << 22) + 1
    graph = Graph("test", (), (build.convert(counted(size), DType.F32),))
    assert lower(graph, "trn2", passes=False).missing


@pytest.mark.every(3)
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("same", [True, False])
def test_an_operator_of_constants(name: str, *, same: bool) -> None:
    """Every operand is a constant: one number everywhere, or several."""
    sample = SAMPLES[name]
    fills = [np.full_like(a, a.reshape(-1)[0]) if a.size else a for a in sample.args]
    arrays = fills if same else list(sample.args)
    results = sample.graph.apply([build.constant(np.asarray(a)) for a in arrays])
    graph = Graph("test", (), tuple(results))
    program = lower(graph, "trn2", passes=False)
    op = op_of(sample)
    if op in MISSING or program.missing:
        # Operators that have instructions have them of constants, too, or say why not.
        assert all(section.reason for section in program.missing)
        return
    if name in EXCLUDED:
        pytest.skip(EXCLUDED[name])
    base = name.split(" ", maxsplit=1)[0]
    most = MORE.get(name, MORE.get(base, ROUNDINGS))
    for got, wanted in zip(program.run([], by="reference"), evaluate(graph, []), strict=True):
        assert roundings(got, wanted, FLOORS.get(base, 0.0)) <= most
