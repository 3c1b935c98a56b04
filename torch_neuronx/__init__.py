"""The ``neuron`` device of PyTorch, on emulated NeuronCores.

Importing ``torch`` is enough to have it: PyTorch calls :func:`_autoload` through the entry point
group ``torch.backends``. ``import torch_neuronx`` does the same for processes that turned that off
with ``TORCH_DEVICE_BACKEND_AUTOLOAD=0``, and raises :class:`NeuronUnavailableError` where the
autoload may only warn.
"""

import importlib
import sys
from typing import TYPE_CHECKING

from torch_neuronx._version import __version__

if TYPE_CHECKING:
    from torch_neuronx import experimental, kernels, nki, testing, utils
    from torch_neuronx.estimation.session import estimate
    from torch_neuronx.inference.analysis import analyze
    from torch_neuronx.inference.batching import dynamic_batch
    from torch_neuronx.inference.buckets import BucketModelConfig, bucket_model_trace
    from torch_neuronx.inference.errors import InputError, ModelFormatError, TraceError
    from torch_neuronx.inference.parallel import DataParallel
    from torch_neuronx.inference.partition import PartitionerConfig
    from torch_neuronx.inference.placement import (
        async_load,
        lazy_load,
        move_trace_to_device,
        multicore_context,
        neuron_cores_context,
        set_multicore,
        set_neuron_cores,
    )
    from torch_neuronx.inference.trace import trace
    from torch_neuronx.inference.weights import replace_weights
    from torch_neuronx.nki import nki_op, wrap_nki
    from torch_neuronx.nki.either import nki_jit
    from torch_neuronx.program.allowed import allow_operators
    from torch_neuronx.tools.compare import compare
    from torch_neuronx.tools.explain import explain
    from torch_neuronx.tools.explain_eager import explain_eager

__all__ = [
    "BucketModelConfig",
    "CompileOnlyError",
    "DataParallel",
    "InputError",
    "ModelFormatError",
    "NeuronUnavailableError",
    "PartitionerConfig",
    "Stream",
    "TraceError",
    "__version__",
    "allow_operators",
    "analyze",
    "async_load",
    "bucket_model_trace",
    "compare",
    "compile_only",
    "dynamic_batch",
    "estimate",
    "experimental",
    "explain",
    "explain_eager",
    "kernels",
    "lazy_load",
    "move_trace_to_device",
    "multicore_context",
    "neuron",
    "neuron_cores_context",
    "nki",
    "nki_jit",
    "nki_op",
    "replace_weights",
    "set_multicore",
    "set_neuron_cores",
    "stream",
    "synchronize",
    "testing",
    "trace",
    "utils",
    "wrap_nki",
]


# What takes long to import, and is imported when it is asked for: module and name in it.
_LATER = {
    "compare": ("torch_neuronx.tools.compare", "compare"),
    "estimate": ("torch_neuronx.estimation.session", "estimate"),
    "explain": ("torch_neuronx.tools.explain", "explain"),
    "explain_eager": ("torch_neuronx.tools.explain_eager", "explain_eager"),
    "kernels": ("torch_neuronx.kernels", ""),
    "nki": ("torch_neuronx.nki", ""),
    "nki_jit": ("torch_neuronx.nki.either", "nki_jit"),
    "nki_op": ("torch_neuronx.nki", "nki_op"),
    "wrap_nki": ("torch_neuronx.nki", "wrap_nki"),
    "experimental": ("torch_neuronx.experimental", ""),
    "testing": ("torch_neuronx.testing", ""),
    "utils": ("torch_neuronx.utils", ""),
    "BucketModelConfig": ("torch_neuronx.inference.buckets", "BucketModelConfig"),
    "DataParallel": ("torch_neuronx.inference.parallel", "DataParallel"),
    "InputError": ("torch_neuronx.inference.errors", "InputError"),
    "ModelFormatError": ("torch_neuronx.inference.errors", "ModelFormatError"),
    "PartitionerConfig": ("torch_neuronx.inference.partition", "PartitionerConfig"),
    "TraceError": ("torch_neuronx.inference.errors", "TraceError"),
    "allow_operators": ("torch_neuronx.program.allowed", "allow_operators"),
    "analyze": ("torch_neuronx.inference.analysis", "analyze"),
    "async_load": ("torch_neuronx.inference.placement", "async_load"),
    "bucket_model_trace": ("torch_neuronx.inference.buckets", "bucket_model_trace"),
    "dynamic_batch": ("torch_neuronx.inference.batching", "dynamic_batch"),
    "lazy_load": ("torch_neuronx.inference.placement", "lazy_load"),
    "move_trace_to_device": ("torch_neuronx.inference.placement", "move_trace_to_device"),
    "multicore_context": ("torch_neuronx.inference.placement", "multicore_context"),
    "neuron_cores_context": ("torch_neuronx.inference.placement", "neuron_cores_context"),
    "replace_weights": ("torch_neuronx.inference.weights", "replace_weights"),
    "set_multicore": ("torch_neuronx.inference.placement", "set_multicore"),
    "set_neuron_cores": ("torch_neuronx.inference.placement", "set_neuron_cores"),
    "trace": ("torch_neuronx.inference.trace", "trace"),
}


def __getattr__(name: str) -> object:
    if name in _LATER:
        module, attribute = _LATER[name]
        found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class NeuronUnavailableError(RuntimeError):
    """The device could not be set up in this process; the message says why."""


# What made the registration impossible, or None.
_failure: Exception | None = None


def _autoload() -> None:
    """Register the device at the end of ``import torch``; never raises.

    What went wrong is remembered: ``torch.neuron.is_available()`` is then False and warns once, and
    ``import torch_neuronx`` raises.

    Importing this module has registered the device before PyTorch can call this. When the user
    imports torch_neuronx first, PyTorch is imported, and calls this, halfway down this file; the
    registration then follows when that import is complete.
    """
    if _failure is not None:
        # Leave no half-working module behind: `import torch_neuronx` runs this file again and,
        # asked by the user now, raises.
        sys.modules.pop(__name__, None)


# Whether torch is in the middle of its own import, and so is autoloading us. It tells an autoload,
# which must not raise, from an import by the user, which must.
_torch_spec = getattr(sys.modules.get("torch"), "__spec__", None)
_autoloading = bool(getattr(_torch_spec, "_initializing", False))

import torch  # noqa: E402, F401

from torch_neuronx import _register  # noqa: E402

_failure = _register.register()
if _failure is None:
    from torch_neuronx import neuron
    from torch_neuronx._compile_only import CompileOnlyError, compile_only
    from torch_neuronx.neuron import Stream, stream, synchronize
elif not _autoloading:
    raise NeuronUnavailableError(
        f"the neuron device cannot be set up: {type(_failure).__name__}: {_failure}"
    ) from _failure
