"""Numbers and names among the arguments that eager mode refuses are refused in graphs too.

PyTorch's fake kernels, which graphs are made with, look at few of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch._dynamo.exc import TorchRuntimeError
from torch.nn import functional

from torch_neuronx.compat.release import minor
from torch_neuronx.dynamo import emit, trusting
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
    "cummax of a number": lambda x: x.sum().cummax(1)[0],
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
    "add by a truth": lambda x: torch.add(x, x, alpha=True),
    "sub by a truth": lambda x: x.clone().sub_(x, alpha=False),
    "add by half": lambda x: torch.add(x.int(), x.int(), alpha=0.5),
}


#: Calls on integers of 2 x 3, of which a power under 1 is none.
NO_POWERS: Final[dict[str, Call]] = {
    "operator": lambda x: x**-1,
    "pow": lambda x: torch.pow(x, -2),
    "in place": lambda x: x.clone().pow_(-1),
    "foreach": lambda x: torch._foreach_pow([x], -1)[0],
    "foreach of a list": lambda x: torch._foreach_pow([x], [-3])[0],
}

#: Calls on a tensor of 0 x 6, in which there is nothing to find.
ALONG_NOTHING: Final[dict[str, Call]] = {
    "max": lambda x: x.max(0),
    "min": lambda x: x.min(0),
    "argmax": lambda x: x.argmax(0),
    "argmin of all": lambda x: x.argmin(),
    "amax": lambda x: x.amax(0),
    "aminmax": lambda x: torch.aminmax(x, dim=0),
    "median": lambda x: x.median(0),
    "nanmedian": lambda x: x.nanmedian(0),
    "mode": lambda x: x.mode(0),
    "kthvalue": lambda x: x.kthvalue(1, 0),
    "largest norm": lambda x: torch.linalg.vector_norm(x, float("inf"), 0),
    "negative beta": lambda x: functional.smooth_l1_loss(x, x, beta=-1),
    "negative delta": lambda x: functional.huber_loss(x, x, delta=-1.0),
    "shifts of nothing": lambda x: x[:0].roll((1, 2, 1), (0, 1)),
    "interpolate": lambda x: functional.interpolate(x[None], 3),
}


def _ctc_backward(blank: int) -> tuple[object, ...]:
    lengths = torch.full((2,), 4)
    probabilities, targets = torch.randn(9, 2, 5).log_softmax(-1), torch.ones(2, 4).long()
    loss, alpha = torch.ops.aten._ctc_loss.Tensor(probabilities, targets, lengths, lengths)
    return torch.ones(2), probabilities, targets, lengths, lengths, loss, alpha, blank


def _recurrent(states: int) -> tuple[object, ...]:
    state = torch.ones(1, 3, 4)
    weights = [torch.ones(16, 5), torch.ones(16, 4)]
    return torch.ones(2, 3, 5), [state] * states, weights, False, 1, 0.0, False, False, False


def _attention(rows: int) -> tuple[object, ...]:
    return torch.ones(1, 2, 6, 8), torch.ones(1, 2, 3, 8), torch.ones(1, 2, rows, 8)


#: Functions whose kernels trust their caller: arguments that fit, and such that do not.
TRUSTING: Final[dict[str, tuple[Callable[..., Any], tuple[object, ...], tuple[object, ...]]]] = {
    "operator": (
        torch.ops.aten._ctc_loss_backward.Tensor, _ctc_backward(0), _ctc_backward(-1),
    ),
    "packet": (torch.ops.aten._ctc_loss_backward, _ctc_backward(0), _ctc_backward(-1)),
    "made of others": (torch.lstm, _recurrent(2), _recurrent(1)),
    "function": (functional.scaled_dot_product_attention, _attention(3), _attention(2)),
}  # fmt: skip


def test_numbers_that_stand_for_sizes_are_asked_for_one_by_one() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.diagonal_scatter(x, y, 1, 1, dim)

    x, y = torch.ones(5, 5, 5, device="neuron"), torch.zeros(5, 4, device="neuron")
    compiled = torch.compile(function, backend="neuron", dynamic=False)
    assert torch.equal(compiled(x, y, 2), function(x, y, 2))
    with pytest.raises(RuntimeError, match="Dimension out of range"):
        compiled(x, y, 99)


def test_a_dimension_is_squeezed_once() -> None:
    def function(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        return x.squeeze(dims)

    compiled = torch.compile(function, backend="neuron", dynamic=False)
    x = torch.ones(2, 1, 1, device="neuron")
    assert compiled(x, (1, 2)).shape == (2,)
    with pytest.raises(RuntimeError, match="appears multiple times"):
        compiled(x, (1, 1))


@pytest.mark.parametrize("name", TRUSTING)
def test_a_question_stays_within_memory(name: str) -> None:
    function, fit, unfit = TRUSTING[name]
    torch.testing.assert_close(trusting.call(function, fit, {}), function(*fit), equal_nan=True)
    with pytest.raises(trusting.UnmetDemandError, match=r"must|does not go with|state"):
        trusting.call(function, unfit, {})


def test_a_question_asks_with_elements_of_their_own() -> None:
    """Repeated ones: the kernel reads four weights, whatever the strides are."""
    weight = torch.ones(()).expand(4)
    given = torch.randn(2, 4, 3), weight, weight, 2, 4, 3, 2, 1e-5
    got = trusting.call(torch.native_group_norm, given, {})
    expected = torch.native_group_norm(given[0], torch.ones(4), torch.ones(4), *given[3:])
    torch.testing.assert_close(got, expected)


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
        ("add by a truth", "Boolean alpha only supported for Boolean results"),
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
    if name == "celu" and minor(torch.__version__) != "2.13":  # PyTorch's own tracing refuses it
        assert isinstance(caught.value, TorchRuntimeError)
        return
    assert "[NCC_EVRF064]" in str(caught.value)
    assert "test_dynamo_refused_arguments.py" in str(caught.value)
    assert "remedy: give an argument that it takes" in str(caught.value)


def assert_refused(call: Call, x: torch.Tensor) -> None:
    """The CPU, eager mode and a compiled function refuse a call; we say what the CPU says."""
    torch.compiler.reset()
    expected = error_of(lambda: call(x))
    assert expected
    assert error_of(lambda: call(x.to("neuron")))
    error = str(error_of(lambda: torch.compile(call, backend="neuron")(x.to("neuron"))))
    assert error != "None"
    assert "defect" not in error
    if "NCC_" in error:  # else one of PyTorch's fake kernels refused it, in its own words
        assert "[NCC_EVRF064]" in error
        assert str(expected).partition("\n")[0] in error


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("name", NO_POWERS)
def test_integers_have_no_negative_powers(name: str, dtype: torch.dtype) -> None:
    assert_refused(NO_POWERS[name], torch.arange(6, dtype=dtype).reshape(2, 3))


@pytest.mark.parametrize("name", ALONG_NOTHING)
def test_a_dimension_without_elements(name: str) -> None:
    assert_refused(ALONG_NOTHING[name], torch.zeros(0, 6))


def test_the_other_dimension_may_have_none() -> None:
    """What was said of one empty tensor is not said of the next."""
    call = ALONG_NOTHING["amax"]
    assert_refused(call, torch.zeros(0, 6))
    compiled = torch.compile(call, backend="neuron", dynamic=False)
    assert compiled(torch.zeros(6, 0, device="neuron")).shape == (0,)


#: Where image, filters and bias of a convolution are: the CPU and two cores are c, 0 and 1.
PLACES = ("c00", "0c0", "00c", "010", "100", "0cc")


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("places", "call"),
    [
        (places, (functional.conv2d, functional.conv_transpose2d)[n % 2])
        for n, places in enumerate(PLACES)
    ],
)
def test_convolutions_of_several_devices(places: str, call: Any, training: bool) -> None:
    """PyTorch's fake kernel takes them; of a model left on the CPU no gradient can be made."""
    torch.compiler.reset()
    devices = {"c": "cpu", "0": "neuron:0", "1": "neuron:1"}
    shapes = ((1, 3, 5, 5), (3, 3, 2, 2), (3,))
    x, weight, bias = (
        torch.ones(shape, device=devices[place], requires_grad=training and n > 0)
        for n, (shape, place) in enumerate(zip(shapes, places, strict=True))
    )
    assert error_of(lambda: call(x, weight, bias))

    @torch.compile(backend="neuron")
    def compiled() -> Any:
        return call(x, weight, bias)

    with pytest.raises(Exception, match="Expected all tensors to be on the same device") as caught:
        compiled()
    assert "test_dynamo_refused_arguments.py" in str(caught.value)


#: Calls with a tensor without dimensions that is on the host: beside most it is a number.
WITH_NUMBERS: dict[str, Any] = {
    "stack": lambda v, c: torch.stack([v.sum(), c]),
    "stack, the number first": lambda v, c: torch.stack([c, v.sum()]),
    "complex": torch.complex,
    "complex, the number first": lambda v, c: torch.complex(c, v),
    "polar": torch.polar,
    "masked_fill": lambda v, c: v.masked_fill(v > 1, c),
    "masked_fill, its mask": lambda v, c: v.masked_fill(c > 1, 2.0),
    "masked_fill of a number": lambda v, c: c.masked_fill(v.sum() > 1, 2.0),
    "masked_scatter": lambda v, c: v.masked_scatter(c > 0, v),
    "put": lambda v, c: v.put(c.long(), v.sum()),
    "put in a number": lambda v, c: c.put(v.sum().long() * 0, v.sum()),
    "pinv": lambda v, c: torch.linalg.pinv(v.expand(3, 3), rtol=c),
    "matrix_rank": lambda v, c: torch.linalg.matrix_rank(v.expand(3, 3), rtol=c),
    "where": lambda v, c: torch.where(v > 0, v, c),
    "lerp": lambda v, c: torch.lerp(v, v, c),
    "cat": lambda v, c: torch.cat([v, c[None]]),
    "hstack": lambda v, c: torch.hstack([v, c]),
    "index": lambda v, c: v[c.long()],
    "addmm": lambda v, c: torch.addmm(c, v.expand(3, 3), v.expand(3, 3)),
    "embedding": lambda v, c: functional.embedding(c.long(), v.expand(3, 3)),
}


#: PyTorch 2.15 refuses them when it traces, for every backend.
REFUSED_BY_TRACING = {"addmm"}


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_numbers_on_the_host(name: str) -> None:
    torch.compiler.reset()
    v, c = torch.tensor([0.5, 1.0, 2.0], device="neuron"), torch.tensor(1.0)
    eager = error_of(lambda: WITH_NUMBERS[name](v, c))
    compiled: Any = torch.compile(WITH_NUMBERS[name], backend="neuron")
    if name in REFUSED_BY_TRACING and minor(torch.__version__) == "2.15":
        for function in (compiled, torch.compile(WITH_NUMBERS[name], backend="eager")):
            with pytest.raises(TorchRuntimeError, match="on the same device"):
                function(v, c)
    elif eager is None:
        torch.testing.assert_close(compiled(v, c), WITH_NUMBERS[name](v, c))
    else:
        with pytest.raises(Exception, match="on the same device"):
            compiled(v, c)


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
    assert _asked(picky, (x, 0.5), {}, empty=False) == ""
    said = _asked(lambda x, p: picky(x - 5, p), (x, 2.0), {}, empty=False)
    assert said == "p has to be between 0 and 1"


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("value", [(), (4,)], ids=str)
def test_masks_of_another_shape_are_refused(value: tuple[int, ...], accumulate: bool) -> None:
    """Also those that could be broadcast, which PyTorch's tracing lets pass."""
    x, values = torch.arange(20.0).reshape(5, 4), torch.full(value, 7.0)

    def put(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return x.index_put((mask,), values, accumulate)

    compiled = torch.compile(put, backend="neuron", dynamic=False)
    refused = 0
    for shape in ((5,), (1,), (4,), (5, 4), (5, 1), (1, 4), (1, 1), (5, 4, 1)):
        mask = torch.ones(shape, dtype=torch.bool)
        torch.compiler.reset()  # the graphs of one function are counted
        given = [t.to("neuron") for t in (x, mask, values)]
        error = error_of(lambda mask=mask: put(x, mask, values))  # type: ignore[misc]
        if error is None:
            assert torch.equal(compiled(*given).cpu(), put(x, mask, values)), shape
            continue
        refused += 1
        assert error_of(lambda given=given: compiled(*given).cpu()), shape  # type: ignore[misc]
    assert refused


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
    refused = 0
    for shape in VALUES:
        torch.compiler.reset()  # the graphs of one function are counted
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
