"""Where faults on demand act in the compiler and its files.

What faults there are is `torch_neuronx.testing`'s to say; here are the points that it can reach.
"""

from __future__ import annotations

from collections.abc import Callable

#: Points, by their names in the table of faults.
COMPILATION, CACHE_READ, FILE_WRITE = "compilation", "cache_read", "file_write"

# Takes a point, what reached it, and data; returns the data, or raises.
Watcher = Callable[[str, str, bytes], bytes]
_watcher: Watcher | None = None


def watch(watcher: Watcher | None) -> None:
    """Have `watcher` called at every point from now on; None: nobody."""
    global _watcher  # noqa: PLW0603
    _watcher = watcher


def reach(point: str, name: str, data: bytes = b"") -> bytes:
    """Reach a point.

    Args:
        point: One of the names above.
        name: What is compiled, read or written.
        data: What was read, or is to be written.

    Returns:
        The data, which a fault may have changed.

    Raises:
        Exception: What a fault raises.
    """
    return data if _watcher is None else _watcher(point, name, data)
