"""The whole table: look-ups, the verdict for one operator and dtype, and the masks for the core.

Making the masks is part of `import torch`, so it works on rows and bit masks; the objects for people
(`Entry`, `Verdict`) are made when somebody asks.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neuronxcc.targets import get_target

from .entry import (
    ANY,
    DTYPE_NUMBER,
    EVERY,
    WIDE_INTS,
    Basis,
    Engine,
    Entry,
    Gap,
    Row,
    Status,
    Verdict,
)
from .families import composite, host, movement, optim, pointwise, reduction, tensor
from .gaps import DTYPE_GAPS, NOT_IN_TABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

ROWS: tuple[Row, ...] = (
    *pointwise.ROWS,
    *reduction.ROWS,
    *tensor.ROWS,
    *movement.ROWS,
    *optim.ROWS,
    *host.ROWS,
    *composite.ROWS,
)

DOWNCAST_KINDS = ("dot", "scatter", "all_reduce", "reduce_scatter", "pow")
_FLAG = re.compile(r"--(native-int64|implicit-integer-downcast)[=\s]+(\S+)")


@dataclass(frozen=True, slots=True)
class Policy:
    """What is assumed of the compiler: the target and the two documented integer options.

    `native_int64` is `--native-int64=enabled` on a target that can; `accepted` holds the losses
    that the user named in `--implicit-integer-downcast`.
    """

    target: str
    native_int64: bool = False
    accepted: frozenset[str] = frozenset()

    @property
    def device_dtypes(self) -> int:
        """Bit mask of the dtypes that operators of this target can compute with."""
        mask = ANY
        for gap in DTYPE_GAPS:
            if gap.holds_on(self.target):
                mask &= ~gap.dtypes
        return mask

    def enforces(self, gap: Gap) -> bool:
        """Whether the gap refuses a dtype here, independent of the arguments of a call."""
        return not gap.when and gap.holds_on(self.target) and gap.accept not in self.accepted


def policy_for(target: str, environ: Mapping[str, str] | None = None) -> Policy:
    """Read the integer options from NEURON_CC_FLAGS; the right-most option wins, as documented.

    Args:
        target: a name that `neuronxcc.targets` knows.
        environ: the variables; `os.environ` if None.

    Raises:
        ValueError: an unknown target, or an item of an integer option that is not documented.
    """
    flags = (os.environ if environ is None else environ).get("NEURON_CC_FLAGS", "")
    chip = get_target(target)
    native = False
    accepted: frozenset[str] = frozenset()
    for option, value in _FLAG.findall(flags):
        if option == "native-int64":
            _check_items(option, [value], ("default", "enabled", "disabled"))
            native = value == "enabled"
        elif value in {"default", "none"}:
            accepted = frozenset()
        elif value == "all":
            accepted = frozenset(DOWNCAST_KINDS)
        else:
            items = value.split(",")
            _check_items(option, items, DOWNCAST_KINDS)
            accepted = frozenset(items)
    return Policy(chip.name, native and chip.native_int64, accepted)


def _check_items(option: str, items: list[str], allowed: tuple[str, ...]) -> None:
    for item in items:
        if item not in allowed:
            raise ValueError(
                f"NEURON_CC_FLAGS: --{option}={item} is not known; allowed: {', '.join(allowed)}"
            )


def masks(policy: Policy, *, carried: bool = True) -> dict[str, int]:
    """Base name -> bit mask of the dtypes that a NeuronCore executes, for every operator listed.

    With `carried` false, 64-bit integers that are held in 32 bits do not count as executed.
    """
    device = policy.device_dtypes
    if not carried and not policy.native_int64:
        device &= ~WIDE_INTS
    result: dict[str, int] = {}
    for row in ROWS:
        if row.dtypes == EVERY:
            mask = EVERY
        elif row.engine is Engine.HOST:
            mask = 0
        else:
            mask = device
            for gap in row.gaps:
                if policy.enforces(gap):
                    mask &= ~gap.dtypes
        result.update(dict.fromkeys(row.names.split(), mask))
    return result


@functools.cache
def entries() -> Mapping[str, Entry]:
    """Every entry by base name, in the order of the rows. Made at the first call."""
    return {
        name: Entry(
            name,
            row.family,
            row.engine,
            row.basis,
            row.dtypes,
            row.gaps,
            row.note,
            row.composite,
        )
        for row in ROWS
        for name in row.names.split()
    }


def entry_or_unknown(name: str) -> Entry:
    """The entry of a base name; for one that is not listed an entry that says `host`."""
    found = entries().get(name)
    if found is None:
        found = Entry(
            name,
            "unlisted",
            Engine.HOST,
            Basis.DERIVED,
            ANY,
            (NOT_IN_TABLE,),
            "not in the operator table",
            composite=False,
        )
    return found


def verdict(name: str, dtype: str, policy: Policy) -> Verdict:
    """What becomes of the operator `name` (a base name) with `dtype` ("float32", no prefix).

    An empty or unknown dtype stands for "no tensor": only host-only operators are refused then.
    """
    entry = entry_or_unknown(name)
    if entry.dtypes == EVERY:
        return Verdict(Status.NATIVE, entry.engine)
    if entry.engine is Engine.HOST:
        return Verdict(Status.HOST, Engine.HOST, entry.gaps[0])
    number = DTYPE_NUMBER.get(dtype)
    if number is None:
        return Verdict(Status.NATIVE, entry.engine)
    bit = 1 << number
    for gap in (*DTYPE_GAPS, *(gap for gap in entry.gaps if policy.enforces(gap))):
        if gap.dtypes & bit and gap.holds_on(policy.target):
            return Verdict(Status.GAP, Engine.HOST, gap)
    if not entry.dtypes & bit:
        return Verdict(Status.UNDEFINED, entry.engine)
    if bit & WIDE_INTS and not policy.native_int64:
        return Verdict(Status.CARRIED, entry.engine)
    return Verdict(Status.NATIVE, entry.engine)


def executed_dtypes(name: str, policy: Policy) -> int:
    """Bit mask of the dtypes for which the verdict is native or carried."""
    mask = 0
    for dtype, number in DTYPE_NUMBER.items():
        if verdict(name, dtype, policy).status in {Status.NATIVE, Status.CARRIED}:
            mask |= 1 << number
    return mask
