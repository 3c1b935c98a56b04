"""Results of compiled functions that are views of each other, some of them detached.

AOTAutograd notes of every tensor object that a program returns whether it has gradients, so two
results that lie in the same memory must not be one object, nor one a view that has the other's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import example, given, settings

from .dynamo_tools import weighted_sum

Part = Callable[[torch.Tensor], torch.Tensor]


# Not views made under no_grad: AOTAutograd (2.13) gives them gradients, or ends in an assertion.
PARTS: dict[str, Part] = {
    "itself": lambda t: t,
    "rows": lambda t: t[:2],
    "transposed": lambda t: t.t(),
    "flat": lambda t: t.view(-1),
    "same type": lambda t: t.view(torch.float32),
    "bits": lambda t: t.view(torch.int32),
    "detached": lambda t: t.detach(),
    "detached rows": lambda t: t.detach()[1:],
    "rows detached": lambda t: t[1:].detach(),
    "transposed and detached": lambda t: t.t().detach(),
    "twice": lambda t: t * 2,
    "twice, detached": lambda t: (t * 2).detach(),
    "column": lambda t: t.unbind(1)[1],
}
NAMES = st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=4)


def results(
    names: list[str], of_argument: bool, device: str, backend: str | None
) -> tuple[list[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        base = x if of_argument else torch.square(x)
        return [PARTS[name](base) for name in names]

    torch.compiler.reset()
    x = torch.linspace(-2, 2, 12).reshape(4, 3).to(device).requires_grad_()
    run = torch.compile(function, backend=backend, fullgraph=True) if backend else function
    return run(x), x


@pytest.mark.slow
@pytest.mark.every(2)
@settings(max_examples=40, deadline=None)
@given(names=NAMES, of_argument=st.booleans())
@example(names=["rows", "detached"], of_argument=False)
@example(names=["detached", "itself"], of_argument=False)
@example(names=["rows", "same type", "column"], of_argument=False)
def test_gradients_of_results(names: list[str], of_argument: bool) -> None:
    try:
        results(names, of_argument, "cpu", "aot_eager")
    except AssertionError:
        return  # AOTAutograd's own, of some views of views, whatever the backend
    expected, host = results(names, of_argument, "cpu", None)
    got, there = results(names, of_argument, "neuron", "neuron")
    assert [t.requires_grad for t in got] == [t.requires_grad for t in expected]
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype is theirs.dtype
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach())
    totals = [weighted_sum([t for t in some if t.requires_grad]) for some in (got, expected)]
    if totals[1] is not None:
        for total in totals:
            assert total is not None
            total.backward()
        assert there.grad is not None
        torch.testing.assert_close(there.grad.cpu(), host.grad)


@pytest.mark.parametrize("backend", [None, "neuron"])
def test_what_is_saved_notices_writes_through_results(backend: str | None) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = (x @ x).exp()  # too expensive to be computed again
        return h, (h.t() @ x).sin()

    torch.compiler.reset()
    run = torch.compile(function, backend=backend) if backend else function
    x = torch.ones(3, 3, device="neuron", requires_grad=True)
    written, other = run(x)
    with torch.no_grad():
        written.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        other.sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@settings(max_examples=8, deadline=None)
@given(
    split=st.sampled_from([torch.unsafe_chunk, torch.unsafe_split]),
    count=st.integers(2, 4),
    dim=st.integers(0, 1),
)
def test_parts_that_pytorch_calls_no_views(
    *, dynamic: bool, split: Callable[..., list[torch.Tensor]], count: int, dim: int
) -> None:
    """They share memory, and the next graph writes to one and reads another."""

    def function(x: torch.Tensor) -> torch.Tensor:
        parts = split(x, count, dim)
        torch._dynamo.graph_break()
        parts[0].masked_fill_(parts[1].sum() > 0, 2.0)
        return parts[0] + 1

    torch.compiler.reset()
    compiled = torch.compile(function, backend="neuron", dynamic=dynamic)
    x = torch.arange(64.0).view(8, 8)
    mine = x.to("neuron")
    assert torch.equal(compiled(mine).cpu(), function(x))
    assert torch.equal(mine.cpu(), x)


SPLITS: dict[str, Callable[[torch.Tensor], Sequence[torch.Tensor]]] = {
    "chunks": lambda x: torch.unsafe_chunk(x, 3),
    "rows": lambda x: torch.unsafe_split(x, 2),
    "columns": lambda x: x.unsafe_split(2, -1),
    "sizes": lambda x: x.unsafe_split_with_sizes([1, 0, 4], 1),
}


# Dynamo's, of an argument that has no gradient of its own.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("backend", [None, "neuron"])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("whole", ["argument", "computed"])
@pytest.mark.parametrize("split", SPLITS)
def test_parts_see_what_is_written_in_the_same_graph(
    split: str, whole: str, *, gradients: bool, backend: str | None
) -> None:
    """To the whole, to a part, to both."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        x = x if whole == "argument" else x * 1
        before = SPLITS[split](x)
        x[1:].mul_(3)
        between = [part.clone() for part in before]
        before[0].add_(1)
        before[-1].sub_(2)
        x.neg_()
        return [*before, *between, x.clone()]

    torch.compiler.reset()
    compiled = torch.compile(function, backend=backend) if backend else function
    x = torch.arange(25.0).view(5, 5)
    mine = x.to("neuron")
    if gradients:  # what is written to the parts, those of `cpu` are silently wrong about
        mine = mine.requires_grad_() * 1
    for got, expected in zip(compiled(mine), function(x), strict=True):
        assert torch.equal(got.cpu(), expected)
    assert torch.equal(mine.cpu(), x)


def _views(x: torch.Tensor, view: str) -> list[torch.Tensor]:
    return {
        "parts": lambda: list(x.tensor_split(2, 1)),
        "rows": lambda: list(x.unbind(0)),
        "transposed": lambda: [x.mT, x[1:]],
        "diagonal": lambda: [x.diagonal(), x],
        "itself": lambda: [x, x.view(-1)],
    }[view]()


# Dynamo's, of the loss, which the first graph returns.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("view", ["parts", "rows", "transposed", "diagonal", "itself"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
@pytest.mark.parametrize("whole_first", [False, True])
@pytest.mark.parametrize("learns", [False, True])
def test_a_result_and_views_of_it_are_taken_together(
    view: str, dtype: torch.dtype, *, whole_first: bool, learns: bool
) -> None:
    """One graph returns a tensor and views of it, the next one writes to some and reads all.

    Something else in the first graph may have gradients.
    """

    def function(x: torch.Tensor) -> torch.Tensor:
        weight = torch.ones(8, device=x.device, requires_grad=learns)
        torch._dynamo.graph_break()
        loss = (x * weight).sum()
        whole = x.roll(1, 0)
        views = _views(whole, view)
        torch._dynamo.graph_break()
        if whole_first:
            whole.mul_(2)
        views[0].add_(views[0].sum().to(dtype))
        views[1].sub_(1)
        assert loss.requires_grad is learns
        return torch.cat([whole.flatten(), *(v.flatten() for v in views)])

    torch.compiler.reset()
    x = torch.arange(64).view(8, 8).to(dtype)
    compiled = torch.compile(function, backend="neuron")
    assert torch.equal(compiled(x.to("neuron")).cpu(), function(x))


# Decompositions and layouts make views of these results; PyTorch's operators make none.
NO_VIEWS: dict[str, Part] = {
    "rot90": lambda t: torch.rot90(t, 1, (0, 1)),
    "rotated and read": lambda t: torch.rot90(t, 1, (0, 1)) * (1 + torch.rot90(t, 1, (0, 1)).sum()),
    "copy of a transposed one": lambda t: t.t().clone(),
    "sum of transposed ones": lambda t: t.t() + t.t(),
    "product": lambda t: t.t() @ t,
    "copy in another format": lambda t: t[None, None].clone(memory_format=torch.channels_last),
}


# Dynamo's, of what the first graph returns.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", NO_VIEWS)
def test_what_is_no_view_can_be_written_to(name: str, gradients: bool) -> None:
    """By the program's caller, with gradients, and by the next graph."""

    def run(device: str, backend: str | None, caller: bool) -> list[torch.Tensor]:
        def function(x: torch.Tensor) -> torch.Tensor:
            result = NO_VIEWS[name](x.sin())
            if caller:
                return result
            torch._dynamo.graph_break()
            return result.add_(weight) * 2

        torch.compiler.reset()
        x = torch.linspace(-2, 2, 9).reshape(3, 3).to(device).requires_grad_(gradients)
        weight = torch.full((), 3.0, device=device, requires_grad=True)
        result = (torch.compile(function, backend=backend) if backend else function)(x)
        assert not result._is_view()
        if caller:
            result.add_(weight)
        given = [weight, *([x] if gradients else [])]
        return [result.detach().cpu(), *(g.cpu() for g in torch.autograd.grad(result.sum(), given))]

    for caller in (False, True):
        for mine, theirs in zip(
            run("neuron", "neuron", caller), run("cpu", None, caller), strict=True
        ):
            torch.testing.assert_close(mine, theirs)


def _gates(x: torch.Tensor) -> Sequence[torch.Tensor]:
    """What such parts are for: activations in place, of which autograd sees no view."""
    a, b, c, d = torch.unsafe_chunk(x, 4, -1)
    a.sigmoid_()
    b[0].copy_(b[-1])
    c.mul_(c.detach().cos())
    return [a * b, c, d]


def _written(x: torch.Tensor) -> Sequence[torch.Tensor]:
    (part,) = torch.unsafe_split(x.reshape(-1)[8:].reshape(7, 8), 7, 0)
    part.mul_(part)
    return [x]


WRITTEN: dict[str, Callable[[torch.Tensor], Sequence[torch.Tensor]]] = {
    "gates": lambda x: _gates(x * 2),
    "of an argument": _gates,
    "one part is the whole": lambda x: _written(x * 2),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", WRITTEN)
def test_gradients_of_parts_that_are_written_to(function: str, *, dynamic: bool) -> None:
    run, numbers = WRITTEN[function], torch.linspace(-1, 2, 64).reshape(8, 8)
    torch.compiler.reset()
    compiled = torch.compile(run, backend="neuron", dynamic=dynamic)
    outcomes = []
    for call, device in ((run, "cpu"), (run, "neuron"), (compiled, "neuron")):
        x = numbers.to(device).clone().requires_grad_()
        results = call(x)
        sum(r.square().sum() for r in results).backward()  # type: ignore[union-attr]
        outcomes.append([y.detach().cpu() for y in (*results, x, x.grad)])  # type: ignore[union-attr]
    for got in outcomes[1:]:
        torch.testing.assert_close(got, outcomes[0])


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("twice", [False, True], ids=["one memory", "one tensor twice"])
def test_gradients_through_views_of_results(position: int, *, twice: bool) -> None:
    """Where arguments share memory and one is written to."""

    def function(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        a.add_(1)
        whole = x * 2
        results = [whole.view(-1) if position else whole.t(), b * 2]
        results.insert(position, whole)
        return [*results, whole.cumsum(0)]

    torch.compiler.reset()
    compiled = torch.compile(function, backend="neuron")
    outcomes = []
    for call, device in ((function, "cpu"), (function, "neuron"), (compiled, "neuron")):
        x = torch.linspace(-1, 2, 25).reshape(5, 5).to(device).requires_grad_()
        a = torch.arange(12.0).to(device)
        results = call(a, a if twice else a[2:8], x)
        sum(r.square().sum() for r in results).backward()  # type: ignore[union-attr]
        outcomes.append([y.detach().cpu() for y in (*results, a, x.grad)])  # type: ignore[union-attr]
    for got in outcomes[1:]:
        torch.testing.assert_close(got, outcomes[0])


# Dynamo's, as above.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("one", "other"),
    [(slice(9, 12), slice(9, 12)), (slice(9, 12), slice(10, 14)), (slice(0, 9, 4), slice(8, 10)),
     (slice(0, 3), slice(3, 6)), (slice(0, 8, 2), slice(1, 9, 2))],
)  # fmt: skip
def test_small_views_of_something_large(
    one: slice, other: slice, *, dynamic: bool, gradients: bool
) -> None:
    """The next graph writes to one of them, and reads the other."""

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        flat = (x * 2).view(-1)
        a, b, more = flat[one], flat[other], y * 3
        torch._dynamo.graph_break()
        a.add_(1)
        return [a * 2, b * 3, more]

    torch.compiler.reset()
    compiled = torch.compile(function, backend="neuron", dynamic=dynamic)
    x, y = torch.arange(64.0).view(8, 8), torch.ones(2)
    got = compiled(x.to("neuron"), y.to("neuron").requires_grad_(gradients))
    for mine, expected in zip(got, function(x, y), strict=True):
        assert torch.equal(mine.detach().cpu(), expected)


def test_results_of_a_graph_in_parts() -> None:
    """What AOTAutograd says of the whole graph's results is not said of those of its parts."""
    stream = torch.Stream("neuron")

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        whole = x * 2
        with stream:
            other = y + 1
        return [whole.view(-1), whole, other * 2, whole.sum()]

    torch.compiler.reset()
    x = torch.arange(9.0).view(3, 3).to("neuron").requires_grad_()
    y = torch.ones(3, device="neuron")
    got = torch.compile(function, backend="neuron")(x, y)
    for mine, expected in zip(got, function(x, y), strict=True):
        assert mine.requires_grad == expected.requires_grad
        assert torch.equal(mine, expected)
    (got[0].sum() + got[1].sum()).backward()
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), torch.full((3, 3), 4.0))
