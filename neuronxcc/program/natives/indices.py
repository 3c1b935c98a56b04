"""Checks of data: indices that a kernel computed are in bounds, other data is what it must be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuronxcc.ir.arithmetic import Array
from neuronxcc.program.natives.table import Native, NativeError, NativeSlot, Params, named


def _declare(params: Params) -> tuple[NativeSlot, ...]:
    count, stride, _ = named("count, stride, bound", params, (0, 0, 0))
    return (NativeSlot(0, 4 * ((count - 1) * stride + 1) if count else 0),)


def _run(params: Params, slots: Sequence[Array]) -> None:
    count, stride, bound = params
    for number in range(count):
        at = 4 * number * stride
        value = int(slots[0][at : at + 4].view(np.int32)[0])
        if not 0 <= value < bound:
            raise NativeError(
                "NKI132",
                f"index {value} is out of bounds: it must be from 0 to below {bound}",
                "keep it in bounds, or ask for oob_mode.skip where the instruction has it",
            )


def _declare_one_hot(params: Params) -> tuple[NativeSlot, ...]:
    (count,) = named("count", params, (0,))
    return (NativeSlot(0, 4 * count),)


def _run_one_hot(params: Params, slots: Sequence[Array]) -> None:
    (count,) = params
    if slots[0][: 4 * count].view(np.int32).any():
        raise NativeError(
            "NKI141",
            "nc_matmul with is_transpose=True has a moving tensor that is no identity",
            "pass the tensor to transpose as stationary and nl.shared_identity_matrix as moving",
        )


# check_one_hot(count): `count` s32 values that count what is wrong in the columns of a matrix.
# check_index(count, stride, bound): `count` s32 values, `stride` elements apart, in [0, bound).
NATIVES = {
    "check_index": Native(_declare, _run),
    "check_one_hot": Native(_declare_one_hot, _run_one_hot),
}
