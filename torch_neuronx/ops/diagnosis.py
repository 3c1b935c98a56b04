"""Who asked for an operator that a NeuronCore would not run as it is, and what to tell them."""

from __future__ import annotations

import functools
import linecache
import os
import sysconfig
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .entry import ANY, Mode, base_name, dtype_list
from .lookup import Status, Verdict, executed_dtypes, verdict

if TYPE_CHECKING:
    from types import FrameType

    from .table import Policy


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's program; `filename` is "" where no Python code was running."""

    filename: str
    line: int
    backward: bool

    def __str__(self) -> str:
        if not self.filename:
            return "in the backward pass" if self.backward else "outside Python code"
        text = textwrap.shorten(linecache.getline(self.filename, self.line), 100)
        place = f"{self.filename}:{self.line}" + (f": {text}" if text else "")
        return f"in the backward pass started at {place}" if self.backward else f"at {place}"


# Not resolved: code objects carry the path they were imported by, links and all.
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_PRINTING = os.sep + os.path.join("torch", "_tensor_str.py")  # noqa: PTH118  (a suffix, not a path)
_TORCH = os.sep + "torch" + os.sep
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)


@functools.cache
def _standard_library() -> tuple[str, ...]:
    # At the first report, not at import: sysconfig reads its data for milliseconds.
    return tuple({sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "platstdlib")})


def _walk(frame: FrameType | None) -> SourceLine | None:
    """Find the user's line; None if PyTorch is printing a tensor.

    The innermost frame outside all installed packages wins. A program that is itself installed has
    none; then it is the innermost frame outside torch and this package.
    """
    installed: FrameType | None = None
    backward = python = False
    while frame is not None:
        name = frame.f_code.co_filename
        if name.endswith(_PRINTING):
            return None
        backward = backward or frame.f_code.co_name == "_engine_run_backward"
        if any(part in name for part in _INSTALLED):
            if installed is None and _TORCH not in name:
                installed = frame
        elif not name.startswith((_PACKAGE, "<frozen ", *_standard_library())):
            return SourceLine(name, frame.f_lineno, backward)
        python = python or not name.startswith(_PACKAGE)
        frame = frame.f_back
    if installed is not None:
        return SourceLine(installed.f_code.co_filename, installed.f_lineno, backward)
    # A thread of the autograd engine has no Python frame but those of the warning itself.
    return SourceLine("", 0, backward or not python)


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
    where = _walk(frame)
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
