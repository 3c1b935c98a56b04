"""Which ranks take part in a collective, and the register that holds a rank's number."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from nki.context import current_run
from nki.errors import NkiError
from nki.isa.objects import VirtualRegister
from nki.objects import NKIObject
from nki.recorder import Recorder

__all__ = ["RankRegister", "ReplicaGroup", "recorder"]


class ReplicaGroup(NKIObject):
    """Lists of ranks; the ranks of one list communicate with each other, in the order of the list.

    Attributes:
        groups: the lists, equally long; no rank is in two of them.
    """

    groups: tuple[tuple[int, ...], ...]

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        """Take lists of ranks.

        Raises:
            NkiError: they are empty, overlap, or differ in length (NKI310).
        """
        self.groups = checked_groups(groups)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReplicaGroup) and self.groups == other.groups

    def __hash__(self) -> int:
        return hash(self.groups)

    def __fingerprint__(self) -> tuple[Any, ...]:
        """Its parts, see `nki.fingerprint`."""
        return self.groups

    def __repr__(self) -> str:
        return f"ReplicaGroup({[list(group) for group in self.groups]})"


def checked_groups(groups: Any) -> tuple[tuple[int, ...], ...]:
    """Return lists of ranks as tuples.

    Raises:
        NkiError: they are no lists of ranks that can communicate (NKI310).
    """
    remedy = "give lists of ranks like ReplicaGroup([[0, 1], [2, 3]])"
    try:
        made = tuple(tuple(operator.index(rank) for rank in group) for group in groups)
    except TypeError:
        raise NkiError("NKI310", f"{groups!r} is no list of lists of ranks", remedy) from None
    ranks = [rank for group in made for rank in group]
    for wrong, why in (
        (not ranks or not all(made), "has an empty list"),
        (any(rank < 0 for rank in ranks), "has a negative rank"),
        (len(set(ranks)) != len(ranks), "names a rank twice"),
        (len({len(group) for group in made}) > 1, "has lists of different lengths"),
    ):
        if wrong:
            raise NkiError("NKI310", f"the replica group {groups!r} {why}", remedy)
    return made


def recorder() -> Recorder:
    """Return what records the current kernel.

    Raises:
        NkiError: there is none (NKI143).
    """
    found = current_run()
    if not isinstance(found, Recorder):
        raise NkiError(
            "NKI143",
            "a function of nki.collectives is called outside of a kernel",
            "call it in a function that is decorated with nki.jit, run by nki.collectives.spmd",
        )
    return found


class RankRegister(VirtualRegister):
    """A register whose value is known at once, because each rank is recorded on its own.

    It goes wherever a register does, for instance as `scalar_offset`, and wherever an integer does.
    Arithmetic gives registers of the same kind.
    """

    __slots__ = ("_known",)

    def __init__(self, value: int) -> None:
        """Make the register and fill it."""
        made = recorder().register(value, frozen=True)
        super().__init__(value, frozen=True, number=made.number)
        self._known = value

    def __int__(self) -> int:
        return self._known

    def __index__(self) -> int:
        return self._known

    def __bool__(self) -> bool:
        return self._known != 0

    def __hash__(self) -> int:
        return hash(self._known)

    def __eq__(self, other: object) -> bool:
        return other == self._known

    def __repr__(self) -> str:
        return f"RankRegister({self._known})"


def _compared(function: Callable[[Any, Any], bool]) -> Callable[[RankRegister, Any], Any]:
    def compare(self: RankRegister, other: Any) -> Any:
        return function(int(self), other)

    return compare


def _computed(
    function: Callable[[Any, Any], int], *, swapped: bool
) -> Callable[[RankRegister, Any], Any]:
    def compute(self: RankRegister, other: Any) -> Any:
        if not isinstance(other, (int, RankRegister)):
            return NotImplemented
        x, y = (other, int(self)) if swapped else (int(self), other)
        return RankRegister(function(int(x), int(y)))

    return compute


for _name in ("lt", "le", "gt", "ge"):
    setattr(RankRegister, f"__{_name}__", _compared(getattr(operator, _name)))
for _name in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    _function = getattr(operator, f"{_name}_" if _name in ("and", "or") else _name)
    setattr(RankRegister, f"__{_name}__", _computed(_function, swapped=False))
    setattr(RankRegister, f"__r{_name}__", _computed(_function, swapped=True))
