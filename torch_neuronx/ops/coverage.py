"""The coverage report: what of PyTorch a NeuronCore executes, counted and explained."""

from __future__ import annotations

import difflib
import textwrap
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import torch

from .entry import (
    ANY,
    DTYPE_NAMES,
    EVERY,
    Engine,
    Gap,
    base_name,
    dtype_bits,
    dtype_list,
)
from .lookup import Entry, Status, entries, entry_or_unknown, verdict
from .modes import current_policy
from .table import Policy, policy_for
from .text import table

if TYPE_CHECKING:
    from collections.abc import Iterable

_STATUSES = (Status.NATIVE, Status.CARRIED, Status.GAP, Status.HOST, Status.UNDEFINED)


_WIDTH = 100


class UnknownOperatorError(ValueError):
    """A name that is no operator of this torch."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        close = difflib.get_close_matches(name, list(known), n=3)
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        super().__init__(f"no ATen operator is called {name!r}{hint}")


def cpu_operators() -> list[str]:
    """Base names of all ATen operators that this torch can run on the CPU, sorted."""
    # The underscored functions are the only door to the dispatcher's list of operators.
    every = torch._C._dispatch_get_all_op_names()  # noqa: SLF001
    runs = torch._C._dispatch_has_computed_kernel_for_dispatch_key  # noqa: SLF001
    return sorted({base_name(op) for op in every if op.startswith("aten::") and runs(op, "CPU")})


def policy_of(target: str | None) -> Policy:
    """The policy of a target name; of the emulated machine if None."""
    return current_policy() if target is None else policy_for(target)


def select(family: str | None) -> list[Entry]:
    """Entries of all operators with a CPU kernel, or of one family; ValueError if it is unknown."""
    chosen = [entry_or_unknown(name) for name in cpu_operators()]
    if family is None:
        return chosen
    families = sorted({entry.family for entry in chosen})
    if family not in families:
        raise ValueError(f"no family is called {family!r}; allowed: {', '.join(families)}")
    return [entry for entry in chosen if entry.family == family]


def engine_table(chosen: list[Entry], width: int) -> str:
    """Operators by engine, and how the entry is known."""
    rows = []
    for engine in Engine:
        mine = [entry for entry in chosen if entry.engine is engine]
        if not mine:
            continue
        documented = sum(entry.basis == "documented" for entry in mine)
        composite = sum(entry.composite for entry in mine)
        rows.append(
            [engine, *(str(n) for n in (len(mine), documented, len(mine) - documented, composite))]
        )
    return table(
        ["engine", "operators", "documented", "derived", "composite"],
        rows,
        width=width,
        numbers="operators documented derived composite",
    )


def dtype_table(chosen: list[Entry], policy: Policy, dtypes: list[str], width: int) -> str:
    """Operators by dtype and by what becomes of them."""
    rows = []
    for dtype in dtypes:
        counts = Counter(verdict(entry.name, dtype, policy).status for entry in chosen)
        rows.append([dtype, *(str(counts[status]) for status in _STATUSES)])
    names = [str(status) for status in _STATUSES]
    return table(["dtype", *names], rows, width=width, numbers=" ".join(names))


def host_table(chosen: list[Entry], width: int) -> str:
    """Host-only operators by reason."""
    groups: dict[Gap, list[str]] = defaultdict(list)
    for entry in chosen:
        if entry.engine is Engine.HOST:
            groups[entry.gaps[0]].append(entry.name)
    parts = []
    for gap, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        code = f"NCC_{gap.code}" if gap.code else "no documented code"
        parts.append(f"{len(names)} operators: {gap.reason} [{code}, {gap.basis}]")
        parts.append(f"  remedy: {gap.remedy}")
        parts.append(textwrap.indent(textwrap.fill(" ".join(names), width - 4), "    "))
    return "\n".join(parts)


def gap_table(chosen: list[Entry], policy: Policy, width: int) -> str:
    """Limits of operators that a NeuronCore has: which dtype or argument is refused, and why."""
    groups: dict[Gap, list[str]] = defaultdict(list)
    for entry in chosen:
        # Composite operators inherit the limits of their parts, which are listed.
        if entry.engine is not Engine.HOST and not entry.composite:
            for gap in entry.gaps:
                if gap.holds_on(policy.target):
                    groups[gap].append(entry.name)
    rows = []
    for gap, names in groups.items():
        dtypes = "any dtype" if gap.dtypes == EVERY else " ".join(dtype_list(gap.dtypes))
        when = f", when {gap.when}" if gap.when else ""
        accepted = "" if gap.when or policy.enforces(gap) else " (accepted in NEURON_CC_FLAGS)"
        text = f"{' '.join(names)}: {dtypes}{when}{accepted}. {gap.reason}; {gap.remedy}"
        rows.append([f"NCC_{gap.code}", text])
    return table(["code", "operators, dtypes, reason"], rows, width=width)


def operator_table(chosen: list[Entry], policy: Policy, dtype: str | None, width: int) -> str:
    """One line for each operator: engine, how it is known, and how."""
    rows = []
    for entry in chosen:
        cells = [entry.name, str(entry.engine), str(entry.basis)]
        if dtype is not None:
            cells.append(str(verdict(entry.name, dtype, policy).status))
        rows.append([*cells, entry.note + (" (composite)" if entry.composite else "")])
    head = ["operator", "engine", "basis", *([dtype] if dtype is not None else []), "how"]
    return table(head, rows, width=width)


def report(
    target: str | None = None,
    family: str | None = None,
    dtype: str | None = None,
    *,
    host_only: bool = False,
    width: int = 100,
) -> str:
    """The coverage report as text; see `python -m torch_neuronx.ops --help` for the choices."""
    policy = policy_of(target)
    chosen = select(family)
    if host_only:
        return host_table(chosen, width) or "No operator of this choice is left to the host."
    on_core = sum(entry.engine is not Engine.HOST for entry in chosen)
    what = "ATen operators" if family is None else f"operators of the family {family}"
    dtypes = [dtype] if dtype is not None else dtype_list(ANY | dtype_bits("float64 complex64"))
    parts = [
        (
            f"PyTorch {torch.__version__} on {policy.target}: {len(chosen)} {what} have a CPU "
            f"kernel;\n{on_core} of them run on a NeuronCore in some dtype, "
            f"{len(chosen) - on_core} on the host."
        ),
        engine_table(chosen, width),
        dtype_table(chosen, policy, dtypes, width),
    ]
    if family is not None or dtype is not None:
        parts.append(operator_table(chosen, policy, dtype, width))
    else:
        parts.append(_family_table(chosen, width))
    gaps = gap_table(chosen, policy, width)
    if gaps.count("\n") > 1:
        parts.append("Known limits of operators that a NeuronCore has\n\n" + gaps)
    if dtype is None and on_core < len(chosen):
        parts.append("Host only\n\n" + host_table(chosen, width))
    return "\n\n".join(parts)


def _family_table(chosen: list[Entry], width: int) -> str:
    rows = []
    for family in sorted({entry.family for entry in chosen}):
        mine = [entry for entry in chosen if entry.family == family]
        host = sum(entry.engine is Engine.HOST for entry in mine)
        rows.append([family, str(len(mine)), str(len(mine) - host), str(host)])
    return table(
        ["family", "operators", "NeuronCore", "host"],
        rows,
        width=width,
        numbers="operators NeuronCore host",
    )


def explain(op: str, target: str | None = None) -> str:
    """Look one operator up in the table.

    Raises:
        UnknownOperatorError: this torch has no such operator.
    """
    policy = policy_of(target)
    entry = find(op)
    name = entry.name
    lines = [
        f"{name}: family {entry.family}, engine {entry.engine}, {entry.basis} ({entry.note})",
    ]
    if entry.composite:
        lines.append("  PyTorch takes it apart before the device sees it; its parts are counted.")
    by_status: dict[Status, list[str]] = defaultdict(list)
    for dtype in DTYPE_NAMES if entry.dtypes != EVERY else ():
        by_status[verdict(name, dtype, policy).status].append(dtype)
    if entry.dtypes == EVERY:
        lines.append(f"  {policy.target}: every dtype, no element is read")
    for status, label in ((Status.NATIVE, "runs with"), (Status.CARRIED, "in 32 bits")):
        if by_status[status]:
            lines.append(f"  {policy.target} {label}: {', '.join(by_status[status])}")
    for gap in entry.gaps:
        if gap.holds_on(policy.target):
            lines.extend(_gap_lines(gap, policy))
    return "\n".join(
        textwrap.fill(line, _WIDTH, subsequent_indent=" " * 6, break_on_hyphens=False)
        for line in lines
    )


def _gap_lines(gap: Gap, policy: Policy) -> list[str]:
    code = f"NCC_{gap.code}" if gap.code else "no documented code"
    dtypes = "" if gap.dtypes == EVERY else f" for {', '.join(dtype_list(gap.dtypes))}"
    when = f" when {gap.when}" if gap.when else ""
    accepted = "" if gap.when or policy.enforces(gap) else " (accepted in NEURON_CC_FLAGS)"
    return [
        f"  limit [{code}, {gap.basis}]{dtypes}{when}{accepted}: {gap.reason}",
        f"    remedy: {gap.remedy}",
    ]


def find(op: str) -> Entry:
    """The entry of an operator, with or without namespace, overload and in-place underscore.

    Raises:
        UnknownOperatorError: this torch has no such operator.
    """
    name = base_name(op)
    if name not in entries():
        known = cpu_operators()
        if name not in known:
            raise UnknownOperatorError(op, known)
    return entry_or_unknown(name)


def as_data(chosen: list[Entry], policy: Policy, dtype: str | None) -> dict[str, object]:
    """The report as plain data for JSON: target, torch, and one record for each operator."""
    names = DTYPE_NAMES if dtype is None else (dtype,)
    records = []
    for entry in chosen:
        found = {name: verdict(entry.name, name, policy).status for name in names}
        records.append(
            {
                "name": entry.name,
                "family": entry.family,
                "engine": str(entry.engine),
                "basis": str(entry.basis),
                "composite": entry.composite,
                "native": [name for name in names if found[name] is Status.NATIVE],
                "carried": [name for name in names if found[name] is Status.CARRIED],
                "limits": [
                    {
                        "code": gap.code,
                        "reason": gap.reason,
                        "remedy": gap.remedy,
                        "when": gap.when,
                        "dtypes": [] if gap.dtypes == EVERY else dtype_list(gap.dtypes),
                    }
                    for gap in entry.gaps
                    if gap.holds_on(policy.target)
                ],
                "note": entry.note,
            }
        )
    return {"target": policy.target, "torch": torch.__version__, "operators": records}
