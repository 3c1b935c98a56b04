"""Which PyTorch the native core was built for, and whether this is it.

PyTorch's C++ interfaces change with every minor release, and what was built for another one fails
at its first missing symbol, or later and worse. So the build writes down its release, in a file
beside the module, and it is compared before the module is loaded.
"""

from __future__ import annotations

from pathlib import Path

import torch

# Written by CMakeLists.txt, whose list of releases this is too.
_FILE = Path(__file__).parents[1] / "_C.release"


class ReleaseError(ImportError):
    """The native core was built for another release of PyTorch."""


def minor(version: str) -> str:
    """Return "2.13" for "2.13.0+cpu"."""
    return ".".join(version.split("+", maxsplit=1)[0].split(".")[:2])


def built_for(file: Path = _FILE) -> str:
    """Return the release that the native core was built for, "" if there is no core."""
    return file.read_text(encoding="ascii").strip() if file.exists() else ""


def check(present: str = torch.__version__, file: Path = _FILE) -> None:
    """Compare the release of this process with that of the native core.

    Raises:
        ReleaseError: They are of different minor releases.
    """
    built = built_for(file)
    if built and minor(built) != minor(present):
        raise ReleaseError(
            f"torch_neuronx was built for PyTorch {built}, and this is {present}: install "
            f"torch=={built}, or a torchneuron that was built for PyTorch {minor(present)}"
        )
