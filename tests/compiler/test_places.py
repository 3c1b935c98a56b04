"""Graphs for which it matters where in memory their arguments lie: right wherever they lie."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from torch_neuronx.dynamo.places import PlaceLimitWarning

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

Tensors = tuple[torch.Tensor, ...]
Step = Callable[..., torch.Tensor]


def writing(write: Callable[[torch.Tensor, torch.Tensor], object]) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        write(x, y)
        return y * 2

    return step


WRITES: dict[str, Step] = {
    "adds": writing(lambda x, _: x.add_(100)),
    "adds the other": writing(lambda x, y: x.add_(y.sum())),
    "copies": writing(lambda x, y: x.copy_(y + 1)),
    "row": writing(lambda x, _: x[1].fill_(7)),
    "column": writing(lambda x, _: x[:, 1].mul_(3)),
    "other": writing(lambda _, y: y.t()[0].neg_()),
    "both": writing(lambda x, y: (x.add_(1), y.mul_(2))),
    "returned": lambda x, y: x.neg_() if y is not x else x,
    "returned other": lambda x, y: y.add_(x.sum())[1:],
}
READS: dict[str, Step] = {
    "by place": lambda x, y: x.as_strided((2, 2), (3, 1), 4) + y.sum(),
    "two places": lambda x, _: x.as_strided((4,), (2,), 0) * x.as_strided((4,), (1,), 9),
    "of a row": lambda x, _: x[1].as_strided((3,), (2,), 1),
    "copy": lambda x, _: torch.as_strided_copy(x, (2, 2), (1, 2), 3),
    "operator": lambda x, _: torch.ops.aten.as_strided(x, [3], [1], 2) - 1,
    "as bits": lambda x, _: x.view(torch.int32).as_strided((2, 2), (3, 1), 4),
    "of a view as bits": lambda x, _: (
        x.as_strided((3, 2), (4, 0), 0).view(torch.int32).as_strided((2, 3), (0, 1), 3)
    ),
    "from here": lambda x, _: x.as_strided((2, 2), (2, 1)),
    "gradient's": lambda x, _: x.as_strided((2, 3), (0, 1), 5).square(),
}

#: Where the two arguments begin in a storage, and how they step from row to row.
places = st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from([2, 3, 4]))


def arguments(base: torch.Tensor, place: tuple[int, int, int]) -> Tensors:
    first, second, step = place
    return base.as_strided((2, 3), (step, 1), first), base.as_strided((2, 3), (3, 1), second)


def refused_by_pytorch(error: Exception) -> bool:
    return "aot_autograd() does not yet handle" in str(error)


@given(
    st.sampled_from(sorted(WRITES)), st.lists(places, min_size=2, max_size=4), st.booleans(),
    st.booleans(),
)  # fmt: skip
@settings(max_examples=25)
def test_writes_to_arguments_that_overlap(
    name: str, calls: Sequence[tuple[int, int, int]], dynamic: bool, apart: bool
) -> None:
    """Their storages are one; with `apart` autograd does not know that."""
    torch.compiler.reset()
    function = WRITES[name]
    compiled = torch.compile(function, backend="neuron", dynamic=dynamic)
    base = torch.arange(24.0, device="neuron")
    for place in calls:
        if place[2] == 2 and name != "other":
            reject()  # rows of the first overlap, of which no two elements may be one
        mine, theirs = base.clone(), base.clone()
        given = arguments(mine, place), arguments(theirs, place)
        ours, expected = ([x.detach() if apart else x for x in pair] for pair in given)
        try:
            result = compiled(*ours)
        except Exception as error:
            if not refused_by_pytorch(error):
                raise
            reject()
        assert torch.equal(result, function(*expected))
        assert torch.equal(mine, theirs)


@given(
    st.sampled_from(sorted(READS)), st.lists(places, min_size=2, max_size=4), st.booleans(),
    st.booleans(),
)  # fmt: skip
@settings(max_examples=25)
def test_reading_a_storage_by_place(
    name: str, calls: Sequence[tuple[int, int, int]], dynamic: bool, training: bool
) -> None:
    torch.compiler.reset()
    function = READS[name]
    compiled = torch.compile(function, backend="neuron", dynamic=dynamic)
    for place in calls:
        if "bits" in name and training:
            reject()  # integers have no gradients
        gradients: list[torch.Tensor] = []
        results = []
        for run in (function, compiled):
            base = torch.arange(24.0, device="neuron", requires_grad=training)
            result = run(*arguments(base * 2, place))
            results.append(result)
            if training:
                result.square().sum().backward()
                assert base.grad is not None
                gradients.append(base.grad)
        assert torch.equal(*results)
        if training:
            assert torch.equal(*gradients)


def test_behind_a_break_of_the_graph() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        row = x.select(1, 2)
        torch._dynamo.graph_break()
        return row.as_strided((2, 4), (4, 2), 0).square().sum(0)

    x = torch.arange(96.0, device="neuron").view(4, 3, 8)
    assert torch.equal(torch.compile(function, backend="neuron")(x), function(x))


def test_a_view_beyond_an_argument_shares_memory() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((4,), (1,), 0)

    base = torch.arange(12.0, device="neuron")
    result = torch.compile(function, backend="neuron")(base[4:8])
    result.add_(10)
    assert base.tolist() == [10, 11, 12, 13, 4, 5, 6, 7, 8, 9, 10, 11]


def test_a_written_argument_beside_another_one_is_returned() -> None:
    """Also where both are views of a tensor that begins elsewhere in its storage."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return y.relu_(), x * 2

    compiled = torch.compile(function, backend="neuron")
    for offset in (0, 16, 5):
        memory = torch.arange(160.0) - 60
        mine, theirs = (
            memory.to("neuron").as_strided((5, 5, 5), (25, 5, 1), offset).detach() for _ in range(2)
        )
        ours = compiled(mine[:, 1:2], mine[:, 2:3].flatten(1, 2))
        expected = function(theirs[:, 1:2], theirs[:, 2:3].flatten(1, 2))
        assert torch.equal(ours[0], expected[0])
        assert torch.equal(ours[1], expected[1])
        assert torch.equal(mine, theirs)
        ours[0].zero_()
        assert not mine[:, 2].any()


@pytest.mark.parametrize("write", ["add_", "fill_", "copy_"])
def test_writes_beyond_an_argument_are_refused(write: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        value: Any = torch.ones(4, device=x.device) if write == "copy_" else 1
        getattr(x.as_strided((4,), (1,), 0), write)(value)
        return x + 0

    base = torch.arange(12.0, device="neuron")
    with pytest.raises(Exception, match=r"NCC_ICAP001.* of which the graph was given a part"):
        torch.compile(function, backend="neuron")(base[4:8])
    assert torch.equal(base.cpu(), torch.arange(12.0))


def test_reading_beyond_what_is_written_is_refused() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.add_(1)
        return x.as_strided((8,), (1,), 0) * 2

    base = torch.arange(12.0, device="neuron")
    with pytest.raises(Exception, match=r"NCC_ICAP001.* of which the graph was given a part"):
        torch.compile(function, backend="neuron")(base[:4], base[4:8])


def test_a_storage_that_is_too_small() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((8,), (1,), 0) * 2

    compiled = torch.compile(function, backend="neuron")
    compiled(torch.arange(12.0, device="neuron")[:4])
    with pytest.raises(RuntimeError, match="out of bounds for storage of size"):
        compiled(torch.arange(4.0, device="neuron"))


def test_one_program_for_arguments_that_are_apart() -> None:
    """Slices of a cache take one after the other the same program."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * y

    graphs: list[torch.fx.GraphModule] = []
    from torch_neuronx.dynamo import backend  # noqa: PLC0415 - what it holds is patched for torch

    backend.OBSERVERS.append(lambda compiled: graphs.append(compiled.gm))
    try:
        compiled = torch.compile(function, backend="neuron")
        cache = torch.arange(64.0, device="neuron")
        for i in range(0, 64, 16):
            compiled(cache[i : i + 8], cache[i + 8 : i + 16])
    finally:
        backend.OBSERVERS.pop()
    assert len(graphs) == 1


def test_too_many_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_MAX_SHAPES", "2")

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((2,), (1,), 1) + 1

    compiled = torch.compile(function, backend="neuron")
    base = torch.arange(12.0, device="neuron")
    for i in range(2):
        compiled(base[i : i + 4])
    with pytest.warns(PlaceLimitWarning, match="at more than 2 different places"):
        assert compiled(base[2:6]).tolist() == [2, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        assert compiled(base[3:7]).tolist() == [2, 3]


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # Inductor's own
@pytest.mark.parametrize("how", ["strides", "storage", "gradient"])
@pytest.mark.parametrize("name", ["SGD", "AdamW", "RMSprop"])
def test_parameters_of_an_optimizer_that_got_other_memory(name: str, how: str) -> None:
    def trained(compiled: bool) -> list[torch.Tensor]:
        torch.compiler.reset()
        rng = torch.Generator().manual_seed(0)
        parameters = [
            torch.nn.Parameter(torch.randn(size, generator=rng).to("neuron"))
            for size in ((6, 4), (4, 4))
        ]
        optimizer = getattr(torch.optim, name)(parameters, 0.05)
        step: Any = torch.compile(optimizer.step, backend="neuron") if compiled else optimizer.step
        first = parameters[0]
        for i in range(4):
            for p in parameters:
                p.grad = torch.randn(p.shape, generator=rng).to("neuron")
            if i == 2 and how == "strides":
                first.data = first.detach().t().contiguous().t() * 0.9
            elif i == 2 and how == "storage":
                first.data = torch.ones(40, device="neuron")[5:29].view(6, 4)
            elif i == 2:
                first.grad = torch.randn(4, 6, generator=rng).to("neuron").t()
            step()
        return [p.detach().cpu() for p in parameters]

    for mine, other in zip(trained(compiled=True), trained(compiled=False), strict=True):
        torch.testing.assert_close(mine, other)
