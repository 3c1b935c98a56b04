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
    total = [r.square().sum() for r in (*results, *given) if r.requires_grad]
    if total:
        torch.stack(total).sum().backward()
    values = [*results, *given, *(x.grad for x in leaves)]
    places = [next((i for i, x in enumerate(given) if x is r), -1) for r in results]
    return [None if v is None else v.detach().cpu() for v in values], places


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
