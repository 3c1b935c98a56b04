"""The machines that can be emulated and compiled for, as data.

One file per target holds its numbers, each with the public document it comes from. A file with a
``TARGET`` is a target: nothing else lists them.

>>> get_target("trn2").cores_per_chip
8
>>> get_target("gen3").name
'trn2'
"""

import argparse
import importlib
import pkgutil

from neuronxcc.targets.engines import Engine
from neuronxcc.targets.spec import (
    CollectiveFacts,
    EngineSpec,
    Instance,
    Link,
    NeuronCore,
    OnChipMemory,
    Target,
)

__all__ = [
    "DEFAULT_TARGET",
    "SIMULATOR_TARGET",
    "TARGETS",
    "CollectiveFacts",
    "Engine",
    "EngineSpec",
    "Instance",
    "Link",
    "NeuronCore",
    "OnChipMemory",
    "Target",
    "UnknownTargetError",
    "get_target",
    "register",
    "target_argument",
    "target_names",
]


def _files() -> list[Target]:
    names = [f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)]
    found = [getattr(importlib.import_module(name), "TARGET", None) for name in names]
    targets = [target for target in found if target is not None]
    # The chip that a generation is called by ("gen2") before its relatives.
    return sorted(targets, key=lambda t: (t.core.generation, not t.aliases, t.name))


TARGETS: tuple[Target, ...] = tuple(_files())
#: What is emulated and compiled for where nobody says what.
DEFAULT_TARGET = "trn2"
#: What an NKI kernel runs on outside of the device, if no variable says what. The documentation of
#: `nki.simulate` names trn3, whose core executes every published instruction.
SIMULATOR_TARGET = "trn3"

_BY_NAME: dict[str, Target] = {}


def register(target: Target) -> None:
    """Add a target to those of the files, for this process: a machine that one thinks of.

    To emulate it, register it before ``import torch`` and name it in
    ``NEURON_PLATFORM_TARGET_OVERRIDE``.

    Raises:
        ValueError: the name or an alias is one of another target.
    """
    for name in (target.name, *target.aliases):
        if _BY_NAME.setdefault(name, target) is not target:
            raise ValueError(f"the name {name!r} is that of the target {_BY_NAME[name].name}")


class UnknownTargetError(ValueError):
    """A name that is no target.

    Attributes:
        given: the name that was asked for.
        allowed: all names that are accepted.
        remedy: what to name instead, "" where the name is nothing that we know.
    """

    def __init__(self, given: str) -> None:
        self.given = given
        self.allowed = target_names()
        self.remedy = _instead(given.strip().lower())
        said = f"unknown target {given!r}; allowed: {', '.join(self.allowed)}"
        super().__init__(f"{said}. {self.remedy}" if self.remedy else said)


def _instead(name: str) -> str:
    """What to name where somebody named an instance type or the generation that is not emulated."""
    for target in _BY_NAME.values():
        for instance in target.instances:
            if name == instance.name.lower():
                return f"{instance.name} is an instance of {target.name}: name {target.name}."
    if name.partition(".")[0] == "inf1":
        return (
            "Inf1 has NeuronCore-v1, for which another compiler, neuron-cc, is made; it is not "
            "emulated. The oldest core here is NeuronCore-v2: name inf2."
        )
    return ""


def target_names() -> tuple[str, ...]:
    """Return every accepted spelling: the names of the targets, then their aliases."""
    return tuple(sorted(_BY_NAME, key=lambda name: _BY_NAME[name].name != name))


def get_target(name: str) -> Target:
    """Return the target called ``name``, in any letter case.

    Raises:
        UnknownTargetError: there is none; the message lists what is allowed.
    """
    target = _BY_NAME.get(name.strip().lower())
    if target is None:
        raise UnknownTargetError(name)
    return target


def target_argument(text: str) -> str:
    """Return the target of a command line as it is given; for the ``type`` of an option.

    Raises:
        argparse.ArgumentTypeError: there is none, with the text of `UnknownTargetError`.
    """
    try:
        get_target(text)
    except UnknownTargetError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


for _target in TARGETS:
    register(_target)
