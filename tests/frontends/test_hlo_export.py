"""Tensor IR written as HLO: read back it means the same, and XLA itself takes it."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import ml_dtypes
import numpy as np
import pytest
from jax._src.compiler import get_compile_options
from jaxlib import _jax, xla_client

from neuronxcc.frontends.hlo import HloError, import_hlo
from neuronxcc.frontends.hlo.exporter import export_hlo
from neuronxcc.frontends.hlo.graph_call import GRAPH_TARGET
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, Loc, parameter
from neuronxcc.ir.node import TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.reference import evaluate
from neuronxcc.ir.table import Group
from tests.compiler.ir_samples import Sample, samples_of
from tests.frontends.modules import Computation, module
from tests.frontends.programs import PROGRAMS
from tests.frontends.test_hlo_jax import arguments, compare, imported

#: XLA computes in these as the reference does. Of 8-bit floats it gives NaN where we saturate, of
#: 16-bit ones it may keep more precision on the way.
_LIKE_XLA = frozenset({DType.F32, DType.S32, DType.U8, DType.PRED, DType.S64})


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are equal, of numbers that are none only that they are."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if a.dtype.kind in "biu":
        return bool((a == b).all())
    both = np.asarray(np.isnan(a) & np.isnan(b))
    zeroed = [np.where(both, np.zeros((), x.dtype), x) for x in (a, b)]
    return zeroed[0].tobytes() == zeroed[1].tobytes()


# Written as several operators, each of which rounds.
BY_OTHERS = (Op.NORMAL_CDF, Op.NORMAL_PDF)


@pytest.mark.parametrize("op", [op for op in Op if op not in Group.COLLECTIVE], ids=repr)
def test_what_is_written_is_read_back(op: Op) -> None:
    for sample in samples_of(op):
        graph = import_hlo(export_hlo(sample.graph)).graph
        wanted = evaluate(sample.graph, list(sample.args))
        for want, got in zip(wanted, evaluate(graph, list(sample.args)), strict=True):
            if op in BY_OTHERS:
                scale = 2 * float(ml_dtypes.finfo(want.dtype).eps)  # type: ignore[no-untyped-call]
                a, b = want.astype(np.float64), got.astype(np.float64)
                np.testing.assert_allclose(b, a, rtol=scale, atol=scale, err_msg=sample.name)
            else:
                assert same_bits(want, got), sample.name


def by_xla(content: bytes, args: list[np.ndarray]) -> list[np.ndarray]:
    """Compile and run a module by XLA."""
    device = jax.devices("cpu")[0]
    computation = xla_client.XlaComputation(content)
    text = _jax.mlir.xla_computation_to_mlir_module(computation)
    options = get_compile_options(num_replicas=1, num_partitions=1)
    devices = _jax.DeviceList((device,))
    loaded = device.client.compile_and_load(text, devices, options)
    return [np.asarray(x) for x in loaded.execute([jax.device_put(arg, device) for arg in args])]


def samples_for_xla() -> Iterator[Sample]:
    with jax.enable_x64(new_val=True):
        for op in Op:
            if op in Group.COLLECTIVE:
                continue
            for sample in samples_of(op):
                types = {t.dtype for node in sample.graph.nodes() for t in node.types}
                if types <= _LIKE_XLA and GRAPH_TARGET.encode() not in export_hlo(sample.graph):
                    yield sample


@pytest.mark.slow
def test_xla_takes_what_is_written() -> None:
    ran = set()
    with jax.enable_x64(new_val=True):
        for sample in samples_for_xla():
            # XLA takes numbers below the normal ones for 0 on the CPU.
            tiny = np.finfo(np.float32).tiny
            args = [np.where(abs(a) < tiny, np.copysign(0, a), a) if a.dtype.kind == "f" else a
                    for a in sample.args]  # fmt: skip
            results = by_xla(export_hlo(sample.graph), args)
            wanted = evaluate(sample.graph, args)
            for want, got in zip(wanted, results, strict=True):
                assert (got.dtype, got.shape) == (want.dtype, want.shape), sample.name
                # XLA's functions on the CPU are good to a few roundings of float32.
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=sample.name)
            ran.add(sample.name.split()[0])
    assert len(ran) > 50


@pytest.mark.parametrize("kind", ["min", "max"])
@pytest.mark.parametrize("dtype", [DType.F8E4M3FN, DType.F8E5M2, DType.BF16, DType.S8], ids=repr)
def test_an_extreme_of_any_type_begins_with_its_own_limit(dtype: DType, kind: str) -> None:
    """float8_e4m3fn has no infinity: what was written there was NaN."""
    x = parameter(0, TensorType(dtype, (2, 3)))
    graph = Graph("test", (x,), (build.reduce(x, kind, (1,)),))
    values = np.array([[-7, -2, -3], [5, 3, 9]]).astype(dtype.numpy)
    (got,) = by_xla(export_hlo(graph), [values])
    assert same_bits(evaluate(graph, [values])[0], got)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_survive_the_round_trip(name: str) -> None:
    program = PROGRAMS[name]
    first = imported(program)
    again = import_hlo(export_hlo(first.graph))
    compare(program, evaluate(again.graph, arguments(program)))
    assert export_hlo(first.graph) == export_hlo(imported(program).graph)


def test_names_lines_and_aliases_are_kept() -> None:
    x, y = (parameter(i, TensorType(DType.F32, (3,)), n) for i, n in enumerate(("cache", "new")))
    total = build.add(x, y)
    loc = Loc("model.py", 12, op="aten.add.Tensor")
    graph = Graph("step", (x, y), (total, build.negate(total)), {0: 0}, {total: loc})
    result = import_hlo(export_hlo(graph))
    assert result.graph.aliases == {0: 0}
    assert [p["name"] for p in result.graph.params] == ["cache", "new"]
    (where,) = [w for n, w in result.where.items() if n.op is Op.ADD]
    assert (where.file, where.line, where.op) == ("model.py", 12, "aten.add.Tensor")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is no graph: line 1: no graph"),
        (b"\xff\xfe", "is no graph"),
        (b"graph @g(%x: f32[4]) {\n return %x\n}", "of (f32[3]) holds a graph of (f32[4])"),
        (b"graph @g(%x: f32[3]) {\n return\n}", "has no results"),
        (b"graph @g(%x: f32[3]) {\n %0 = f32[4] negate(%x)\n return %0\n}", "is no graph"),
        (b"graph @g(%x: f32[3]) {\n %0 = f32[3] negate(%x, %x)\n return %0\n}", "is no graph"),
        (b"graph @g(%x: f32[3]) {\n %0 = f32[3] get_tuple_element(%x) {index = 7}\n return %0\n}",
         "is no graph"),
        (b"[" * 100_000, "is no graph"),
    ],
)  # fmt: skip
def test_a_graph_that_is_none_is_refused(text: bytes, said: str) -> None:
    entry = Computation("main", 1)
    x = entry.parameter("f32[3]")
    fields = {"custom_call_target": GRAPH_TARGET, "backend_config": text}
    entry.add("custom-call", "f32[3]", x, **fields)
    with pytest.raises(HloError, match="NCC_EVRF064") as caught:
        import_hlo(module(entry))
    assert said in str(caught.value)
