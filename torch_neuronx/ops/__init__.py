"""The support of every ATen operator on a NeuronCore, and remedies where there is none.

One table (`families/`) says for each operator and dtype whether a NeuronCore executes it, on which
engine, and what is known to be in the way. From it come the coverage report
(`python -m torch_neuronx.ops`), the report of a run (`format_report`) and the portability modes.
docs/operators.md is the guide.

Example::

    from torch_neuronx import ops

    with ops.portability("strict"):
        train()
    print(ops.format_report())
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_neuronx._config import read_machine_config

from .modes import (
    PortabilityError,
    PortabilityWarning,
    current_policy,
    get_portability,
    install_into,
    portability,
    set_portability,
)
from .native import native_core

if TYPE_CHECKING:
    from .run_report import OperatorUse

__all__ = [
    "PortabilityError",
    "PortabilityWarning",
    "explain",
    "format_report",
    "get_portability",
    "install",
    "operator_report",
    "portability",
    "reset_operator_report",
    "set_portability",
]


# What only reports need is imported by them: this module is read during `import torch`.


def install() -> None:
    """Hand table and mode to the native core, for the machine of the environment.

    Called once, while the device registers.

    Raises:
        ValueError: TORCH_NEURONX_PORTABILITY or an integer option of NEURON_CC_FLAGS is wrong.
    """
    install_into(native_core(), read_machine_config().target.name)


def operator_report() -> list[OperatorUse]:
    """The operators that ran in this process since the last reset, and their support."""
    from . import run_report  # noqa: PLC0415

    return run_report.summarize(native_core().operator_counts(), current_policy())


def reset_operator_report() -> None:
    """Set the operator counts of the process to zero, when all that is enqueued is done."""
    native_core().reset_operator_counts()


def format_report(*, width: int = 100) -> str:
    """The portability report of the run, as text of `width` columns."""
    from . import run_report  # noqa: PLC0415

    return run_report.format_uses(operator_report(), current_policy(), width=width)


def explain(op: str, target: str | None = None) -> str:
    """Describe one operator as the table has it; `target` defaults to the emulated one."""
    from . import coverage  # noqa: PLC0415

    return coverage.explain(op, target)
