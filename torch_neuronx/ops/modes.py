"""The portability modes: what happens when an operator would not run on a NeuronCore as it is.

`permissive` counts, `warn` warns, `strict` raises before the operator runs. The mode belongs to the
process, like PyTorch's deterministic mode: backward threads see the one that was set last.
"""

from __future__ import annotations

import sys
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

from neuronxcc.environment.compilation import TORCH_NEURONX_PORTABILITY
from neuronxcc.targets import DEFAULT_TARGET

from .entry import Mode
from .table import Policy, masks, policy_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .native import OperatorCore


class PortabilityWarning(UserWarning):
    """An operator ran that a NeuronCore would truncate, refuse, or leave to the host."""

    __module__ = "torch_neuronx.ops"  # where users find it


class PortabilityError(RuntimeError):
    """An operator was refused in strict mode, before it ran.

    Attributes:
        op: the operator with namespace and overload, "aten::linalg_svd".
        dtype: name of the dtype that was checked, without "torch.".
        target: the emulated target.
        code: the documented compiler code without brackets, "" if there is none.
    """

    __module__ = "torch_neuronx.ops"

    def __init__(self, message: str, op: str, dtype: str, target: str, code: str) -> None:
        super().__init__(message)
        self.op = op
        self.dtype = dtype
        self.target = target
        self.code = code

    def __reduce__(self) -> tuple[type[PortabilityError], tuple[str, str, str, str, str]]:
        return type(self), (str(self), self.op, self.dtype, self.target, self.code)


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
    """The policy that `install_into` was called with; before that, one for the default machine."""
    return _STATE.policy if _STATE.policy is not None else policy_for(DEFAULT_TARGET)


def on_operator(op: str, dtype: str) -> None:
    """Called by the native core, in warn and strict mode, before an operator outside the masks.

    Args:
        op: the operator with namespace and overload, "aten::add.Tensor".
        dtype: "float64" of the first tensor argument, or of the result of a factory.

    Raises:
        PortabilityError: in strict mode.
        PortabilityWarning: in warn mode, if a warning filter makes it an error.
    """
    # Not needed to import torch, so not read then.
    from .diagnosis import diagnose  # noqa: PLC0415

    finding = diagnose(op, dtype, current_policy(), sys._getframe(), _STATE.mode)  # noqa: SLF001
    if finding is None:
        return
    if _STATE.mode is Mode.STRICT:
        raise PortabilityError(finding.message, op, dtype, finding.target, finding.code)
    with _STATE.lock:
        if finding.key in _STATE.warned:
            return
        _STATE.warned.add(finding.key)
    try:
        warnings.warn_explicit(
            PortabilityWarning(finding.message),
            PortabilityWarning,
            finding.where.filename or "<backward>",
            finding.where.line or 1,
        )
    except PortabilityWarning:
        # A filter made it an error: it has to be one each time.
        with _STATE.lock:
            _STATE.warned.discard(finding.key)
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
    """Context manager: `mode` inside, the previous one afterwards, for the whole process."""
    before = get_portability()
    set_portability(mode)
    try:
        yield
    finally:
        set_portability(before)


def install_into(core: OperatorCore, target: str, environ: Mapping[str, str] | None = None) -> None:
    """Hand the table and the mode to the native core; called once while the device registers.

    Args:
        core: the module `torch_neuronx._C`, or in tests something with the same two functions.
        target: name of the emulated target.
        environ: the variables; those of the process if None.

    Raises:
        ValueError: TORCH_NEURONX_PORTABILITY or an integer option of NEURON_CC_FLAGS is wrong.
    """
    mode = parse_mode(TORCH_NEURONX_PORTABILITY.get(environ))
    policy = policy_for(target, environ)
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
