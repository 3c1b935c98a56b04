"""Recurrences along a row: scan, cumulate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuronxcc.ir.arithmetic import Array
from neuronxcc.program.errors import NeffError
from neuronxcc.program.natives.alu import CUMULATIVE, MEANINGS, SCANNED
from neuronxcc.program.natives.rows import reach, view
from neuronxcc.program.natives.table import Native, NativeSlot, Params, named

__all__ = ["NATIVES"]

_OPS = tuple(MEANINGS[name] for name in SCANNED)

# scan(rows, size, op0, reverse0, op1, reverse1, out_bytes, a_bytes, b_bytes, initial_bytes): from
# the initial value on, state = (a[i] op0 state) op1 b[i], kept as out[i]; a reversed operator gets
# its operands the other way round. All float32; out may be a or b.

_SCAN = "rows, size, op0, reverse0, op1, reverse1, out_bytes, a_bytes, b_bytes, initial_bytes"


def _scan_slots(params: Params) -> tuple[NativeSlot, ...]:
    rows, size, op0, reverse0, op1, reverse1, out, a, b, initial = named(
        _SCAN, params, (1, 1, *[0] * 8)
    )
    if max(op0, op1) >= len(_OPS) or max(reverse0, reverse1) > 1:
        raise NeffError(f"the parameters {list(params)} are no ({_SCAN})")
    return (
        reach(rows, out, 4 * size, written=True),
        reach(rows, a, 4 * size),
        reach(rows, b, 4 * size),
        reach(rows, initial, 4),
    )


def _apply(op: int, x: Array, y: Array, reverse: int) -> Array:
    return _OPS[op](y, x) if reverse else _OPS[op](x, y)


def _scan(params: Params, slots: Sequence[Array]) -> None:
    rows, size, op0, reverse0, op1, reverse1, out, a, b, initial = params
    result = view(slots[0], rows, out, size, np.float32)
    first = view(slots[1], rows, a, size, np.float32).copy()
    second = view(slots[2], rows, b, size, np.float32).copy()
    state = view(slots[3], rows, initial, 1, np.float32)[:, 0].copy()
    with np.errstate(all="ignore"):
        for at in range(size):
            inner = _apply(op0, first[:, at], state, reverse0)
            state = _apply(op1, inner, second[:, at], reverse1)
            result[:, at] = state


# cumulate(rows, size, op, out_bytes, state_bytes, x_bytes, initial_bytes): from the initial value
# on, state = x[i] op state, kept as out[i]; the last one is written to the slot state, which may be
# the initial value. All float32; out may be x.

_CUMULATE = "rows, size, op, out_bytes, state_bytes, x_bytes, initial_bytes"


def _cumulate_slots(params: Params) -> tuple[NativeSlot, ...]:
    rows, size, op, out, state, x, initial = named(_CUMULATE, params, (1, 1, *[0] * 5))
    if op >= CUMULATIVE:
        raise NeffError(f"the parameters {list(params)} are no ({_CUMULATE})")
    return (
        reach(rows, out, 4 * size, written=True),
        reach(rows, state, 4, written=True),
        reach(rows, x, 4 * size),
        reach(rows, initial, 4),
    )


def _cumulate(params: Params, slots: Sequence[Array]) -> None:
    rows, size, op, out, state, x, initial = params
    result = view(slots[0], rows, out, size, np.float32)
    data = view(slots[2], rows, x, size, np.float32).copy()
    value = view(slots[3], rows, initial, 1, np.float32)[:, 0].copy()
    with np.errstate(all="ignore"):
        for at in range(size):
            value = _OPS[op](data[:, at], value)
            result[:, at] = value
    view(slots[1], rows, state, 1, np.float32)[:, 0] = value


NATIVES = {
    "scan": Native(_scan_slots, _scan),
    "cumulate": Native(_cumulate_slots, _cumulate),
}
