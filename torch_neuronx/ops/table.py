"""The rows of all families, what is assumed of the compiler, and the masks for the native core."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from neuronxcc.environment.compilation import NEURON_CC_FLAGS
from neuronxcc.targets import get_target
from torch_neuronx.compat.operators import absent

from .entry import ANY, EVERY, WIDE_INTS, Engine, Gap, Row
from .families import composite, host, movement, optim, pointwise, reduction, tensor
from .gaps import DTYPE_GAPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neuronxcc.options import Options

_ABSENT = absent()


def _of_this_release(row: Row) -> Row:
    """The row without operators that this release of PyTorch lacks."""
    names = row.names.split()
    if _ABSENT.isdisjoint(names):
        return row
    return row._replace(names=" ".join(name for name in names if name not in _ABSENT))


_EVERY_RELEASE = (
    *pointwise.ROWS,
    *reduction.ROWS,
    *tensor.ROWS,
    *movement.ROWS,
    *optim.ROWS,
    *host.ROWS,
    *composite.ROWS,
)
ROWS: tuple[Row, ...] = tuple(_of_this_release(row) for row in _EVERY_RELEASE)


class Policy(NamedTuple):
    """Assumptions about the compiler: the target and the two documented integer options.

    `native_int64` is `--native-int64=enabled` on a target that can; `accepted` holds the losses
    that the user named in `--implicit-integer-downcast`.
    """

    target: str
    native_int64: bool = False
    accepted: frozenset[str] = frozenset()

    @classmethod
    def of(cls, options: Options) -> Policy:
        """Return the assumptions that the options of a compilation make."""
        return cls(options.target, options.int64_is_native, options.accepted_downcasts)

    @property
    def device_dtypes(self) -> int:
        """Bit mask of the dtypes that operators of this target can compute with."""
        mask = ANY
        for gap in DTYPE_GAPS:
            if gap.holds_on(self.target):
                mask &= ~gap.dtypes
        return mask

    def enforces(self, gap: Gap) -> bool:
        """Return whether the gap refuses a dtype here, independent of the arguments of a call."""
        return not gap.when and gap.holds_on(self.target) and gap.accept not in self.accepted


def policy_for(target: str, environ: Mapping[str, str] | None = None) -> Policy:
    """Return the assumptions of eager mode about a target, NEURON_CC_FLAGS included.

    Args:
        target: a name that `neuronxcc.targets` knows.
        environ: the variables; those of the process if None.

    Raises:
        ValueError: an unknown target, or an item of an integer option that is not documented.
    """
    if not NEURON_CC_FLAGS.text(environ):
        return Policy(get_target(target).name)
    # `import torch` reads this module, and hardly anybody sets flags.
    from neuronxcc.options import for_eager  # noqa: PLC0415

    return Policy.of(for_eager(target, environ))


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
