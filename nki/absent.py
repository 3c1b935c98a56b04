"""What `nki` answers to names that it does not have, but kernels of the first generation use."""

from __future__ import annotations

import importlib
from types import ModuleType

from nki.errors import NkiError

__all__ = ["NkiAttributeError", "absent"]

# What does today what a name of the first generation did, where that is one thing.
TODAY: dict[str, str] = {
    "nki.baremetal": "a kernel under nki.jit takes NumPy's arrays",
    "nki.benchmark": "nki.perf.predict says how long a kernel takes",
    "nki.profile": "nki.perf.predict draws the timeline",
    "nki.simulate_kernel": "nki.simulate",
    "nki.trace": "nki.jit",
    "nki.language.all_reduce": "nki.collectives.all_reduce",
    "nki.language.arange": "slices, and ap() of a tensor",
    "nki.language.dslice": "nl.ds",
    "nki.language.loop_reduce": "an accumulator, and nisa.tensor_tensor in the loop",
    "nki.language.mgrid": "slices, and ap() of a tensor",
    "nki.language.par_dim": "nothing: the first dimension is that of partitions",
    "nki.language.static_cast": "nisa.tensor_copy into a tensor of the other type",
    "nki.language.tensor": "nki.tensor.NkiTensor",
}


class NkiAttributeError(NkiError, AttributeError):
    """A name that a module of today's NKI does not have."""


def absent(module: str, name: str) -> AttributeError:
    """Return the error for `module.name`, of one of `nki`, `nki.isa` and `nki.language`."""
    former = module.replace("nki", "neuronxcc.nki", 1)
    # Python itself asks for names with underscores, which is no reason to import a language.
    private = name.startswith("_")
    found = None if private else getattr(importlib.import_module(former), name, None)
    if found is None or isinstance(found, ModuleType):
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    today = TODAY.get(f"{module}.{name}")
    return NkiAttributeError(
        "NKI283",
        f"module {module!r} has no attribute {name!r}: {former}.{name} is of the first generation "
        "of kernels",
        f"write `import {former}` for a kernel of that generation"
        + (f"; for one of today: {today}" if today else ""),
    )
