"""Several arguments that a compiled function writes to, and returns among other results.

AOTAutograd keeps some writes in its graphs. Others leave them, as results before the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

Change = Callable[[torch.Tensor], torch.Tensor]


def _without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x.add_(1)


#: Each gives what the operator returns that writes: to Dynamo this is another name of the argument.
WRITES: dict[str, Change] = {
    "none": lambda x: x,
    "written": lambda x: x.mul_(2),
    "part": lambda x: x[:1].mul_(2),
    "no_grad": _without_gradients,
    "detached": lambda x: x.detach().mul_(3),
}
RESULTS: dict[str, Change] = {
    "itself": lambda x: x,
    "view": lambda x: x[1:],
    "flags": lambda x: x != 1,
    "sum": lambda x: x.sum(1),
    "product": lambda x: x * 2,
}
#: Of each argument: whether it has gradients, how it is written to, and what is returned of it.
ARGUMENTS = st.lists(
    st.tuples(
        st.booleans(), st.sampled_from(sorted(WRITES)),
        st.lists(st.sampled_from(sorted(RESULTS)), max_size=3),
    ),
    min_size=1, max_size=3,
)  # fmt: skip
Argument = tuple[bool, str, list[str]]


def outcome(
    arguments: Sequence[Argument], order: Sequence[int], device: str, backend: str | None
) -> tuple[list[torch.Tensor | None], list[int]]:
    """Values of results, arguments and gradients; and which results are arguments."""

    def function(*given: torch.Tensor) -> list[torch.Tensor]:
        written = [WRITES[how](x) for x, (_, how, _) in zip(given, arguments, strict=True)]
        made = [
            RESULTS[name](x)
            for x, (_, _, names) in zip(written, arguments, strict=True)
            for name in names
        ]
        return [made[i] for i in order]

    torch.compiler.reset()
    run = torch.compile(function, backend=backend, fullgraph=True) if backend else function
    leaves = [
        torch.linspace(-1, 2 + rows, 20).reshape(rows, -1).to(device).requires_grad_(trained)
        for rows, (trained, _, _) in zip((4, 5, 2), arguments, strict=False)
    ]
    given = [x * 1 for x in leaves]
    results = run(*given)
    places = [next((i for i, x in enumerate(given) if x is r), -1) for r in results]
    return with_gradients(results, given, leaves), places


def with_gradients(
    results: Sequence[torch.Tensor], memory: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Results, what was written to, and the gradients of leaves through both."""
    total = [x.square().sum() for x in (*results, *memory) if x.requires_grad]
    if total:
        torch.stack(total).sum().backward()
    values = [*results, *memory, *(x.grad for x in leaves)]
    return [None if v is None else v.detach().cpu() for v in values]


# Dynamo looks at gradients of arguments that are no leaves.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(arguments=ARGUMENTS, data=st.data())
def test_results_and_arguments(arguments: list[Argument], data: st.DataObject) -> None:
    count = sum(len(names) for _, _, names in arguments)
    order = data.draw(st.permutations(range(count)))
    check(arguments, order)


def test_what_leaves_the_graph_and_what_stays_in_it() -> None:
    """Left to AOTAutograd, the second argument takes the place of the second result."""
    written = [(True, "written", ["sum", "flags"]), (False, "written", ["itself", "product"])]
    check(written, (0, 1, 2, 3))


def check(arguments: list[Argument], order: Sequence[int]) -> None:
    expected = outcome(arguments, order, "cpu", None)
    got = outcome(arguments, order, "neuron", "neuron")
    assert got[1] == expected[1]
    torch.testing.assert_close(got[0], expected[0])


# ---- arguments that share memory ----------------------------------------------------------------

VIEWS: dict[str, Change] = {
    "itself": lambda a: a,
    "rows": lambda a: a[1:],
    "columns": lambda a: a[:, 1:],
    "from the third": lambda a: a.view(-1)[3:15].view(3, 4),
    "transposed": lambda a: a.t(),
    "first": lambda a: a[:2],
}
SHARED_WRITES: dict[str, Change] = {
    "none": lambda x: x,
    "written": lambda x: x.mul_(2),
    "part": lambda x: x[:1].mul_(2),
    "detached": lambda x: x.detach().mul_(3),
}
SHARED_RESULTS: dict[str, Change] = {
    **RESULTS,
    "detached": lambda x: x.detach(),
    "flat": lambda x: x.reshape(-1),
    "product, flat": lambda x: (x * 3).view(-1),
}


def shared(
    views: Sequence[str], writes: Sequence[tuple[int, str]], results: Sequence[tuple[int, str]],
    trained: bool, device: str, backend: str | None,
) -> list[torch.Tensor | None]:  # fmt: skip
    """Results, the memory that the arguments share, and its gradient."""

    def function(*given: torch.Tensor) -> list[torch.Tensor]:
        values = [*given, *(SHARED_WRITES[how](given[i % len(given)]) for i, how in writes)]
        return [SHARED_RESULTS[name](values[i % len(values)]) for i, name in results]

    torch.compiler.reset()
    run = torch.compile(function, backend=backend) if backend else function
    leaf = torch.linspace(-1, 3, 20).reshape(5, 4).to(device).requires_grad_(trained)
    base = leaf * 1
    return with_gradients(run(*(VIEWS[name](base) for name in views)), [base], [leaf])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    views=st.lists(st.sampled_from(sorted(VIEWS)), min_size=1, max_size=3),
    writes=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(sorted(SHARED_WRITES))), max_size=3
    ),
    results=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(sorted(SHARED_RESULTS))),
        min_size=1, max_size=4,
    ),
    trained=st.booleans(),
)  # fmt: skip
def test_arguments_that_share_memory(
    views: list[str], writes: list[tuple[int, str]], results: list[tuple[int, str]], trained: bool
) -> None:
    try:
        expected = shared(views, writes, results, trained, "cpu", None)
    except RuntimeError:  # what autograd needs was written to
        return
    try:
        got = shared(views, writes, results, trained, "neuron", "neuron")
    except (RuntimeError, AssertionError, IndexError) as error:
        with pytest.raises(type(error)):
            shared(views, writes, results, trained, "cpu", "aot_eager")
        return
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("views", "name"),
    [
        (["rows", "itself", "from the third"], "detached"),
        (["rows", "itself"], "itself"),
        (["first", "from the third"], "view"),
        (["columns", "first"], "itself"),
    ],
)
def test_results_are_views_of_what_arguments_share(views: list[str], name: str) -> None:
    """Left to AOTAutograd they are other rows, or end in an assertion about their shape."""
    writes = [(0, "part"), (1, "part")]
    for value in range(len(views) + 2):
        given = (views, writes, [(value, name), (0, "sum")], False)
        torch.testing.assert_close(shared(*given, "neuron", "neuron"), shared(*given, "cpu", None))
