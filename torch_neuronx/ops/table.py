"""The rows of all families, what is assumed of the compiler, and the masks for the native core."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from neuronxcc.targets import get_target

from .entry import ANY, EVERY, WIDE_INTS, Engine, Gap, Row
from .families import composite, host, movement, optim, pointwise, reduction, tensor
from .gaps import DTYPE_GAPS

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
_FLAG = r"--(native-int64|implicit-integer-downcast)[=\s]+(\S+)"


class Policy(NamedTuple):
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
    for option, value in re.findall(_FLAG, flags) if flags else ():
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
