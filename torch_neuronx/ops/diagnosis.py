"""Who asked for an operator that a NeuronCore would not run as it is, and what to tell them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_neuronx.users_line import SourceLine, users_line

from .entry import ANY, Mode, base_name, dtype_list
from .lookup import Status, Verdict, executed_dtypes, verdict

if TYPE_CHECKING:
    from types import FrameType

    from .table import Policy


def describe(op: str, dtype: str, policy: Policy, found: Verdict, where: SourceLine) -> str:
    """The text of the warning and of the error: given, reason, allowed, remedy."""
    name = base_name(op)
    gap = found.gap
    code = f" [NCC_{gap.code}]" if gap is not None and gap.code else ""
    given = f"{op} on {dtype}" if dtype else op
    if found.status is Status.CARRIED:
        narrow = "uint32" if dtype == "uint64" else "int32"
        return (
            f"{given}: a NeuronCore ({policy.target}) carries {dtype} as {narrow}\n"
            f"  {where}\n"
            "  reason: high-order bits are cut off, values below 2^31 in magnitude are exact\n"
            f"  remedy: use torch.{narrow}, or --native-int64=enabled in NEURON_CC_FLAGS on trn2 "
            "and newer (shown once for each dtype)"
        )
    assert gap is not None
    allowed = ", ".join(dtype_list(executed_dtypes(name, policy) & ANY))
    return (
        f"{given} does not run on a NeuronCore ({policy.target}){code}\n"
        f"  {where}\n"
        f"  reason: {gap.reason}\n"
        f"  allowed: {allowed or 'nothing, it runs on the host CPU in every dtype'}\n"
        f"  remedy: {gap.remedy}"
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to warn about or refuse; findings with one `key` are warned about once."""

    message: str
    where: SourceLine
    key: tuple[str, str, str, int]
    target: str
    code: str


def diagnose(
    op: str, dtype: str, policy: Policy, frame: FrameType | None, mode: Mode
) -> Finding | None:
    """Return the diagnosis of a call, or None if it may run.

    Strict mode lets 64-bit integers carried in 32 bits pass: token ids and labels are such.
    """
    found = verdict(base_name(op), dtype, policy)
    carried = found.status is Status.CARRIED
    if found.on_neuron_core and not (carried and mode is Mode.WARN):
        return None
    where = users_line(frame)
    if where is None:
        # Formatting a tensor reads its values on the host anyway: counted, no reason to stop.
        return None
    # Carried integers would bury everything else: one warning for the dtype is enough.
    key = ("", dtype, "", 0) if carried else (base_name(op), dtype, where.filename, where.line)
    return Finding(
        describe(op, dtype, policy, found, where),
        where,
        key,
        policy.target,
        found.gap.code if found.gap is not None else "",
    )
