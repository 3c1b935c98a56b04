"""The rules for addresses in SBUF and PSUM, each with its source and remedy.

A view may break them and still be made, read and sliced: they hold for operands of the compute
engines, which the table of instructions says. DMA engines read and write any elements.

Sources are the public architecture guides: the access rules of
nki/guides/architecture/trainium_inferentia2_arch.rst, section "Accessing SBUF/PSUM tensors using
compute engines", which the guides of trn2 and trn3 refer to.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nki.addressing import canonical_dims
from nki.dtypes import info
from nki.errors import NkiValidationError
from nki.memory import Storage
from nki.pattern import AccessPattern

__all__ = ["RULES", "AccessRule", "broken_rule", "check_access"]

LONGEST = 2**16 - 1  # a dimension's size is 16 bits without a sign
WIDEST = 2**15 - 1  # a stride is 16 bits with a sign, in elements
FREE_DIMS = 4


@dataclass(frozen=True, slots=True)
class AccessRule:
    """A rule for operands of the compute engines.

    Attributes:
        code: of the error.
        text: what the hardware demands.
        remedy: what to do about a view that breaks it.
        fault: returns what is wrong with a view, "" if nothing.
    """

    code: str
    text: str
    remedy: str
    fault: Callable[[Storage, AccessPattern], str]


def _lanes(storage: Storage, p: AccessPattern) -> tuple[int, int, int]:
    """Return first partition, how many, and the step from one to the next."""
    itemsize = info(p.dtype).itemsize
    first = p.offset * itemsize // storage.row_bytes
    if storage.address is not None:
        first += storage.address[0]
    return first, p.shape[0], p.strides[0] * itemsize // storage.row_bytes


def _partition_step(storage: Storage, p: AccessPattern) -> str:
    _, count, step = _lanes(storage, p)
    if count == 1 or step == 1:
        return ""
    return f"reads every {step}th partition" if step else "reads one partition several times"


def _start_partition(storage: Storage, p: AccessPattern) -> str:
    first, count, _ = _lanes(storage, p)
    # The allocator may move what has no address, but never by less than a quadrant.
    unit = 128 if count > 64 else 64 if count > 32 else 32
    if first % unit == 0:
        return ""
    allowed = "/".join(str(start) for start in range(0, 128, unit))
    return f"starts at partition {first}, and {count} partitions start at {allowed}"


def _free_dims(storage: Storage, p: AccessPattern) -> str:
    del storage
    free = len(canonical_dims(p, longest=LONGEST)) - 1
    return f"has {free} free dimensions that do not merge" if free > FREE_DIMS else ""


def _longest(storage: Storage, p: AccessPattern) -> str:
    del storage
    longest = max(count for _, count in canonical_dims(p, longest=LONGEST))
    return f"has a dimension of {longest} elements" if longest > LONGEST else ""


def _widest(storage: Storage, p: AccessPattern) -> str:
    del storage
    widest = max((abs(s) for s, _ in canonical_dims(p, longest=LONGEST)[1:]), default=0)
    return f"has a stride of {widest} elements" if widest > WIDEST else ""


RULES: tuple[AccessRule, ...] = (
    AccessRule(
        "NKI023",
        "An engine reads and writes neighbouring partitions.",
        "copy the rows together with a DMA, or put what is strided into the free dimensions",
        _partition_step,
    ),
    AccessRule(
        "NKI030",
        "More than 64 partitions start at partition 0, more than 32 at 0 or 64, and others at 0, "
        "32, 64 or 96.",
        "move the rows with a DMA, or make a tile of their own",
        _start_partition,
    ),
    AccessRule(
        "NKI031",
        f"An engine steps through at most {FREE_DIMS} free dimensions.",
        "copy the view to a tensor of its own with several instructions",
        _free_dims,
    ),
    AccessRule(
        "NKI032",
        f"A free dimension has at most {LONGEST} elements.",
        "split the dimension over several instructions",
        _longest,
    ),
    AccessRule(
        "NKI033",
        f"A free dimension steps at most {WIDEST} elements.",
        "read it as a larger type, or reorder the tensor",
        _widest,
    ),
)


def broken_rule(storage: Storage, p: AccessPattern) -> tuple[AccessRule, str] | None:
    """Return the first rule that a view of an on-chip storage breaks, and how; None if it is fine.

    Where an index moves the view over partitions, the first ones are judged at index 0.
    """
    for rule in RULES:
        fault = rule.fault(storage, p)
        if fault:
            return rule, fault
    return None


# Views that broke no rule. Kernels make few different ones, so that this stays small.
_FINE: set[tuple[object, ...]] = set()


def check_access(storage: Storage, p: AccessPattern, operand: str = "the operand") -> None:
    """Refuse a view that the compute engines cannot address; HBM is none of their business.

    Raises:
        NkiValidationError: with the code of the rule.
    """
    if not p.partition:
        return
    lanes = _lanes(storage, p)
    key = (p.shape, p.strides, lanes)
    if key in _FINE:
        return
    broken = broken_rule(storage, p)
    if broken is None:
        _FINE.add(key)
        return
    rule, fault = broken
    raise NkiValidationError(
        rule.code,
        f"{operand}, a view of {storage.label} of shape {p.shape}, {fault}",
        rule.remedy,
    )
