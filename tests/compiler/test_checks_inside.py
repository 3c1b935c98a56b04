"""Checks inside of branches and loops, on whose outcome no result depends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.map import map as mapped
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional

from tests.device.enqueued import to_the_end

Function = Callable[[Tensor, Tensor], Any]
map_: Any = mapped


def looked_up(x: Tensor, i: Tensor) -> Tensor:
    """A table of one row: there is nothing to choose, but the index may be wrong."""
    return functional.embedding(i, x[:1]).sum(0)


def gathered(x: Tensor, i: Tensor) -> Tensor:
    return x[:1].gather(0, i[:, None].expand(-1, x.shape[1])).sum(0)


def branch(step: Function) -> Function:
    return lambda x, i: torch.cond(x.sum() > 0, step, lambda x, i: x[0] - i[0], (x, i))


def other_branch(step: Function) -> Function:
    return lambda x, i: torch.cond(x.sum() < 0, lambda x, i: x[0] - i[0], step, (x, i))


def loop(step: Function) -> Function:
    def function(x: Tensor, i: Tensor) -> Any:
        start = torch.zeros((), dtype=torch.int64, device=x.device), x[0] * 1
        return while_loop(lambda n, _: n < 3, lambda n, y: (n + 1, y + step(x, i)), start)[1]

    return function


def scanned(step: Function) -> Function:
    def function(x: Tensor, i: Tensor) -> Any:
        body = lambda carry, row: (carry + step(x, i), row + carry)  # noqa: E731
        carry, rows = scan(body, x[0] * 1, x)
        return carry + rows.sum(0)

    return function


def in_map(step: Function) -> Function:
    return lambda x, i: map_(lambda row, x, i: row + step(x, i), x * 2, x, i).sum(0)


WAYS = (branch, other_branch, loop, scanned, in_map)


@pytest.mark.parametrize("step", [looked_up, gathered])
@pytest.mark.parametrize("way", WAYS)
def test_they_are_not_dropped(way: Callable[[Function], Function], step: Function) -> None:
    torch.compiler.reset()
    x = torch.arange(1.0, 13.0).reshape(3, 4)
    function = way(step)
    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    right = torch.zeros(2, dtype=torch.int64)
    for _ in range(2):
        got = compiled(x.to("neuron"), right.to("neuron"))
        torch.testing.assert_close(got.cpu(), function(x, right))
        for wrong in (1, -1):
            with pytest.raises((IndexError, RuntimeError), match=f"{wrong}.*(of|size) 1"):
                to_the_end(compiled, x.to("neuron"), torch.tensor([0, wrong], device="neuron"))


def test_a_branch_that_is_not_taken_checks_nothing() -> None:
    x = torch.arange(1.0, 13.0).reshape(3, 4).to("neuron")
    compiled = torch.compile(other_branch(looked_up), backend="neuron", fullgraph=True)
    wrong = torch.tensor([0, 9], device="neuron")
    torch.testing.assert_close(compiled(-x, wrong).cpu(), -x[0].cpu())
