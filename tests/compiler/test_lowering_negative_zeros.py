"""A sum starts at 0, as PyTorch's does, so that nothing but -0.0 adds up to 0.0, in every form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neuronxcc.ir import DType, Graph, Node, TensorType, build, parameter
from neuronxcc.passes.accumulate import in_own_type
from tests.compiler.graphs import same_bits
from tests.compiler.lowering_tools import expected, run

KINDS = ("add", "mul", "min", "max")
# One element, whole vectors and tails of them.
SHAPES = [
    (1,),
    (2,),
    (7,),
    (16,),
    (65,),
    (1, 4),
    (4, 1),
    (33, 70),
    (3, 4, 5),
    (1, 3, 1),
]
EMPTY: list[tuple[tuple[int, ...], list[int] | None]] = [
    ((0,), None),
    ((0, 3), [0]),
    ((3, 0), [1]),
]
SHARED = ((64, 2048), [1])  # by threads


def over(shape: tuple[int, ...]) -> list[list[int] | None]:
    """Rows, columns, the first and last dimension, everything."""
    rank = len(shape)
    return [None] + [[d] for d in range(rank)] * (rank > 1) + [[0, 2]] * (rank > 2)


CASES = [(shape, dims) for shape in SHAPES for dims in over(shape)] + [*EMPTY, SHARED]


def graph_of(make: Callable[[Node], Node], shape: tuple[int, ...], dtype: DType) -> Graph:
    x = parameter(0, TensorType(dtype, shape))
    return Graph("sums", (x,), (make(x),))


def agree(graph: Graph, value: float, *, positive: bool) -> None:
    (x,) = graph.params
    args = [np.full(x.shape, value, x.dtype.numpy)]
    (wanted,), (got,) = expected(graph, args), run(graph, args)
    assert same_bits(np.asarray(got), np.asarray(wanted)), f"{graph.results[0]}: {got}, {wanted}"
    if positive:
        assert not np.signbit(np.asarray(wanted, np.float64)).any()


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F64], ids=lambda d: d.name)
@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_and_lowering_start_where_the_kind_does(kind: str, dtype: DType) -> None:
    for shape, dims in CASES:
        if kind in ("min", "max") and 0 in shape:
            continue
        graph = graph_of(lambda x, d=dims: build.reduce(x, kind, d), shape, dtype)  # type: ignore[misc]
        agree(graph, -0.0, positive=kind == "add")
        doubled = graph_of(
            lambda x, d=dims: build.reduce(build.multiply(x, 2), kind, d),  # type: ignore[misc]
            shape,
            dtype,
        )
        agree(doubled, -0.0, positive=kind == "add")
        if kind == "add":
            agree(in_own_type(graph), -0.0, positive=True)


@pytest.mark.parametrize("kind", KINDS)
def test_running_totals_and_windows_too(kind: str) -> None:
    for shape, dim in (((1,), 0), ((9,), 0), ((3, 1), 1), ((3, 17), 1), ((17, 3), 0)):
        total = graph_of(lambda x, d=dim: build.cumulative(x, kind, d), shape, DType.F32)  # type: ignore[misc]
        agree(total, -0.0, positive=kind == "add")
    for window in ((1, 1), (1, 3), (2, 2)):
        for low in (0, 1):
            windows = graph_of(
                lambda x, w=window, n=low: build.reduce_window(x, kind, w, low=n),  # type: ignore[misc]
                (6, 7),
                DType.F32,
            )
            agree(windows, -0.0, positive=kind == "add")


FORMS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "sum of one": (lambda x: x.sum(), (1,)),
    "sum of a scalar": (lambda x: x.sum(), ()),
    "sum of a row of one": (lambda x: x.sum(1, keepdim=True), (4, 1)),
    "sum of a column of one": (lambda x: x.sum(0), (1, 4)),
    "sum of rows": (lambda x: x.sum(1), (7, 33)),
    "sum of columns": (lambda x: x.sum(0), (33, 7)),
    "sum of ends": (lambda x: (x * 2).sum((0, 2)), (3, 4, 5)),
    "sum of nothing": (lambda x: x.sum(1), (3, 0)),
    "sum of many": (lambda x: x.sum(), (300_000,)),
    "sum in double": (lambda x: x.sum(1, dtype=torch.float64), (4, 1)),
    "sum in bfloat16": (lambda x: x.bfloat16().sum(1), (4, 1)),
    "sum of complex": (lambda x: torch.view_as_real(torch.complex(x, x).sum(1)), (4, 1)),
    "mean": (lambda x: x.mean(1), (4, 1)),
    "nansum": (lambda x: x.nansum(1), (4, 1)),
    "trace": (lambda x: x.trace(), (1, 1)),
    "cumsum of one": (lambda x: x.cumsum(0), (1,)),
    "cumsum": (lambda x: x.cumsum(1), (4, 9)),
    "cumsum of a scalar": (lambda x: x.cumsum(0), ()),
    "prod": (lambda x: x.prod(1), (4, 1)),
    "amax": (lambda x: x.amax(1), (4, 1)),
    "average of one": (lambda x: nn.functional.avg_pool2d(x, 1), (1, 2, 4, 4)),
    "average of four": (lambda x: nn.functional.avg_pool2d(x, 2), (1, 2, 4, 4)),
    "average of one in a row": (lambda x: nn.functional.avg_pool1d(x, 1), (1, 2, 4)),
    "adapted average": (lambda x: nn.functional.adaptive_avg_pool2d(x, 4), (1, 2, 4, 4)),
}


@pytest.mark.parametrize("form", FORMS)
def test_torch_gives_the_cpus_sign(form: str) -> None:
    """Products of matrices are not among these: the CPU's sign depends on their sizes."""
    function, shape = FORMS[form]
    x = torch.full(shape, -0.0)
    wanted = torch.signbit(function(x))
    assert torch.equal(torch.signbit(function(x.to("neuron")).cpu()), wanted)
    torch.compiler.reset()
    compiled = torch.compile(function, backend="neuron")
    assert torch.equal(torch.signbit(compiled(x.to("neuron")).cpu()), wanted)
