"""Messages of the cache to its user: warnings for trouble, a logger for the ordinary."""

from __future__ import annotations

import errno
import logging
import sys
import warnings

LOG = logging.getLogger("neuronxcc.cache")

# Failures to write that the next program will meet too, and the next kernel.
LASTING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_REMEDY = (
    "; this process keeps nothing that it compiles while that lasts, and does not say it again. "
    "Free space, or set TORCH_NEURONX_NEFF_CACHE_DIR (programs) and XDG_CACHE_HOME (machine code) "
    "to directories that can be written to"
)
TOLD: set[str] = set()


class CacheWarning(UserWarning):
    """Something is wrong with the compile cache; the program is compiled all the same."""


def warn(message: str) -> None:
    """Warn about the cache, in the name of whoever called the cache."""
    warnings.warn(CacheWarning(message), stacklevel=3)


def unwritten(error: OSError) -> str | None:
    """The message about a failed write to a cache; None if this process has given it before.

    A full disk fails every program and every kernel, in several places; one line with a remedy is
    enough for all of them.
    """
    if error.errno not in LASTING:
        return str(error)
    if TOLD:
        return None
    TOLD.add(str(error))
    return f"{error}{_REMEDY}"


def say(message: str) -> None:
    """Tell something that was asked for, or that explains a wait, on standard error."""
    sys.stderr.write(f"[neuron cache] {message}\n")
    sys.stderr.flush()


def set_log_level(level: str) -> None:
    """Show the logger's messages from this level on ("INFO"), in the documented shape."""
    LOG.setLevel(level)
    if not any(isinstance(handler, _Handler) for handler in LOG.handlers):
        handler = _Handler()
        handler.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s ||NEURON_CC_WRAPPER||: %(message)s")
        )
        LOG.addHandler(handler)
        LOG.propagate = False


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """A handler that is known to be ours."""
