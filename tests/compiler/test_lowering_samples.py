"""Every sample of the operator table, lowered: the program computes what the operator means."""

from __future__ import annotations

import numpy as np
import pytest

from neuronxcc.ir import DType, Graph, Group, Op, TensorType, build, parameter
from neuronxcc.lowering import lower
from neuronxcc.lowering.errors import LoweringUnsupportedError
from neuronxcc.options import Options
from tests.compiler.ir_samples import Sample, samples_of

from .graphs import same_bits
from .lowering_tools import expected, run

# Called operators add in an order of their own; everything else is equal in all bits.
SUMMED = {Op.CONVOLUTION, Op.CUMULATIVE, Op.DOT_GENERAL}
# ATen's own functions, which round otherwise than NumPy's.
CALLED = {DType.C64: 64, DType.C128: 64}  # units in the last place
UNSUPPORTED = Group.COLLECTIVE

SAMPLES = [
    pytest.param(op, sample, id=f"{op.value}-{sample.name}")
    for op in Op
    if op not in UNSUPPORTED and op not in (Op.CUSTOM_CALL, Op.HOST_CALL)
    for sample in samples_of(op)
]


def bound(graph: Graph, args: tuple[np.ndarray, ...], number: int) -> np.ndarray:
    """What rounding each addition may add up to: n additions, each of eps of the partial sum."""
    positive = [np.abs(a).astype(a.dtype) if a.dtype.kind != "b" else a for a in args]
    magnitude = expected(graph, positive)[number]
    terms = max(a.size for a in args)
    eps = float(np.finfo(magnitude.dtype if magnitude.dtype.kind in "fc" else np.float64).eps)
    return np.asarray(terms * eps * np.abs(magnitude))


def close(a: np.ndarray, b: np.ndarray, limit: np.ndarray) -> bool:
    finite = np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        return bool((same | (finite & (np.abs(a - b) <= limit))).all())


def parts(x: np.ndarray) -> np.ndarray:
    """Real and imaginary parts as a dimension more."""
    return np.stack([x.real, x.imag]) if x.dtype.kind == "c" else x.astype(np.float64)[None]


@pytest.mark.parametrize(("op", "sample"), SAMPLES)
def test_a_sample_is_computed(op: Op, sample: Sample) -> None:
    got = run(sample.graph, sample.args)
    wanted = expected(sample.graph, sample.args)
    for number, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if same_bits(a, b):
            continue
        dtype = sample.graph.results[number].dtype
        assert dtype in CALLED or op in SUMMED, f"{a} is not {b}"
        if op in SUMMED:
            limit = bound(sample.graph, sample.args, number)
        else:
            size = np.where(np.isfinite(b), np.abs(b), np.abs(parts(b)).min(axis=0))
            limit = CALLED[dtype] * np.finfo(b.dtype).eps * size
        assert close(parts(a), parts(b), limit), f"{a} is not {b}"


def test_a_collective_is_refused() -> None:
    x = parameter(0, TensorType(DType.F32, (4,)))
    graph = Graph("g", (x,), (build.all_reduce(x, "add", [(0, 1)]),))
    with pytest.raises(LoweringUnsupportedError) as refused:
        lower(graph, Options())
    assert str(refused.value) == (
        "[NCC_EUOC002] all_reduce(f32[4]) cannot be lowered: it names no process group to do it. "
        "Give it a name, or keep it out of compiled functions"
    )


def test_a_convolution_of_four_spatial_dimensions_is_refused() -> None:
    x = parameter(0, TensorType(DType.F32, (1, 1, 2, 2, 2, 2)))
    graph = Graph("g", (x,), (build.convolution(x, x),))
    with pytest.raises(LoweringUnsupportedError, match=r"^\[NCC_EUOC002\] .*4 spatial dimensions"):
        lower(graph, Options())
