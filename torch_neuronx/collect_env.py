"""The command `python -m torch_neuronx.collect_env`: what a report of a defect needs.

It prints what PyTorch's own `torch.utils.collect_env` collects, then the emulated machine, the
native core, packages that matter here, variables that are set, and the processes that use the
device. Nothing is sent anywhere.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

import torch
from torch.utils import collect_env as of_torch

from neuron_tools.ls import table
from neuron_tools.machine import machine as emulated
from neuron_tools.machine import notes
from neuron_tools.registry.place import directory
from neuronxcc.environment import command as environment
from neuronxcc.unread import ends_quietly
from torch_neuronx import _C, __version__, neuron
from torch_neuronx._config import machine

_PACKAGES = (
    "torchneuron", "torch", "numpy", "llvmlite", "ml_dtypes", "protobuf", "fsspec", "jax",
    "transformers", "accelerate", "diffusers", "peft", "torchtitan", "safetensors", "pytest",
)  # fmt: skip


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def device() -> dict[str, object]:
    """Return facts about the device as this process has it."""
    here = machine()
    return {
        "torch_neuronx": __version__,
        "native core": str(_C.__file__),
        "available": neuron.is_available(),
        "target": here.target.name,
        "LNC": here.lnc,
        "devices": here.device_count,
        "cores": f"{here.visible_cores[0]}-{here.visible_cores[-1]}",
        "memory of one": f"{here.hbm_bytes} bytes",
        "eager mode": neuron.get_eager_mode(),
        "a small product": _product(),
        "Python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }


def _product() -> str:
    """Whether the device computes what the host does; a defect there is the first thing to know."""
    x = torch.arange(12.0).reshape(3, 4)
    same = torch.equal((x.to("neuron") @ x.T.to("neuron")).cpu(), x @ x.T)
    return "right" if same else "WRONG"


def _packages() -> str:
    return "\n".join(f"{package}: {_version(package)}" for package in _PACKAGES)


def _device() -> str:
    return "\n".join(f"{name}: {value}" for name, value in device().items())


def _tools() -> str:
    here = emulated()
    said = [f"registry of processes: {directory()}", f"instance-type: {here.instance_type}"]
    return "\n".join([*said, *notes(here), table(here, {"wide"})])


def _processors() -> str:
    return torch.__config__.show() + torch.__config__.parallel_info()


_PARTS: dict[str, Callable[[], str]] = {
    "PyTorch": lambda: str(of_torch.get_pretty_env_info()),
    "Device": _device,
    "Packages": _packages,
    "Emulated machine": _tools,
    "How PyTorch was built": _processors,
}


@ends_quietly
def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_neuronx.collect_env",
        description="Print what a report of a defect needs.",
    )
    parser.add_argument("--json", action="store_true", help="the device's facts alone, as JSON")
    if parser.parse_args(words).json:
        sys.stdout.write(f"{json.dumps(device(), indent=2)}\n")
        return 0
    for title, part in _PARTS.items():
        sys.stdout.write(f"== {title} ==\n")
        sys.stdout.flush()
        try:
            said = part()
        except Exception as error:  # noqa: BLE001 - what fails is what the report is about
            said = f"FAILED: {type(error).__name__}: {error}"
        sys.stdout.write(f"{said}\n\n")
    sys.stdout.write("== Environment variables ==\n")
    environment.main([])
    return 0


if __name__ == "__main__":
    sys.exit(main())
