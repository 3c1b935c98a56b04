"""A compiled call with one mistake is refused where the CPU refuses it, with the caller's line.

The calls are PyTorch's operator samples, and the mistakes those of `tests/device/misuse.py`, as for
eager mode in `tests/device/test_misuse.py`: an index that no dimension has, another size, another
device. Wrong indices meet the program that was compiled for right ones: only when it runs it can
find out. Other sizes and devices are other graphs, which tracing or the compiler refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_leaves, tree_map, tree_unflatten

from tests.device.harness_exclusions import EXCLUDED
from tests.device.misuse import (
    HOME,
    OTHER,
    TRUSTING,
    Call,
    calls,
    other_indices,
    other_sizes,
    outcome,
)
from tests.shallow import shallow

# PyTorch's sample generators use deprecated calls on purpose; their warnings aren't ours.
pytestmark = pytest.mark.filterwarnings("ignore")

_RUNS = [
    op
    for op in op_db
    if not op.name.startswith("jiterator")
    and op.supported_dtypes("cpu")
    and op.name not in TRUSTING
    and op.name not in EXCLUDED
]


_PARAMETERS = [pytest.param(op, id=op.formatted_name) for op in _RUNS]


def compiled(call: Call) -> Callable[[list[Any]], Any]:
    """The operator as a compiled function of the leaves of its arguments."""
    torch._dynamo.reset()
    spec, op = call.spec, call.op.op

    def function(leaves: list[Any]) -> Any:
        tensor, args, kwargs = tree_unflatten(leaves, spec)
        return op(tensor, *args, **kwargs)

    return torch.compile(function, backend="neuron", dynamic=False)


def cpu_refuses(call: Call) -> Exception | None:
    return outcome(lambda: call.run(call.on("cpu")))[1]


def right(call: Call) -> Callable[[list[Any]], Any] | None:
    """A call, compiled for its arguments, which are right; None if it does not run so."""
    function = compiled(call)
    return function if outcome(lambda: function(call.on(HOME)))[1] is None else None


#: OpInfo name -> why an index that the CPU refuses is taken.
TAKES_INDEX: Final[dict[str, str]] = {}


@pytest.mark.every(2)
@pytest.mark.parametrize("op", _PARAMETERS)
@shallow
def test_indices_out_of_range(op: OpInfo) -> None:
    for call in calls(op, 2):
        wrong = {
            f"argument {position} {what}": changed
            for position in call.dense()
            for what, tensor in other_indices(call.leaves[position])
            if cpu_refuses(changed := call.with_leaf(position, tensor))
        }
        function = right(call) if wrong and op.name not in TAKES_INDEX else None
        if function is None:
            continue
        for what, changed in wrong.items():
            _, error = outcome(lambda c=changed, f=function: f(c.on(HOME)))  # type: ignore[misc]
            assert error is not None, what


@pytest.mark.every(20)
@pytest.mark.parametrize("op", _PARAMETERS)
@shallow
def test_other_sizes_and_devices(op: OpInfo) -> None:
    for call in calls(op, 1):
        function = None if cpu_refuses(call) else right(call)
        if function is None:
            continue
        for position in call.dense():
            for what, tensor in islice(other_sizes(call.leaves[position]), 3):
                check_size(
                    call.with_leaf(position, tensor), function, f"argument {position} {what}"
                )
            for elsewhere in ("cpu", OTHER):
                leaves = call.on(HOME, position, elsewhere)
                _, refusal = outcome(lambda c=call, x=leaves: c.run(x))  # type: ignore[misc]
                _, error = outcome(lambda f=function, x=leaves: f(x))  # type: ignore[misc]
                if refusal is not None:
                    what = f"argument {position} on {elsewhere}: eager says {refusal}"
                    assert error is not None, what


def check_size(call: Call, function: Callable[[list[Any]], Any], what: str) -> None:
    wanted, refusal = outcome(lambda: call.run(call.on("cpu")))
    if "MKL FFT error" in str(refusal):
        return  # of no signals, which the CPU's library fails on and the program takes
    got, error = outcome(lambda: function(call.on(HOME)))
    if refusal is not None:
        assert error is not None, f"{what}: cpu says {refusal}"
    elif error is None:
        assert sizes(got) == sizes(wanted), what


def sizes(results: Any) -> list[torch.Size]:
    return [leaf.shape for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]


def test_the_line_is_that_of_the_operator() -> None:
    """The message of a program names the line in the function that was compiled."""

    def gathered(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        return doubled.gather(0, index) + 1

    function = torch.compile(gathered, backend="neuron")
    x = torch.ones(5, device=HOME)
    function(x, torch.tensor([0, 4], device=HOME))
    _, error = outcome(lambda: function(x, torch.tensor([0, 5], device=HOME)))
    line = gathered.__code__.co_firstlineno + 2
    assert f"{Path(__file__).name}:{line}" in str(error)


# No biases, one layer, no dropout, not in training, one direction, the batch second.
_ONE_LAYER: Final = (False, 1, 0.0, False, False, False)


def lstm(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, *weights: torch.Tensor) -> Any:
    return torch.lstm(x, (h, c), weights, *_ONE_LAYER)


def gru(x: torch.Tensor, h: torch.Tensor, *weights: torch.Tensor) -> Any:
    return torch.gru(x, h, weights, *_ONE_LAYER)


REFUSED: Final[dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], str]]] = {
    "states of more layers": (lstm, [(2, 3, 4), (2, 3, 5), (1, 3, 5), (20, 4), (20, 5)],
                              r"lstm of 1 layers and directions has a state of shape \(2, 3, 5\)"),
    "states of gru": (gru, [(2, 3, 4), (2, 3, 5), (15, 4), (15, 5)],
                      r"gru of 1 layers and directions has a state of shape \(2, 3, 5\)"),
    "an empty kernel": (torch.nn.functional.conv1d, [(1, 2, 7), (3, 2, 0)],
                        "kernel size should be"),
    "a weight for all channels": (lambda x, w: torch.native_group_norm(x, w, None, 1, 6, 3, 2, 0.5),
                                  [(1, 6, 3), (1,)], "Expected weight to be a vector of size"),
    "a bias for all channels": (lambda x, w: torch.native_group_norm(x, None, w, 1, 6, 3, 2, 0.5),
                                [(1, 6, 3), (1,)], "Expected bias to be a vector of size"),
    "a transposed convolution that makes nothing": (
        lambda x, w: torch.nn.functional.conv_transpose2d(x, w, None, 2, 2, 1),
        [(1, 3, 1, 4), (3, 3, 3, 3)], r"channel: \(1 x 4\).*\(0 x 6\). Output size is too small"),
    "padding of a whole step": (
        lambda x, w: torch.nn.functional.conv_transpose2d(x, w, None, 2, 0, 2),
        [(1, 3, 4, 4), (3, 3, 3, 3)], "output padding must be smaller than either stride or dil"),
    "an offset in front of the memory": (
        lambda x, s: x.as_strided_scatter(s, (2,), (1,), -1), [(6,), (2,)],
        "invalid storage offset -1"),
    "a place that there is not": (lambda x, s: x.select_scatter(s, 1, 2), [(5, 1, 5), (5, 5)],
                                  r"select\(\): index 2 out of range for tensor of size"),
    "one element for two": (lambda x, s: x.masked_scatter(x > 0, s), [(3, 4), ()],
                            "Number of elements of source < number of ones in mask"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_pytorch_overlooks_is_refused(name: str) -> None:
    function, shapes, text = REFUSED[name]
    given = [torch.ones(shape, device=HOME) for shape in shapes]
    torch._dynamo.reset()
    compiled_one = torch.compile(function, backend="neuron", dynamic=False)
    with pytest.raises(RuntimeError, match=text):
        tree_map(torch.Tensor.cpu, compiled_one(*given))


SHAPES = [
    ((3,), (1,), ()), ((3,), (), ()), ((), (1,), (1,)), ((), (), (1,)), ((), (1,), ()),
    ((3, 4), (1,), (4,)), ((3, 4), (1,), (4, 1)), ((3, 4), (2,), (1, 8)), ((3,), (2,), (1, 2)),
    ((3, 4), (1,), (1, 4)), ((3, 4), (1,), ()), ((3,), (), (1,)), ((3, 4), (), (1, 4)),
]  # fmt: skip
SLICES: Final[dict[str, Callable[..., Any]]] = {
    "index_add": lambda x, i, s: torch.index_add(x, 0, i, s),
    "index_copy": lambda x, i, s: torch.index_copy(x, 0, i, s),
    "index_reduce": lambda x, i, s: torch.index_reduce(x, 0, i, s, "prod"),
}


@pytest.mark.parametrize("name", SLICES)
def test_a_source_of_other_slices_is_refused(name: str) -> None:
    """Also one that has as many elements, which PyTorch's tracing lets pass."""
    refused = 0
    for x, index, source in SHAPES:
        given = torch.ones(x), torch.zeros(index, dtype=torch.int64), torch.full(source, 2.0)
        torch._dynamo.reset()
        function = torch.compile(SLICES[name], backend="neuron", dynamic=False)
        wanted, refusal = outcome(lambda g=given: SLICES[name](*g))  # type: ignore[misc]
        here = [t.to(HOME) for t in given]
        got, error = outcome(lambda f=function, h=here: f(*h))  # type: ignore[misc]
        assert (error is None) == (refusal is None), (x, index, source, error, refusal)
        refused += refusal is not None
        if refusal is None:
            torch.testing.assert_close(got.cpu(), wanted)
    assert 0 < refused < len(SHAPES)
