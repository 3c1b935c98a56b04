"""What the cache tells its user: warnings for trouble, a logger for the ordinary."""

from __future__ import annotations

import logging
import sys
import warnings

LOG = logging.getLogger("neuronxcc.cache")


class CacheWarning(UserWarning):
    """Something is wrong with the compile cache; the program is compiled all the same."""


def warn(message: str) -> None:
    """Warn about the cache, in the name of whoever called the cache."""
    warnings.warn(CacheWarning(message), stacklevel=3)


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
