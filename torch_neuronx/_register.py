"""Makes PyTorch know the device. Done once in a process, whoever asks first."""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from neuron_tools.registry.place import directory as registry_directory
from neuronxcc.environment.compilation import NEURON_EXTRACT_GRAPHS_ONLY
from neuronxcc.environment.kernels import TORCH_NEURONX_ENABLE_NKI_SDPA
from neuronxcc.environment.observation import NEURON_RT_INSPECT_ENABLE, TORCH_NEURONX_FAULTS
from neuronxcc.environment.tools import NEURON_PROCESS_TAG, TORCH_NEURONX_CLOCK
from torch_neuronx import _unavailable
from torch_neuronx._imports import when_imported
from torch_neuronx._version import __version__

if TYPE_CHECKING:
    from torch_neuronx._config import MachineConfig

_LONGEST_TAG = 255  # characters, as documented
_done = False


def register() -> Exception | None:
    """Register the device with PyTorch, unless that was done or has failed before.

    Returns:
        What made it impossible, or ``None``. After a failure ``torch.neuron`` exists all the same
        and says that no device is available.
    """
    global _done  # noqa: PLW0603
    if _done:
        return None
    present = sys.modules.get("torch.neuron")
    if isinstance(present, _unavailable.UnavailableModule):
        return present.failure
    try:
        _register()
    except Exception as error:  # noqa: BLE001
        # Whatever it is, it must not break `import torch`; the caller decides whether to raise it.
        _register_unavailable(error)
        return error
    _done = True
    return None


def _register() -> None:
    # The order matters: nothing of PyTorch is changed before all that can fail has succeeded. The
    # imports are here because each of them may be what fails.
    attention = TORCH_NEURONX_ENABLE_NKI_SDPA.get()
    inspected = NEURON_RT_INSPECT_ENABLE.get()
    NEURON_EXTRACT_GRAPHS_ONLY.get()  # acted on by `_compile_only`, too late to be refused
    config = importlib.import_module("torch_neuronx._config")
    machine = config.machine()
    importlib.import_module("torch_neuronx.compat.release").check()
    core = importlib.import_module("torch_neuronx._C")
    core.configure(machine.device_count, machine.hbm_bytes, machine.target.name)
    host = importlib.import_module("torch_neuronx._host")
    host.hold_instructions(core)
    host.start_vector_math()
    host.heed_limits(core)
    core.set_default_device(config.launcher_device(machine.device_count))
    _describe_process(core, machine)
    ops = importlib.import_module("torch_neuronx.ops")
    ops.install()
    module = importlib.import_module("torch_neuronx.neuron")
    # What reads the environment comes before the rename: a value may be refused.
    importlib.import_module("torch_neuronx.neuron.eager").configure()
    if TORCH_NEURONX_CLOCK.get() == "model":
        core.call_at_first_use(_count_predictions)
    if TORCH_NEURONX_FAULTS.text():
        importlib.import_module("torch_neuronx.testing.inject").arm_from_environment()
    if inspected:
        importlib.import_module("torch_neuronx.profiling.inspection").start()

    # Refused when another backend has taken the one name that PyTorch has to give.
    rename_privateuse1_backend("neuron")
    core.register_kernels()
    importlib.import_module("torch_neuronx.ops.batching").register()
    _register_module(module)
    generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    importlib.import_module("torch_neuronx.neuron.locations").register()
    importlib.import_module("torch_neuronx.neuron._exit").register()
    importlib.import_module("torch_neuronx.distributed.group").register()
    _register_with("portable_cache")
    # What takes long to import waits for who imports it.
    when_imported("torch._dynamo.device_interface", partial(_register_with, "device_interface"))
    for ours in ("device_calls", "meta_kernels", "python_kernels"):
        when_imported("torch._dynamo", partial(_register_with, ours))
    if attention:
        importlib.import_module("torch_neuronx.kernels.sdpa").install()
    # `import torch.neuron.memory` must find the module that torch.neuron uses, not load a second.
    for submodule in ("amp", "memory", "nvtx", "random", "sparse", "streams"):
        sys.modules[f"torch.neuron.{submodule}"] = getattr(module, submodule)


def _describe_process(core: ModuleType, machine: MachineConfig) -> None:
    """Say what the tools are to see of this process once it uses the device."""
    directory = registry_directory()
    core.describe_process(
        directory=b"" if directory is None else os.fsencode(directory),
        tag=os.fsencode(NEURON_PROCESS_TAG.text()[:_LONGEST_TAG]),
        target=machine.target.name,
        runtime_version=__version__,
        lnc=machine.lnc,
        chips=machine.chips,
        cores=machine.visible_cores,
    )


def _register_with(module: str) -> None:
    importlib.import_module(f"torch_neuronx.dynamo.{module}").register()


def _count_predictions() -> None:
    importlib.import_module("torch_neuronx.program.operator_time").start()


def _register_unavailable(failure: Exception) -> None:
    try:
        rename_privateuse1_backend("neuron")
        module = _unavailable.UnavailableModule(failure)
        _register_module(module)
        core = sys.modules.get("torch_neuronx._C")
        if core is None:
            module.refuse_allocation()
        else:
            # What came after the core failed. Without the rest it must not work by halves.
            core.configure(0, 0, "")
    except RuntimeError as error:
        # There is no name to register under, so the two reasons go together to whoever imports
        # torch_neuronx.
        failure.add_note(f"torch.neuron could not be registered either: {error}")


def _register_module(module: ModuleType) -> None:
    torch._register_device_module("neuron", module)  # noqa: SLF001
