"""How operators of eager mode run: each at its call, or behind it, in a queue of its core."""

import functools
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from neuronxcc.environment.machine import (
    NEURON_LAUNCH_BLOCKING,
    TORCH_NEURONX_APPLY_SKIP_INTERMEDIATE,
    TORCH_NEURONX_CONCATENATION_QUEUE_LOW_THRESHOLD,
    TORCH_NEURONX_EAGER_MODE,
    TORCH_NEURONX_ENABLE_CONCATENATION,
    TORCH_NEURONX_ENABLE_STACK_TRACE,
)
from torch_neuronx import _C
from torch_neuronx.neuron import regions

#: In the order of `queue::Mode`.
_MODES: Final = ("debug", "strict", "fused")
_SYNC_DEBUG_MODES: Final = ("default", "warn", "error")


def get_eager_mode() -> str:
    """Return ``"debug"``, ``"strict"`` or ``"fused"``; see :func:`set_eager_mode`."""
    return _MODES[_C.eager_mode()]


def set_eager_mode(mode: str) -> None:
    """Choose how the operators of all threads run from now on; waits for what is enqueued.

    With ``NEURON_LAUNCH_BLOCKING=1`` the mode stays ``"debug"``, and a warning says so.

    Args:
        mode: ``"debug"``: an operator's work is done when its call returns. ``"strict"``: the call
            settles shapes and takes memory, and the work is done by a thread of the core, for each
            stream in the order of issue; whoever reads a value waits for it. ``"fused"``: while the
            core is behind, operators that wait are also joined into programs, with the same bits.

    Raises:
        ValueError: there is no such mode.
        RuntimeError: enqueued work has failed (of any type that an operator raises).
    """
    if mode not in _MODES:
        raise ValueError(f"eager mode must be one of {', '.join(_MODES)}, but got {mode!r}")
    if mode != "debug" and NEURON_LAUNCH_BLOCKING.get():
        warnings.warn(
            f"NEURON_LAUNCH_BLOCKING=1 keeps the eager mode at debug, so {mode!r} has no effect",
            stacklevel=2,
        )
        mode = "debug"
    if mode == "fused":
        regions.start()
    _C.set_eager_mode(_MODES.index(mode))


@contextmanager
def eager_mode(mode: str) -> Iterator[None]:
    """Run a block's operators in another mode, as :func:`set_eager_mode` chooses it."""
    before = get_eager_mode()
    set_eager_mode(mode)
    try:
        yield
    finally:
        set_eager_mode(before)


def eager_stats() -> dict[str, Any]:
    """Return what the queues of this process have done since :func:`reset_eager_stats`.

    Returns:
        ``enqueued``: calls that returned before their work was done. ``waits``: times that a thread
        waited for a queue with work in it. ``settled``: kinds of calls (operator, shapes, types)
        whose results are known from a first call, so that equal calls can be enqueued. ``ruled``:
        kinds with other sizes than two that were run, whose results PyTorch's shape function says.
        ``full``: times that a call waited because its queue was full. ``at_the_call``: by operator
        and reason, the calls that could not be enqueued, for which a thread waited and did the work
        itself. ``fused``: how many ``regions`` of operators were run as programs, the ``operators``
        in them, those of them whose results were ``unwritten`` because nobody could read them any
        more, programs that were ``compiled``, regions that were ``given_up`` or ``forgotten`` to
        make room for others; and whether regions ``ended_by_operator`` (one that takes no part),
        ``ended_full``, ``ended_idle`` (nothing more was enqueued in time) or ``ended_by_read``
        (somebody waited for the queue).
    """
    return _C.queue_stats() | {"fused": _C.region_stats()}


def reset_eager_stats() -> None:
    """Set the numbers of :func:`eager_stats` to zero."""
    _C.reset_queue_stats()
    _C.reset_region_stats()


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Say what an operation does that makes the host wait for a core's values, as CUDA has it.

    These are ``item()`` and what calls it, operators whose results have a shape that depends on
    values (``nonzero``, masks as indices), and copies between a core and the host, but for those
    from and to pinned memory with ``non_blocking=True`` and of at most 64 KiB to a core. They are
    the same in every eager mode. ``synchronize()`` and events are meant to wait and not told.

    Args:
        debug_mode: ``"default"`` or 0: nothing. ``"warn"`` or 1: a warning. ``"error"`` or 2: a
            RuntimeError.

    Raises:
        ValueError: there is no such mode.
    """
    if isinstance(debug_mode, str) and debug_mode in _SYNC_DEBUG_MODES:
        debug_mode = _SYNC_DEBUG_MODES.index(debug_mode)
    if debug_mode not in range(len(_SYNC_DEBUG_MODES)):
        raise ValueError(
            f"sync debug mode must be one of {', '.join(_SYNC_DEBUG_MODES)} or 0, 1, 2, "
            f"but got {debug_mode!r}"
        )
    _C.set_watch_waits(int(debug_mode))


def get_sync_debug_mode() -> int:
    """Return 0, 1 or 2; see :func:`set_sync_debug_mode`."""
    return _C.watch_waits()


@functools.cache
def _text(where: object) -> str:
    return str(where)


def _users_line() -> str:
    from torch_neuronx.users_line import users_line  # noqa: PLC0415 - milliseconds of every import

    where = users_line(sys._getframe())  # noqa: SLF001 - as torch and warnings do
    return "" if where is None else _text(where)


@contextmanager
def keep_lines() -> Iterator[None]:
    """Have enqueued calls of a block keep the line that called them."""
    _C.set_line_finder(_users_line)
    try:
        yield
    finally:
        _find_lines_if_asked()


def _find_lines_if_asked() -> None:
    _C.set_line_finder(_users_line if TORCH_NEURONX_ENABLE_STACK_TRACE.get() else None)


def configure() -> None:
    """Take the mode from the environment."""
    _find_lines_if_asked()
    _C.set_low_threshold(TORCH_NEURONX_CONCATENATION_QUEUE_LOW_THRESHOLD.get())
    _C.set_skips_unread(TORCH_NEURONX_APPLY_SKIP_INTERMEDIATE.get())
    mode = TORCH_NEURONX_EAGER_MODE.get()
    if TORCH_NEURONX_ENABLE_CONCATENATION.get() and not TORCH_NEURONX_EAGER_MODE.text():
        mode = "fused"
    set_eager_mode("debug" if NEURON_LAUNCH_BLOCKING.get() else mode)
