"""Models that are compiled where they are, before, between and after calls without a compiler.

What a client attaches to its model when it is first called (hooks, buffers, tables) must be there
once, whoever calls first. All outputs are compared with those of a module that is never compiled.
"""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.integrations.order_models import CASES
from torch_neuronx.integrations.compiled import CompiledCall

# Two layers in float32: sums in another order, of values of order one.
TOLERANCE = 1e-4

# C: compile. D: compile no more. A digit: call with these arguments. A letter of "abc": the same
# calls while PyTorch is told to run compiled functions as they are.
CALLS, PLAIN = "012", "abc"
ALL_IN_ONE, SHORT = "1CC2b1D2C1", "0C0"
ORDERS = (SHORT, "1C1", "2C1", "C1D1", "C2D2C2", "C1b1", "C1C0a1D2Cc2")
SEEDS = 4


def random_order(seed: int) -> str:
    rng = random.Random(seed)  # noqa: S311 - no secret
    return "".join(rng.choice(CALLS + PLAIN + "CCDD") for _ in range(6)) + "C12"


@functools.cache
def expected(name: str, call: int) -> Any:
    return values(CASES[name].module()(**CASES[name].calls[call]))


def values(output: Any) -> Any:
    """Results in plain containers, by their names."""
    if hasattr(output, "items"):
        return {name: values(value) for name, value in output.items()}
    return tuple(map(values, output)) if isinstance(output, tuple | list) else output


def run(name: str, order: str) -> None:
    case = CASES[name]
    module = case.module().to("neuron")
    for place, action in enumerate(order):
        if action == "C":
            CompiledCall(module, name, fullgraph=True).install()
        elif action == "D":
            module._compiled_call_impl = None
        else:
            number = (CALLS + PLAIN).index(action) % len(CALLS) % len(case.calls)
            given = pytree.tree_map_only(torch.Tensor, lambda t: t.to("neuron"), case.calls[number])
            with torch.compiler.set_stance("force_eager" if action in PLAIN else "default"):
                got = values(module(**given))
            wanted = expected(name, number)
            assert pytree.tree_structure(got) == pytree.tree_structure(wanted), order[: place + 1]
            for mine, theirs in zip(*map(pytree.tree_leaves, (got, wanted)), strict=True):
                torch.testing.assert_close(mine.cpu(), theirs, atol=TOLERANCE, rtol=0)


@pytest.mark.slow
@pytest.mark.every(2)
@pytest.mark.parametrize("name", CASES)
def test_an_order(name: str) -> None:
    run(name, ALL_IN_ONE if CASES[name].asked else SHORT)


@pytest.mark.exhaustive
@pytest.mark.parametrize("order", [*ORDERS, *map(random_order, range(SEEDS))])
@pytest.mark.parametrize("name", CASES)
def test_orders(name: str, order: str) -> None:
    run(name, order)
