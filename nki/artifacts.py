"""Kernels as NEFF files for those who run them without NKI: ``NKI_ARTIFACTS_DIR``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from neuronxcc.files import write_whole
from neuronxcc.options import from_environment

if TYPE_CHECKING:
    from neuronxcc.targets import Target
    from nki.launch import Launch
    from nki.recorder import Grid

__all__ = ["FILE_NAME", "VARIABLE", "leave", "target_name", "wanted"]

VARIABLE = "NKI_ARTIFACTS_DIR"
FILE_NAME = "kernel.neff"


def wanted() -> bool:
    """Whether kernels become files."""
    return bool(os.environ.get(VARIABLE))


def target_name() -> str | None:
    """Return what kernels that become files are compiled for; None if they don't become files."""
    return from_environment().target if wanted() else None


def leave(launch: Launch, target: Target, grid: Grid) -> None:
    """Write ``kernel.neff`` to the directory that ``NKI_ARTIFACTS_DIR`` names.

    The file is that of the kernel that ran last. Its inputs have the names of the kernel's
    parameters. Where the documentation says that the variable is read when ``nki`` is imported, it
    is read at every call here.

    Args:
        launch: what is about to run.
        target: what it was recorded for.
        grid: programs along each axis of the launch grid.

    Raises:
        OSError: the file cannot be written.
        neuronxcc.options.OptionError: a variable says what the compiler does not know.
    """
    # Kernel files are made of parts of the HLO front end, which nothing else in nki needs.
    from neuronxcc.frontends.hlo.custom_kernels import kernel_file  # noqa: PLC0415

    cores = max(from_environment().lnc, *grid, 1)
    path = Path(os.environ[VARIABLE]) / FILE_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, kernel_file(launch.program, launch.written, target.name, cores))
