"""`nki.simulator`: a kernel called with its arguments as data, as serving frameworks do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nki.kernel import simulate

__all__ = ["simulate_kernel"]


def simulate_kernel(
    kernel: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    _lnc: int = 1,
) -> Any:
    """Run a kernel and return its results.

    Args:
        kernel: decorated with `nki.jit`, or a plain function.
        args: its arguments by position: NumPy arrays, tensors, compile-time values.
        kwargs: its arguments by name.
        _lnc: physical cores, 1 or 2.

    Raises:
        NkiError: what the kernel raises, or another number of cores (NKI209).
    """
    return simulate(kernel)[_lnc](*args, **(kwargs or {}))
