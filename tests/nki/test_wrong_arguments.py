"""Wrong arguments of every function of both generations end in an error with a code and a line.

Each function is called with random values of all kinds where it takes something else. Whatever is
not accepted must be an `NkiError`: a bare TypeError or AttributeError of Python's names a line of
this library, not the user's.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nki.first_generation.isa as first_isa
import nki.first_generation.language as first_nl
import nki.isa as nisa
import nki.language as nl
from neuronxcc import nki as first
from neuronxcc.targets import get_target
from nki.errors import NkiError
from nki.isa.table import TABLE
from nki.launch import Slot, record

SLOTS = (Slot(0, "x", (128, 16), "float32"),)
SHAPE = (128, 16)
# A path that does not exist is a FileNotFoundError of Python's; sendrecv needs two cores.
LEFT_OUT = {"shared_constant", "sendrecv"}
METHODS = (
    "permute", "broadcast", "expand_dim", "squeeze_dim", "reshape_dim", "flatten_dims", "reshape",
    "rearrange", "slice", "select", "vector_select", "ap", "view", "indirect", "__getitem__",
)  # fmt: skip


def values(tensors: tuple[Any, ...]) -> list[Any]:
    """Return what nobody expects, and some of what somebody does."""
    return [
        *tensors, None, "x", 3, -1, 0, 1 << 40, 2.5, float("nan"), True, b"a", 1 + 2j, [1], [], (),
        (tensors[0],), {"a": 1}, {1, 2}, np.ones((4,)), np.float32(2), slice(0, 2), ..., object(),
        nl.add, nl.float32, nisa.engine.vector, [[1, 16]], [[16, 128], [1, 16]], len,
    ]  # fmt: skip


def tried(function: Callable[..., Any], tensors: tuple[Any, ...], seed: int) -> None:
    """Call a function; errors other than `NkiError` leave it."""
    rng = random.Random(seed)  # noqa: S311
    given = values(tensors)
    arguments = {
        p.name: rng.choice(given)
        for p in inspect.signature(function).parameters.values()
        if p.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        and (p.default is inspect.Parameter.empty or rng.random() < 0.3)
    }
    try:
        if function.__name__ == "__getitem__":
            function(rng.choice([*given, tuple(rng.choices(given, k=2))]))
        else:
            function(**arguments)
    except NkiError as error:
        assert error.code in str(error)  # noqa: PT017


def named(module: Any) -> list[str]:
    """Return the functions of a module of the language."""
    return sorted(
        name
        for name in module.__all__
        if callable(found := getattr(module, name))
        and not inspect.isclass(found)
        and name not in LEFT_OUT
    )


TODAY = [(nisa, name) for name in TABLE if name not in LEFT_OUT]
TODAY += [(nl, name) for name in named(nl)]


def recorded(body: Callable[[Any], None]) -> None:
    def kernel(x: Any) -> Any:
        body(x)
        return x

    try:
        record(kernel, [(SLOTS, {})], target=get_target("trn3"), grid=())
    except NkiError as error:
        assert error.code in str(error)  # noqa: PT017


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NKI_CHECKS", "off")


@pytest.mark.parametrize("module,name", TODAY, ids=[n for _, n in TODAY])  # noqa: PT006
def test_functions(module: Any, name: str) -> None:
    for seed in range(15):

        def body(x: Any, seed: int = seed) -> None:
            tensors = (
                nl.load(x),
                nl.ndarray(SHAPE, nl.float32, buffer=nl.psum),
                x,
                nisa.register_alloc(1),
            )
            tried(getattr(module, name), tensors, seed)

        recorded(body)


@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str) -> None:
    def body(x: Any) -> None:
        tile, register = nl.load(x), nisa.register_alloc(1)
        for seed in range(40):
            for tensor in (x, tile):
                tried(getattr(tensor, name), (tile, x, register), seed)

    recorded(body)


FIRST = [(module, name) for module in (first_nl, first_isa) for name in named(module)]


@pytest.mark.every(2, "slow")
@pytest.mark.parametrize("module,name", FIRST, ids=[n for _, n in FIRST])  # noqa: PT006
def test_functions_of_the_first_generation(module: Any, name: str) -> None:
    for seed in range(15):

        @first.jit(mode="simulation")
        def kernel(x: Any, seed: int = seed) -> Any:
            tile = first_nl.load(x)
            psum = first_nl.ndarray((128, 16), first_nl.float32, buffer=first_nl.psum)
            tried(getattr(module, name), (tile, psum, x), seed)
            return x

        try:
            first.simulate_kernel(kernel, np.ones((128, 16), np.float32))
        except NkiError as error:
            assert error.code in str(error)  # noqa: PT017
