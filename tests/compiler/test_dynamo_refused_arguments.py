"""Numbers and names among the arguments that eager mode refuses are refused in graphs too.

PyTorch's fake kernels, which graphs are made with, look at few of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch.nn import functional

from torch_neuronx.dynamo import emit
from torch_neuronx.dynamo.accepted import _asked

Call = Callable[[torch.Tensor], Any]


def _zeros(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(1, 1, dtype=torch.long, device=x.device)


#: Calls on a tensor of 3 x 4.
REFUSED: Final[dict[str, Call]] = {
    "softmax": lambda x: x.softmax(3),
    "log_softmax": lambda x: functional.log_softmax(x, -3),
    "softmin": lambda x: functional.softmin(x, 2),
    "sort": lambda x: x.sort(2)[0],
    "topk": lambda x: x.topk(1, 2)[0],
    "cumsum": lambda x: x.cumsum(2),
    "cumprod": lambda x: x.cumprod(-4),
    "cummax": lambda x: x.cummax(2)[0],
    "logcumsumexp": lambda x: x.logcumsumexp(2),
    "sum": lambda x: x.sum(5),
    "mean": lambda x: x.mean((2,)),
    "amax twice": lambda x: x.amax((1, 1)),
    "var": lambda x: x.var(2),
    "flip": lambda x: x.flip(2),
    "roll": lambda x: x.roll(1, 2),
    "gather": lambda x: x.gather(2, _zeros(x)),
    "scatter": lambda x: x.scatter(2, _zeros(x), 1.0),
    "index_add": lambda x: x.index_add(2, _zeros(x)[0], x[:, :1]),
    "index_select of a number": lambda x: x.sum().index_select(0, _zeros(x).expand(1, 2)[0]),
    "index_add of a number": lambda x: x.sum().index_add(0, _zeros(x).expand(1, 2)[0], x.sum()),
    "index_reduce of a number": lambda x: x.sum().index_reduce(
        0, _zeros(x).expand(1, 2)[0], x.sum(), "amax"
    ),
    "kthvalue": lambda x: x.kthvalue(9)[0],
    "norm": lambda x: torch.linalg.vector_norm(x, dim=2),
    "glu": lambda x: functional.glu(x, 2),
    "searchsorted": lambda x: torch.searchsorted(x[0].sort()[0], x, side="middle"),
    "two sides": lambda x: torch.searchsorted(x[0].sort()[0], x, side="left", right=True),
    "div": lambda x: torch.div(x, 2, rounding_mode="up"),
    "gelu": lambda x: functional.gelu(x, approximate="bogus"),
    "scatter_reduce": lambda x: x.scatter_reduce(0, _zeros(x), x, "med"),
    "celu": lambda x: functional.celu(x, 0.0),
    "hardshrink": lambda x: functional.softshrink(x, -1.0),
    "mvlgamma": lambda x: torch.mvlgamma(x.abs() + 5, 0),
    "polygamma": lambda x: torch.polygamma(-1, x),
    "dropout": lambda x: functional.dropout(x, 1.5),
    "quantile": lambda x: x.quantile(1.5),
    "avg_pool": lambda x: functional.avg_pool1d(x, 0),
    "max_pool": lambda x: functional.max_pool1d(x, 2, 1, 2),
    "conv": lambda x: functional.conv1d(x[None], x[None], stride=0),
    "group_norm": lambda x: functional.group_norm(x, 3),
}


def error_of(function: Callable[[], Any]) -> Exception | None:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - what it is says the test
        return error
    return None


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_mode_refuses(name: str) -> None:
    torch.compiler.reset()
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    assert error_of(lambda: REFUSED[name](x))
    assert error_of(lambda: REFUSED[name](x.to("neuron")))
    error = error_of(lambda: torch.compile(REFUSED[name], backend="neuron")(x.to("neuron")))
    assert error
    assert "defect" not in str(error)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("softmax", r"Dimension out of range \(expected to be in range of \[-2, 1\], but got 3\)"),
        ("searchsorted", "side can only be 'left' or 'right' but got middle"),
        ("celu", "alpha cannot be 0 for CELU"),
        ("index_reduce of a number", "Dimension specified as 0 but tensor has no dimensions"),
        ("index_select of a number", r"Index to scalar can have only 1 value, got 2 value\(s\)"),
    ],
)
def test_the_error_says_what_and_where(name: str, text: str) -> None:
    torch.compiler.reset()
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to("neuron")
    with pytest.raises(Exception, match=text) as caught:
        torch.compile(REFUSED[name], backend="neuron")(x)
    assert "[NCC_EVRF064]" in str(caught.value)
    assert "test_dynamo_refused_arguments.py" in str(caught.value)
    assert "remedy: give an argument that it takes" in str(caught.value)


@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize("index", range(-5, 6))
def test_dimensions_are_those_of_pytorch(rank: int, index: int) -> None:
    x = torch.zeros((2,) * rank)
    expected = error_of(lambda: x.sum(index))
    for ask in (lambda: emit.dim(index, rank), lambda: emit.dims((index,), rank)):
        assert str(error_of(ask)) == str(expected)


def test_what_ones_are_refused_for_is_no_argument_s_fault() -> None:
    """Of ones and zeros the same is said if it is about a number."""

    def picky(x: torch.Tensor, p: float) -> torch.Tensor:
        if x.min() > 0:
            raise ValueError("the input must be between -1 and 0")
        if p > 1:
            raise ValueError("p has to be between 0 and 1")
        return x

    x = torch.zeros(2)
    assert _asked(picky, (x, 0.5), {}) == ""
    assert _asked(lambda x, p: picky(x - 5, p), (x, 2.0), {}) == "p has to be between 0 and 1"


#: Shapes of values for what an index of 3 rows, or a mask of 2, finds in a tensor of 5 x 5.
VALUES: Final[tuple[tuple[int, ...], ...]] = (
    (), (1,), (5,), (6,), (1, 1), (1, 5), (1, 6), (2, 1), (2, 5), (3, 1), (3, 5), (4, 5), (3, 4),
    (1, 1, 5), (1, 3, 5), (0,), (0, 5),
)  # fmt: skip


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("index", ["rows", "mask", "places", "elements"])
def test_values_that_do_not_fit_are_refused(index: str, accumulate: bool) -> None:
    """PyTorch's tracing doesn't compare them with what the index finds."""
    x = torch.arange(25).reshape(5, 5)
    indices: dict[str, tuple[torch.Tensor, ...]] = {
        "rows": (torch.tensor([0, 1, 3]),),
        "mask": (torch.tensor([True, False, True, False, False]),),
        "places": (torch.tensor([[0], [1], [3]]), torch.arange(5)),
        "elements": (x.ne(3),),
    }
    at = indices[index]

    def put(x: torch.Tensor, values: torch.Tensor, *at: torch.Tensor) -> torch.Tensor:
        return x.index_put(at, values, accumulate)

    compiled = torch.compile(put, backend="neuron", dynamic=False)
    torch.compiler.reset()
    refused = 0
    for shape in VALUES:
        values = torch.arange(100, 100 + torch.Size(shape).numel()).reshape(shape)
        given = [t.to("neuron") for t in (x, values, *at)]
        error = error_of(lambda values=values: put(x, values, *at))  # type: ignore[misc]
        if error is None:
            assert torch.equal(compiled(*given).cpu(), put(x, values, *at)), shape
            continue
        refused += 1
        found = error_of(lambda given=given: compiled(*given).cpu())  # type: ignore[misc]
        assert str(error).splitlines()[0] in str(found), shape
        assert "defect" not in str(found)
    assert refused
