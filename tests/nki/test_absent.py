"""Names of the first generation, in today's modules: the error says which module has them."""

import importlib
import re
from types import ModuleType

import pytest

import nki
from nki.absent import TODAY, NkiAttributeError

MODULES = ("nki", "nki.isa", "nki.language")


def _former(module: str) -> str:
    return module.replace("nki", "neuronxcc.nki", 1)


def _names(module: str) -> list[str]:
    """What the module of the first generation has and today's hasn't."""
    old, new = importlib.import_module(_former(module)), importlib.import_module(module)
    public = getattr(old, "__all__", dir(old))
    return [
        name
        for name in public
        if not name.startswith("_")
        and not isinstance(getattr(old, name), ModuleType)
        and not hasattr(new, name)
    ]


ABSENT = [(module, name) for module in MODULES for name in _names(module)]


@pytest.mark.parametrize(("module", "name"), ABSENT)
def test_the_error_says_where_a_name_is(module: str, name: str) -> None:
    here = re.escape(__file__)
    with pytest.raises(NkiAttributeError) as caught:
        getattr(importlib.import_module(module), name)
    former = _former(module)
    text = str(caught.value)
    assert re.match(
        rf"module '{module}' has no attribute '{name}': {former}\.{name} is of the first "
        rf"generation of kernels; {here}:\d+; write `import {former}` for a kernel of that "
        r"generation",
        text,
    )
    assert text.endswith("[NKI283]")
    today = TODAY.get(f"{module}.{name}")
    assert today is None or f"; for one of today: {today} [NKI283]" in text


def test_what_is_said_to_do_it_today_is_there() -> None:
    absent = {f"{module}.{name}" for module, name in ABSENT}
    assert set(TODAY) <= absent
    assert {"nki.benchmark", "nki.baremetal", "nki.language.par_dim"} <= absent
    for text in TODAY.values():
        for named in re.findall(r"\b(?:nki|nl|nisa)(?:\.\w+)+", text):
            long = re.sub(r"^nl\b", "nki.language", re.sub(r"^nisa\b", "nki.isa", named))
            module, _, name = long.rpartition(".")
            assert hasattr(importlib.import_module(module), name), named


@pytest.mark.parametrize("module", MODULES)
def test_other_names_are_absent_as_in_any_module(module: str) -> None:
    found = importlib.import_module(module)
    with pytest.raises(AttributeError, match=f"^module '{module}' has no attribute 'sparkle'$"):
        found.sparkle  # noqa: B018
    assert not hasattr(found, "par_dim_")


def test_objects_are_named_by_both_modules() -> None:
    assert nki.isa.NKIObject is nki.language.NKIObject
