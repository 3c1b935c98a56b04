"""The machines that can be emulated and compiled for, as data.

One file per target holds its numbers, each with the public document it comes from.

>>> get_target("trn2").cores_per_chip
8
>>> get_target("gen3").name
'trn2'
"""

from neuronxcc.targets import inf2, trn1, trn1n, trn2, trn3
from neuronxcc.targets.spec import (
    CollectiveFacts,
    Engine,
    Instance,
    Link,
    NeuronCore,
    OnChipMemory,
    Target,
)

__all__ = [
    "DEFAULT_TARGET",
    "TARGETS",
    "CollectiveFacts",
    "Engine",
    "Instance",
    "Link",
    "NeuronCore",
    "OnChipMemory",
    "Target",
    "UnknownTargetError",
    "get_target",
    "target_names",
]

TARGETS: tuple[Target, ...] = (
    trn1.TARGET,
    trn1n.TARGET,
    inf2.TARGET,
    trn2.TARGET,
    trn3.TARGET,
)
DEFAULT_TARGET = "trn2"

_BY_NAME = {target.name: target for target in TARGETS} | {
    alias: target for target in TARGETS for alias in target.aliases
}


class UnknownTargetError(ValueError):
    """A name that is no target.

    Attributes:
        given: the name that was asked for.
        allowed: all names that are accepted.
    """

    def __init__(self, given: str) -> None:
        self.given = given
        self.allowed = target_names()
        super().__init__(f"unknown target {given!r}; allowed: {', '.join(self.allowed)}")


def target_names() -> tuple[str, ...]:
    """Return every accepted spelling: the names of the targets, then their aliases."""
    return tuple(_BY_NAME)


def get_target(name: str) -> Target:
    """Return the target called ``name``, in any letter case.

    Raises:
        UnknownTargetError: there is none; the message lists what is allowed.
    """
    target = _BY_NAME.get(name.strip().lower())
    if target is None:
        raise UnknownTargetError(name)
    return target
