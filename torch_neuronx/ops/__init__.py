"""What a NeuronCore makes of every ATen operator, and what to do where it makes nothing.

One table (`families/`) says for each operator and dtype whether a NeuronCore executes it, on which
engine, and what is known to be in the way. From it come the coverage report
(`python -m torch_neuronx.ops`), the report of a run (`format_report`) and the portability modes.
docs/operators.md is the guide.

>>> import torch_neuronx.ops
>>> with torch_neuronx.ops.portability("strict"):
...     train()                                        # doctest: +SKIP
>>> print(torch_neuronx.ops.format_report())           # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .portability import (
    PortabilityError,
    PortabilityWarning,
    get_portability,
    portability,
    set_portability,
)

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

if TYPE_CHECKING:
    from .run_report import OperatorUse

# Reports are for people and need none of the import time of torch, hence the imports inside.


def install() -> None:
    """Hand table and mode to the native core, for the machine of the environment.

    Called once, while the device registers.

    Raises:
        ValueError: TORCH_NEURONX_PORTABILITY or an integer option of NEURON_CC_FLAGS is wrong.
    """
    from torch_neuronx._config import read_machine_config

    from .native import native_core
    from .portability import install as install_into

    install_into(native_core(), read_machine_config().target.name)


def operator_report() -> list[OperatorUse]:
    """What ran in this process since the start or the last reset, and how a NeuronCore sees it."""
    from . import run_report

    return run_report.operator_report()


def reset_operator_report() -> None:
    """Set the operator counts of the process to zero."""
    from . import run_report

    run_report.reset()


def format_report(*, width: int = 100) -> str:
    """The portability report of the run as text of at most `width` columns."""
    from . import run_report

    return run_report.format_report(width=width)


def explain(op: str, target: str | None = None) -> str:
    """What the table says about one operator, as text; `target` defaults to the emulated one."""
    from . import coverage

    return coverage.explain(op, target)
