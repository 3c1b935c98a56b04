"""Every sample of the operator table, compiled and run, against the reference.

Samples of an operator are joined into one graph, which keeps the number of compilations small.
"""

from collections import defaultdict

import numpy as np
import pytest
import torch

from neuronxcc.compiler import compile_graph
from neuronxcc.ir import DType, Graph, Group, Node, Op, TensorType, parameter
from neuronxcc.ir.arithmetic import arithmetic
from neuronxcc.ir.reference import evaluate
from neuronxcc.options import Options
from tests.compiler.ir_samples import Sample, samples
from torch_neuronx.program.dtypes import TO_TORCH, from_numpy, to_numpy
from torch_neuronx.program.executable import Executable

# Distance in units of the last place that our functions may have from the reference, which is
# rounded once (except in float64). lgamma and digamma cancel near their zeros, where ulp are tiny.
ULP = defaultdict(lambda: 4.0, {Op.LGAMMA: 64.0, Op.DIGAMMA: 64.0})
SUMS = {Op.DOT_GENERAL, Op.CONVOLUTION, Op.REDUCE, Op.REDUCE_WINDOW, Op.CUMULATIVE, Op.SCATTER}
SUMS |= {Op.SELECT_AND_SCATTER}


def maker(sample: Sample) -> Op:
    node = sample.graph.results[0]
    return node.srcs[0].op if node.op is Op.GET else node.op


def runs(sample: Sample) -> bool:
    """PyTorch has no type of float8 that is IEEE-like; collectives need several cores."""
    types = [t for node in sample.graph.nodes() for t in node.types]
    return all(t.dtype in TO_TORCH for t in types) and maker(sample) not in Group.COLLECTIVE


SAMPLES: dict[Op, list[Sample]] = {}
for _sample in samples():
    if runs(_sample):
        SAMPLES.setdefault(maker(_sample), []).append(_sample)


def joined(many: list[Sample]) -> Graph:
    """One graph with the parameters and results of all."""
    params: list[Node] = []
    results: list[Node] = []
    for sample in many:
        new: dict[Node, Node] = {}
        for param in sample.graph.params:
            new[param] = parameter(len(params), param.type)
            params.append(new[param])
        for node in sample.graph.nodes():
            if node not in new:
                new[node] = node.replace(new[src] for src in node.srcs)
        results.extend(new[node] for node in sample.graph.results)
    return Graph("samples", tuple(params), tuple(results))


def ulps(found: np.ndarray, wanted: np.ndarray, dtype: DType) -> float:
    """The largest distance, in ulp of the wanted value; infinite where only one is finite."""
    bits = {DType.BF16: 8, DType.F16: 11, DType.F32: 24, DType.F64: 53}.get(dtype, 4)
    least = {DType.BF16: -133, DType.F16: -24, DType.F32: -149, DType.F64: -1074}.get(dtype, -16)
    a, b = (arithmetic(x).astype(np.float64) for x in (found, wanted))
    with np.errstate(all="ignore"):
        exponent = np.frexp(np.where(np.isfinite(b), b, 1.0))[1]
        unit = np.ldexp(1.0, np.maximum(exponent - bits, least))
        distance = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b) / unit)
    return float(np.nan_to_num(distance, nan=np.inf).max(initial=0.0))


def check(op: Op, found: np.ndarray, wanted: np.ndarray, type_: TensorType) -> None:
    if type_.dtype.is_complex:
        # Parts may cancel: the measure is the size of the whole number. What is not finite is not
        # compared: C leaves open which part of an infinite complex number is NaN.
        finite = np.isfinite(found) & np.isfinite(wanted)
        eps = 64 * np.finfo(type_.dtype.numpy).eps
        distance = np.abs(found[finite] - wanted[finite])
        assert (distance <= eps * np.maximum(np.abs(wanted[finite]), 1e-30)).all()
    elif not type_.dtype.is_float:
        np.testing.assert_array_equal(found, wanted)
    elif op in SUMS:
        # At most 64 terms of a size of at most 32, in float32 (or wider), rounded to the type.
        rounding = 2.0 ** -{DType.BF16: 8, DType.F16: 11}.get(type_.dtype, 24)
        allowed = 64 * 32 * 2.0**-24 + rounding * np.abs(wanted.astype(np.float64))
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        with np.errstate(invalid="ignore"):
            distance = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
        assert (same | (distance <= allowed)).all()
    else:
        assert ulps(found, wanted, type_.dtype) <= ULP[op]


@pytest.mark.parametrize("op", SAMPLES, ids=lambda op: op.value)
def test_samples(op: Op) -> None:
    graph = joined(SAMPLES[op])
    args = [arg for sample in SAMPLES[op] for arg in sample.args]
    wanted = evaluate(graph, args)
    executable = Executable(compile_graph(graph, Options()), torch.device("neuron:0"))
    tensors = [
        from_numpy(arg, TO_TORCH[p.dtype]).to("neuron")
        for arg, p in zip(args, graph.params, strict=True)
    ]
    outputs = executable(tensors)
    for node, output, value in zip(graph.results, outputs, wanted, strict=True):
        check(op, to_numpy(output.cpu()), value, node.type)
