"""Runs a program in NumPy: every step by its obvious meaning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuronxcc.ir.arithmetic import Array
from neuronxcc.ir.operators.collectives import alone
from neuronxcc.ir.operators.definition import Exchange
from neuronxcc.program.machine import Aten, Machine
from neuronxcc.program.program import Program


def run_program(
    program: Program,
    args: Sequence[Array],
    aten: Aten | None = None,
    exchange: Exchange = alone,
) -> list[Array]:
    """Return the results of a program.

    Args:
        program: To run.
        args: One array per input, of its type and shape; not written to.
        aten: Runs operators of PyTorch.
        exchange: How this rank meets the others in collectives.

    Raises:
        NotImplementedError: there is an AtenStep, and no `aten` to run it.
    """
    with np.errstate(all="ignore"):  # infinities and NaN are values
        return Machine(program, args, aten, exchange).run()
