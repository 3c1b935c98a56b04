"""The accumulator registers of the Scalar and the Vector Engine: 128 lanes of float32 each.

`reduce_cmd` says what happens: ``reset`` stores the identity, ``reduce`` goes on from what is
there, ``reset_reduce`` and ``load_reduce`` first store the identity or a given value. ``idle``
leaves the registers alone here; the documentation of the Vector Engine says that hardware may
change them. Elements are folded in order, in float32, before the result is cast for `dst`.
"""

from __future__ import annotations

import numpy as np

from nki.isa.alu import ALU, fold, scan
from nki.isa.cast import Array
from nki.isa.state import Step

__all__ = ["accumulate", "accumulate_steps"]


def _start(step: Step, lanes: int, op: str, command: str, initial: Array | None) -> Array:
    registers = step.registers(lanes)
    if command in ("reset", "reset_reduce"):
        identity = ALU[op].identity
        assert identity is not None, op
        registers[:] = identity
    elif command == "load_reduce":
        assert initial is not None
        registers[:] = np.broadcast_to(initial.reshape(-1), (lanes,))
    return registers


def accumulate(
    step: Step, values: Array, op: str, command: str, initial: Array | None = None
) -> Array:
    """Carry out `reduce_cmd` with float32 values of (P, F); return a copy of the registers, (P, 1).

    Args:
        step: names the engine and the first lane.
        values: what the instruction computed.
        op: a reduction operator that has an identity.
        command: a member of `reduce_cmd` by name.
        initial: for ``load_reduce``, shape (P, 1) or (1, 1).
    """
    lanes = values.shape[0]
    registers = _start(step, lanes, op, command, initial)
    if command in ("reduce", "reset_reduce", "load_reduce"):
        registers[:] = fold(op, values, registers)
    return registers.reshape(lanes, 1).copy()


def accumulate_steps(
    step: Step, values: Array, op: str, command: str, initial: Array | None = None
) -> Array:
    """Do the same and return the registers after every element, with ``value <op> register``."""
    registers = _start(step, values.shape[0], op, command, initial)
    if op == "subtract":
        # The one operator that is not commutative: the register is on the right.
        steps = np.empty_like(values)
        for column in range(values.shape[1]):
            registers[:] = values[:, column] - registers
            steps[:, column] = registers
        return steps
    steps = scan(op, registers, values)
    registers[:] = steps[:, -1]
    return steps
