"""Kernels as NEFF files for those who run them without NKI: ``NKI_ARTIFACTS_DIR``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from neuronxcc.environment.kernels import NKI_ARTIFACTS_DIR
from neuronxcc.files import write_whole
from neuronxcc.options import from_environment
from neuronxcc.program.program import Program
from neuronxcc.targets import Target

__all__ = ["FILE_NAME", "leave", "target_name", "wanted"]

FILE_NAME = "kernel.neff"


def wanted() -> bool:
    """Return whether kernels become files."""
    return NKI_ARTIFACTS_DIR.get() is not None


def target_name() -> str | None:
    """Return what kernels that become files are compiled for; None if they don't become files."""
    return from_environment().target if wanted() else None


def leave(
    program: Program,
    written: Collection[int],
    target: Target,
    grid: Sequence[int],
    predicted_us: Callable[[], float],
) -> None:
    """Write ``kernel.neff`` to the directory that ``NKI_ARTIFACTS_DIR`` names.

    The file is that of the kernel that ran last. Its inputs have the names of the kernel's
    parameters. Where the documentation says that the variable is read when ``nki`` is imported, it
    is read at every call here.

    Args:
        program: what is about to run.
        written: numbers of the array arguments that it writes.
        target: what it was recorded for.
        grid: programs along each axis of the launch grid.
        predicted_us: says how many microseconds it is predicted to take, or raises.

    Raises:
        OSError: the file cannot be written.
        neuronxcc.options.OptionError: a variable says what the compiler does not know.
    """
    # Kernel files are made of parts of the HLO front end, which nothing else in nki needs.
    from neuronxcc.frontends.hlo.custom_kernels import kernel_file  # noqa: PLC0415
    from neuronxcc.perf.graphs.kept import ENTRY, entry_of  # noqa: PLC0415 - seldom asked for

    cores = max(from_environment().lnc, *grid, 1)
    folder = NKI_ARTIFACTS_DIR.get()
    assert folder is not None
    path = folder / FILE_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    program = replace(program, meta={**program.meta, ENTRY: entry_of(predicted_us)})
    write_whole(path, kernel_file(program, written, target.name, cores))
