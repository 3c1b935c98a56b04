"""NKI, the Neuron Kernel Interface: kernels for NeuronCores, here on emulated ones."""

from __future__ import annotations

import importlib
from typing import Any

from nki.absent import absent
from nki.checking import check
from nki.kernel import Kernel, jit, simulate

__all__ = ["Kernel", "check", "jit", "simulate"]

# ``import nki`` is enough to name these; they are imported when they are first asked for.
_PARTS = frozenset({"collectives", "dtype", "isa", "language", "perf", "typing"})


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"nki.{name}")
    raise absent("nki", name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PARTS})
