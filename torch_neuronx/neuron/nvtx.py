"""Ranges of the program's own in a profile, by the names that code written for CUDA uses.

They are what ``torch.profiler.record_function`` records: ``torch.profiler`` shows them around the
operators that ran inside.
"""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.profiler import record_function

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]


class _Ranges(threading.local):
    """The open ranges of a thread."""

    def __init__(self) -> None:
        self.nested: list[record_function] = []
        self.started: dict[int, record_function] = {}


_ranges = _Ranges()
_handles = itertools.count(1)


def _open(message: str) -> record_function:
    opened = record_function(message)
    opened.__enter__()
    return opened


def range_push(msg: str) -> int:
    """Begin a range inside of the thread's innermost one; return its depth, 0 for the outermost."""
    _ranges.nested.append(_open(msg))
    return len(_ranges.nested) - 1


def range_pop() -> int:
    """End the thread's innermost range; return its depth.

    Raises:
        RuntimeError: There is none.
    """
    if not _ranges.nested:
        raise RuntimeError("range_pop: this thread has no open range; call range_push first")
    _ranges.nested.pop().__exit__(None, None, None)
    return len(_ranges.nested)


def range_start(msg: str) -> int:
    """Begin a range that need not be nested; return a handle for :func:`range_end`."""
    handle = next(_handles)
    _ranges.started[handle] = _open(msg)
    return handle


def range_end(range_id: int) -> None:
    """End a range that :func:`range_start` began in this thread.

    Raises:
        RuntimeError: This thread has no such range: PyTorch's profiler has none across threads.
    """
    started = _ranges.started.pop(range_id, None)
    if started is None:
        raise RuntimeError(
            f"range_end: {range_id} is no open range of this thread; end it in the thread that "
            "called range_start"
        )
    started.__exit__(None, None, None)


def mark(msg: str) -> None:
    """Leave a range without length in the profile."""
    with record_function(msg):
        pass


@contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    """Have a range around a ``with`` block or a decorated function.

    Args:
        msg: Its text, completed by ``msg.format(*args, **kwargs)``.
        args: For the text.
        kwargs: For the text.
    """
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
