"""The names by which kernels import the first generation, and what they say of themselves."""

import importlib
import pickle

import pytest

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from neuronxcc.nki.isa import constants


@pytest.mark.parametrize(
    "name", ["language", "isa", "isa.constants", "compiler", "compiler.psum", "compiler.sbuf"]
)
def test_a_module_of_names_has_what_the_implementation_exports(name: str) -> None:
    names = importlib.import_module(f"neuronxcc.nki.{name}")
    real = importlib.import_module(f"nki.first_generation.{name}")
    for public in real.__all__:
        if (name, public) not in {("compiler", "psum"), ("compiler", "sbuf")}:
            assert getattr(names, public) is getattr(real, public), public
    assert {n for n in dir(names) if not n.startswith("_")} == {*real.__all__} | (
        {"constants"} if name == "isa" else set()
    )


def test_public_things_are_pickled_by_name() -> None:
    for thing in (nl.add, nl.load, nisa.activation, constants.dge_mode.hwdge, nki.FirstKernel):
        assert pickle.loads(pickle.dumps(thing)) is thing  # noqa: S301


def test_enumerations_that_were_pickled_before_the_move_are_read() -> None:
    old = b"cneuronxcc.nki.isa.constants\nengine\n(I5\ntR."
    assert pickle.loads(old) is nisa.vector_engine  # noqa: S301
