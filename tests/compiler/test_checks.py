"""Compiled programs refuse the numbers that the CPU refuses: indices, divisors, matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from neuronxcc.environment.compilation import TORCH_NEURONX_EXECUTOR
from neuronxcc.ir import build
from neuronxcc.ir.calls import CHECK
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import parameter
from neuronxcc.ir.node import Node, Operand, TensorType
from neuronxcc.passes.indices import interval
from tests.device.enqueued import to_the_end

from .dynamo_tools import watched

ROWS, COLUMNS = 5, 6
LONG, INT = torch.int64, torch.int32
Function = Callable[[Tensor, Tensor], Any]


@dataclass(frozen=True)
class Case:
    """An operator of a (ROWS, COLUMNS) matrix and two indices.

    Attributes:
        function: What is compiled.
        wrong: Numbers that must be refused as one of the indices.
        right: Those that must not be.
        types: Of the indices.
        varies: Which error the CPU raises depends on its number of threads.
    """

    function: Function
    wrong: tuple[int, ...] = (ROWS, -1, -ROWS - 1, 1 << 40)
    right: tuple[int, ...] = (0, ROWS - 1)
    types: tuple[torch.dtype, ...] = (LONG,)
    varies: bool = False


def _both(function: Function, extent: int = ROWS, **more: Any) -> Case:
    """For operators whose negative indices count from the end."""
    wrong = (extent, extent + 1, -extent - 1, -(1 << 40))
    return Case(function, wrong, (0, extent - 1, -1, -extent), **more)


def _labels(loss: Callable[..., Tensor], **options: Any) -> Case:
    def function(x: Tensor, i: Tensor) -> Tensor:
        return loss(x[:2].log_softmax(-1), i, **options)

    return Case(function, (COLUMNS, -1, -101, 1 << 33), (0, COLUMNS - 1))


def _of_columns(function: Function) -> Function:
    """The index as a matrix of one row."""
    return lambda x, i: function(x, i.reshape(1, 2))


def _in_place(function: Callable[[Tensor, Tensor], Any]) -> Function:
    def called(x: Tensor, i: Tensor) -> Tensor:
        function(x, i)
        return x + 1

    return called


def _diagonal(i: Tensor) -> Tensor:
    """A matrix that is singular where a number is 0, and not positive definite where it is < 0."""
    return torch.diag(i.float())


BOTH = (LONG, INT)
_ATEN = torch.ops.aten
CASES: dict[str, Case] = {
    "gather": Case(_of_columns(lambda x, i: x.gather(0, i)), types=BOTH),
    "gather scalar": Case(lambda x, i: x.sum().gather(0, i[1]), (1, -1, -9), (0,)),
    "gather vector": Case(lambda x, i: x[:, 0].gather(0, i)),
    "scatter": Case(_of_columns(lambda x, i: x.scatter(0, i, x)), types=BOTH),
    "scatter value": Case(_of_columns(lambda x, i: x.scatter(0, i, 7.0))),
    "scatter all": Case(lambda x, i: x.scatter(0, i[:, None].expand(2, COLUMNS), x[:2] * 2)),
    "scatter_": Case(_in_place(lambda x, i: x.scatter_(0, i[:, None].expand(2, COLUMNS), 2.0))),
    "scatter_add": Case(_of_columns(lambda x, i: x.scatter_add(0, i, x))),
    "scatter multiply": Case(_of_columns(lambda x, i: x.scatter(0, i, x, reduce="multiply"))),
    **{
        f"scatter_reduce {kind}": Case(
            _of_columns(lambda x, i, kind=kind: x.scatter_reduce(0, i, x, kind))  # type: ignore[misc]
        )
        for kind in ("sum", "prod", "mean", "amax", "amin")
    },
    "index": _both(lambda x, i: x[i], types=BOTH),
    "index of columns": _both(lambda x, i: x[:, i], COLUMNS),
    "index of both": _both(lambda x, i: x[i - i, i], COLUMNS),
    "index apart": _both(lambda x, i: x[None][:, i, :, None][..., [0, 0]]),
    "index_put": _both(lambda x, i: x.index_put((i,), x[0]), types=BOTH),
    "index_put accumulated": _both(lambda x, i: x.index_put((i,), x[0], accumulate=True)),
    "index_put_": _both(_in_place(lambda x, i: x.index_put_((i,), x[0] * 2))),
    "index_select": Case(lambda x, i: x.index_select(0, i), types=BOTH),
    "index_select vector": Case(lambda x, i: x[:, 0].index_select(0, i)),
    "index_select scalar": Case(lambda x, i: x.sum().index_select(0, i[1:]), (1, -1), (0,)),
    "index_add": Case(lambda x, i: x.index_add(0, i, x[:2]), types=BOTH, varies=True),
    "index_add vector": Case(lambda x, i: x[:, 0].index_add(0, i, x[0, :2])),
    "index_copy": Case(lambda x, i: x.index_copy(0, i, x[:2])),
    "index_copy_": Case(_in_place(lambda x, i: x.index_copy_(0, i, x[:2] * 2))),
    "index_fill": _both(lambda x, i: x.index_fill(0, i, 3.0)),
    "index_reduce": Case(lambda x, i: x.index_reduce(0, i, x[:2], "amax")),
    "take": _both(lambda x, i: x.take(i), ROWS * COLUMNS),
    "put": _both(lambda x, i: x.put(i, x[0, :2]), ROWS * COLUMNS),
    "embedding": Case(lambda x, i: functional.embedding(i, x), types=BOTH),
    "embedding with padding": Case(lambda x, i: functional.embedding(i, x, padding_idx=0)),
    "embedding_bag": Case(
        lambda x, i: functional.embedding_bag(i, x, torch.arange(2, device=x.device), mode="sum")
    ),
    "nll_loss": _labels(functional.nll_loss),
    "nll_loss of one": Case(
        lambda x, i: functional.nll_loss(x[0], i[1]), (COLUMNS, -1), (0, COLUMNS - 1)
    ),
    "nll_loss of images": Case(
        lambda x, i: functional.nll_loss(x[:4].reshape(1, 4, 6, 1)[:, :, :2], i.reshape(1, 2, 1)),
        (4, -1),
        (0, 3, -100),
    ),
    "cross_entropy": _labels(functional.cross_entropy),
    "cross_entropy ignoring": _labels(functional.cross_entropy, ignore_index=-2),
    "cross_entropy smooth": _labels(functional.cross_entropy, label_smoothing=0.1),
    "cross_entropy separate": _labels(functional.cross_entropy, reduction="none"),
    "multi_margin_loss": _labels(functional.multi_margin_loss),
    "one_hot": Case(lambda _, i: functional.one_hot(i, ROWS)),
    "max_unpool": Case(
        lambda x, i: functional.max_unpool2d(x[None, None, :1, :2], i[None, None, None], (2, 2)),
        (8, -1),
        (0, 7),
    ),
    "searchsorted": Case(
        lambda x, i: torch.searchsorted(x[0, :2].flip(0), x[0], sorter=i), (2, -1), (0,)
    ),
    "integer division": Case(lambda _, i: 7 // i, (0,), (1, -3)),
    "integer remainder": Case(lambda _, i: i % i, (0,), (1, -3)),
    "integer fmod": Case(lambda _, i: torch.fmod(i, i), (0,), (1,)),
    "truncating division": Case(lambda _, i: torch.div(i, i, rounding_mode="trunc"), (0,), (1,)),
    "assertion": Case(lambda x, i: (torch._assert_async(i[1] > 0, "no"), x + 1)[1], (0, -5), (1,)),
    **{
        f"binary_cross_entropy {how}": Case(
            lambda x, i, how=how: functional.binary_cross_entropy(  # type: ignore[misc]
                i.float(), x[0, :2].sigmoid(), weight=x[1, :2], reduction=how
            ),
            (2, -1),
            (0, 1),
        )
        for how in ("none", "mean", "sum")
    },
    "targets of binary_cross_entropy": Case(
        lambda x, i: functional.binary_cross_entropy(x[0, :2].sigmoid(), i.float()), (2, -1), (0, 1)
    ),
    "histc": Case(lambda x, i: torch.histc(x[0, :2] / i), (0,), (1, -2)),
    "binary_cross_entropy of bfloat16": Case(
        lambda x, i: functional.binary_cross_entropy(i.bfloat16(), x[0, :2].sigmoid().bfloat16()),
        (2, -1),
        (0, 1),
    ),
    "cholesky": Case(lambda _, i: torch.linalg.cholesky(_diagonal(i)), (0, -1), (1, 4)),
    "cholesky of several": Case(
        lambda _, i: torch.linalg.cholesky(i.float().reshape(2, 1, 1)), (0, -1), (1, 4)
    ),
    "inverse": Case(lambda _, i: torch.linalg.inv(_diagonal(i)), (0,), (1, -3)),
    "solve": Case(lambda x, i: torch.linalg.solve(_diagonal(i), x[:2]), (0,), (1, -3)),
    "lu_factor": Case(lambda _, i: torch.linalg.lu_factor(_diagonal(i))[0], (0,), (1, -3)),
    "masked_scatter": Case(lambda x, i: x.masked_scatter(x < i[1], x[0]), (100,), (-100,)),
}  # fmt: skip


def _numbers(name: str) -> list[Any]:
    case = CASES[name]
    return [
        (dtype, number, number in case.wrong)
        for dtype, number in product(case.types, (*case.wrong, *case.right))
        if torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max
    ]


def matrix() -> Tensor:
    return torch.arange(1.0, ROWS * COLUMNS + 1).reshape(ROWS, COLUMNS)


def outcome(function: Function, x: Tensor, index: Tensor) -> Any:
    """The result on the CPU, or the type of the error."""
    try:
        result = to_the_end(function, x, index)
    except (IndexError, RuntimeError) as error:
        return type(error)
    return result.cpu()


@pytest.mark.every(3)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_what_the_cpu_refuses_is_refused(name: str, dynamic: bool) -> None:
    function = CASES[name].function
    torch.compiler.reset()
    compiled = torch.compile(function, backend="neuron", dynamic=dynamic, fullgraph=True)
    # Once more after every error: it may leave nothing behind.
    for dtype, number, wrong in _numbers(name):
        index = torch.tensor([1, number], dtype=dtype)
        expected = outcome(function, matrix(), index)
        assert isinstance(expected, type) == wrong, (number, expected)
        x = matrix().to("neuron")
        got = outcome(compiled, x, index.to("neuron"))
        if wrong:
            assert got is expected or (CASES[name].varies and got is IndexError), (number, got)
            assert torch.equal(x.cpu(), matrix()), "the failed call wrote"
        else:
            torch.testing.assert_close(got, expected)


def test_ignored_labels_are_no_error() -> None:
    compiled = torch.compile(functional.cross_entropy, backend="neuron")
    x = matrix().to("neuron").requires_grad_()
    label = torch.tensor([1, -100, 5, -100, 0], device="neuron")
    loss = compiled(x, label)
    loss.backward()
    reference = matrix().requires_grad_()
    functional.cross_entropy(reference, label.cpu()).backward()
    assert reference.grad is not None
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), reference.grad)


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_the_error_names_operator_number_and_line(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TORCH_NEURONX_EXECUTOR.name, executor)
    torch.compiler.reset()

    def lookup(x: Tensor, i: Tensor) -> Tensor:
        y = x * 2
        return functional.embedding(i, y)  # this line

    compiled = torch.compile(lookup, backend="neuron")
    with pytest.raises(IndexError) as raised:
        to_the_end(compiled, matrix().to("neuron"), torch.tensor([[1, 77]], device="neuron"))
    text = str(raised.value)
    assert "index out of range in self: 77 of 5 (aten.embedding.default)" in text
    if executor == "native":
        line = lookup.__code__.co_firstlineno + 2
        assert f"{__file__}:{line}" in text


@pytest.mark.parametrize(
    "backward",
    [
        partial(
            _ATEN.embedding_dense_backward, num_weights=ROWS, padding_idx=-1,
            scale_grad_by_freq=False,
        ),
        lambda g, i: _ATEN.nll_loss_backward(
            g[0, 0], g, i, None, 1, -100, g[0, 0]
        ),
    ],
    ids=["embedding", "nll_loss"],
)  # fmt: skip
def test_backward_operators_check_for_themselves(backward: Function) -> None:
    """Called alone, as a graph that is split after the forward pass does."""
    compiled = torch.compile(backward, backend="neuron")
    grad = torch.ones(2, COLUMNS, device="neuron")
    compiled(grad, torch.tensor([0, 1], device="neuron"))
    with pytest.raises(IndexError, match="77"):
        to_the_end(compiled, grad, torch.tensor([0, 77], device="neuron"))


@pytest.mark.parametrize(
    "index",
    [
        torch.tensor(7).expand(3, 4),
        torch.tensor([[0, 1], [2, 7]]).t(),
        torch.tensor([0, 9, 1, 9, 7, 9])[::2],
        torch.arange(8)[None].expand(2, 8),
    ],
    ids=["expanded", "transposed", "strided", "partly expanded"],
)
def test_layouts_of_indices(index: Tensor) -> None:
    compiled = torch.compile(lambda x, i: x[i], backend="neuron")
    reach = int((torch.tensor(index.shape) - 1) @ torch.tensor(index.stride())) + 1
    place = index.as_strided((reach,), (1,)).to("neuron").as_strided(index.shape, index.stride())
    with pytest.raises(
        IndexError, match=r"index [57] is out of bounds for dimension 0 with size 5"
    ):
        to_the_end(compiled, matrix().to("neuron"), place)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, INT, LONG])
def test_every_number_of_small_types(dtype: torch.dtype) -> None:
    """The vectorised comparison against Python's, with bounds at the ends of 64 bits too."""
    info = torch.iinfo(dtype) if dtype is not torch.bool else None
    low, high = (0, 1) if info is None else (info.min, info.max)
    ends = (-(1 << 63), -(1 << 31) - 1, -129, -1, 0, 1, 2, 127, 128, 1 << 31, (1 << 63) - 1)
    values = [v for v in {*range(-300, 300), *ends, low, high, low + 1} if low <= v <= high]
    check = torch.ops.neuron.check_values
    for lowest, highest in product(ends, ends):
        if lowest > 0 or highest < -1:
            continue  # no bounds of an index
        for value in values:
            x = torch.tensor([0 if lowest <= 0 <= highest else highest, value]).to(dtype)
            ok = all(lowest <= int(v) <= highest for v in x)
            try:
                token = check(x, lowest, highest, "{}", True)  # noqa: FBT003 - its schema
            except IndexError:
                assert not ok, (lowest, highest, value)
            else:
                assert ok, (lowest, highest, value)
                assert token.dtype == dtype
                assert not token.any()


def test_many_numbers_on_several_threads() -> None:
    index = torch.zeros(200_000, dtype=LONG)
    index[123_456] = -3
    with pytest.raises(IndexError, match="found -3"):
        torch.ops.neuron.check_values(index, 0, 9, "found {}", True)  # noqa: FBT003


def test_proven_indices_cost_nothing() -> None:
    """Positions that were counted, cut off, sorted or checked before have no step."""

    def function(x: Tensor, i: Tensor) -> Any:
        best = x.topk(2, dim=0).indices
        return (
            x[torch.arange(3, device=x.device)],
            x[i.clamp(0, ROWS - 1)],
            x.gather(0, best),
            x.gather(0, x.argmax(0, keepdim=True)),
            x.index_select(0, x[:, 0].argsort()),
        )

    with watched() as graphs:
        torch.compile(function, backend="neuron")(
            matrix().to("neuron"), torch.tensor([1, 99], device="neuron")
        )
    (graph,) = graphs
    steps = graph.executable.program.steps
    assert not [step for step in steps if getattr(step, "target", "") == CHECK]


def test_bounds_of_checked_values_are_known() -> None:
    """So nothing is checked twice."""
    x = parameter(0, TensorType(DType.S64, (4,)))
    scalar = TensorType(DType.S64, ())
    args = (Operand(0), 0, 7, "", True)

    def plus_token(values: Node, checked: Node) -> Node:
        token = build.custom_call(CHECK, (scalar,), (checked,), args=args)
        return build.add(values, build.broadcast_to(token, values.shape))

    assert interval(plus_token(x, x)) == (0, 7)
    other = parameter(1, x.type)
    assert interval(plus_token(x, other)) is None
