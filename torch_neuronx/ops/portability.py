"""The portability modes: what happens when an operator would not run on a NeuronCore as it is.

`permissive` counts, `warn` warns, `strict` raises before the operator runs. The mode belongs to the
process, like PyTorch's deterministic mode: backward threads see the one that was set last.
"""

from __future__ import annotations

import enum
import functools
import linecache
import os
import sys
import sysconfig
import threading
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .entry import ANY, Status, Verdict, base_name, dtype_list
from .table import Policy, executed_dtypes, masks, policy_for, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

    from .native import OperatorCore

VARIABLE = "TORCH_NEURONX_PORTABILITY"


class Mode(enum.IntEnum):
    """The modes by the number that the native core takes."""

    PERMISSIVE = 0
    WARN = 1
    STRICT = 2


class PortabilityWarning(UserWarning):
    """An operator ran that a NeuronCore would truncate, refuse, or leave to the host."""


class PortabilityError(RuntimeError):
    """An operator was refused in strict mode, before it ran.

    Attributes:
        op: the operator with namespace and overload, "aten::linalg_svd".
        dtype: name of the dtype that was checked, without "torch.".
        target: the emulated target.
        code: the documented compiler code without brackets, "" if there is none.
    """

    def __init__(self, message: str, op: str, dtype: str, target: str, code: str) -> None:
        super().__init__(message)
        self.op = op
        self.dtype = dtype
        self.target = target
        self.code = code

    def __reduce__(self) -> tuple[type[PortabilityError], tuple[str, str, str, str, str]]:
        return type(self), (str(self), self.op, self.dtype, self.target, self.code)


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's program; `filename` is "" where no Python code was running."""

    filename: str
    line: int
    backward: bool

    def __str__(self) -> str:
        if not self.filename:
            return "in the backward pass" if self.backward else "outside Python code"
        text = linecache.getline(self.filename, self.line).strip()
        place = f"{self.filename}:{self.line}" + (f": {text}" if text else "")
        return f"in the backward pass started at {place}" if self.backward else f"at {place}"


_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
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
    # Threads of the autograd engine run operators with no Python frame below them.
    backward = True
    while frame is not None:
        name = frame.f_code.co_filename
        if name.endswith(_PRINTING):
            return None
        backward = frame.f_code.co_name == "_engine_run_backward" or (backward and name == __file__)
        in_packages = any(part in name for part in _INSTALLED)
        if in_packages:
            if installed is None and _TORCH not in name:
                installed = frame
        elif not name.startswith((_PACKAGE, "<frozen ", *_standard_library())):
            return SourceLine(name, frame.f_lineno, backward)
        frame = frame.f_back
    if installed is not None:
        return SourceLine(installed.f_code.co_filename, installed.f_lineno, backward)
    return SourceLine("", 0, backward)


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


class _State:
    """The mode of the process, and what has been warned about."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.mode = Mode.PERMISSIVE
        self.policy: Policy | None = None
        self.core: OperatorCore | None = None
        self.warned: set[tuple[str, str, str, int]] = set()


_STATE = _State()


def current_policy() -> Policy:
    """The policy that `install` was called with; before that, the one of the default machine."""
    return _STATE.policy if _STATE.policy is not None else policy_for("trn2")


def on_operator(op: str, dtype: str) -> None:
    """Called by the native core, in warn and strict mode, before an operator outside the masks.

    Raises:
        PortabilityError: in strict mode.
    """
    policy = current_policy()
    found = verdict(base_name(op), dtype, policy)
    mode = _STATE.mode
    if found.on_neuron_core and (found.status is not Status.CARRIED or mode is not Mode.WARN):
        return
    where = _walk(sys._getframe(1))  # noqa: SLF001  (what the standard library uses for warnings)
    if where is None:
        # Formatting reads the values on the host anyway; it is counted, and no reason to stop.
        return
    if mode is Mode.STRICT:
        code = found.gap.code if found.gap is not None else ""
        raise PortabilityError(
            describe(op, dtype, policy, found, where), op, dtype, policy.target, code
        )
    if mode is Mode.WARN:
        _warn(op, dtype, policy, found, where)


def _warn(op: str, dtype: str, policy: Policy, found: Verdict, where: SourceLine) -> None:
    # Carried integers would bury everything else: one warning for the dtype is enough.
    key = (
        ("", dtype, "", 0)
        if found.status is Status.CARRIED
        else (base_name(op), dtype, where.filename, where.line)
    )
    with _STATE.lock:
        if key in _STATE.warned:
            return
        _STATE.warned.add(key)
    message = PortabilityWarning(describe(op, dtype, policy, found, where))
    try:
        warnings.warn_explicit(
            message, PortabilityWarning, where.filename or "<backward>", where.line or 1
        )
    except PortabilityWarning:
        # A filter made it an error: it has to be one each time.
        with _STATE.lock:
            _STATE.warned.discard(key)
        raise


def parse_mode(text: str) -> Mode:
    """Mode of a name; ValueError with the allowed names for anything else."""
    try:
        return Mode[text.strip().upper()]
    except KeyError:
        allowed = ", ".join(mode.name.lower() for mode in Mode)
        raise ValueError(f"portability mode {text!r} is not known; allowed: {allowed}") from None


def get_portability() -> str:
    """The current mode: "permissive", "warn" or "strict"."""
    return _STATE.mode.name.lower()


def set_portability(mode: str) -> None:
    """Set the mode of the process: "permissive", "warn" or "strict".

    Entering `warn` forgets what has been warned about, so a region can be looked at again.

    Raises:
        ValueError: an unknown mode.
    """
    wanted = parse_mode(mode)
    with _STATE.lock:
        if wanted is Mode.WARN:
            _STATE.warned.clear()
        _STATE.mode = wanted
        _push()


@contextmanager
def portability(mode: str) -> Iterator[None]:
    """Context manager: `mode` inside, the previous mode afterwards. Counts for the whole process."""
    before = get_portability()
    set_portability(mode)
    try:
        yield
    finally:
        set_portability(before)


def install(
    core: OperatorCore, target: str, environ: Mapping[str, str] | None = None
) -> None:
    """Hand the table and the mode to the native core; called once while the device registers.

    Args:
        core: the module `torch_neuronx._C`, or in tests something with the same two functions.
        target: name of the emulated target.
        environ: the variables; `os.environ` if None.

    Raises:
        ValueError: TORCH_NEURONX_PORTABILITY or an integer option of NEURON_CC_FLAGS is wrong.
    """
    variables = os.environ if environ is None else environ
    text = variables.get(VARIABLE, "").strip()
    try:
        mode = parse_mode(text) if text else Mode.PERMISSIVE
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None
    policy = policy_for(target, variables)
    with _STATE.lock:
        _STATE.core, _STATE.policy, _STATE.mode = core, policy, mode
        _STATE.warned.clear()
        _push()


def _push() -> None:
    """Give the core masks and mode. The lock is held."""
    if _STATE.core is None or _STATE.policy is None:
        return
    # Warn mode wants to hear of carried integers, so they leave the masks for as long as it lasts.
    table = masks(_STATE.policy, carried=_STATE.mode is not Mode.WARN)
    _STATE.core.set_operator_table(table)
    _STATE.core.set_portability(
        int(_STATE.mode), None if _STATE.mode is Mode.PERMISSIVE else on_operator
    )

