"""Every program of `programs.py`, eager and compiled, equal to the CPU."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.clients.programs import PROGRAMS, Program
from tests.clients.vision import torchvision

# Clients' own: what they say about their future, or about builds of theirs.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)
# Where values are larger than one before they are rounded: rgb_to_lab multiplies differences of
# cube roots by 500, Sobel's and HSV's steps amplify likewise.
TOLERANCES = {"kornia_images": 500 * 2.0**-22}


def the(name: str) -> Program:
    library, program = PROGRAMS[name]
    if library == "torchvision":
        torchvision()
    elif importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed; the extra `clients` has it")
    return program


def on_host(result: Any) -> list[torch.Tensor]:
    leaves = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
    assert leaves
    return [t.detach().cpu() for t in leaves]


EXPECTED: dict[str, list[torch.Tensor]] = {}


def compare(name: str, compiled: Any) -> None:
    program = the(name)
    if name not in EXPECTED:
        EXPECTED[name] = on_host(program("cpu", lambda f: f))
    got = program("neuron", compiled)
    leaves = [t for t in pytree.tree_leaves(got) if isinstance(t, torch.Tensor)]
    assert {t.device.type for t in leaves} == {"neuron"}
    tolerance = TOLERANCES.get(name)
    rtol = None if tolerance is None else 1e-5
    torch.testing.assert_close(on_host(got), EXPECTED[name], rtol=rtol, atol=tolerance)


@pytest.mark.parametrize("name", PROGRAMS)
def test_eager(name: str) -> None:
    compare(name, lambda f: f)


# peft's DoRA breaks its graph 31 times, which Dynamo takes ten seconds for; `peft_lora` has one.
# What generates is compiled anew for the first lengths and for its second model.
LONG = ("peft_dora", "generate_assisted", "generate_looked_up", "generate_beams")
COMPILED = [
    pytest.param(name, marks=pytest.mark.exhaustive if name in LONG else ()) for name in PROGRAMS
]


@pytest.mark.every(7, "slow")
@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name: str) -> None:
    torch._dynamo.reset()
    compare(name, lambda f: torch.compile(f, backend="neuron"))
