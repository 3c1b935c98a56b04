"""The Tensor Engine without microscaling: nc_matmul, nc_transpose (which Vector has too)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.errors import NkiError
from nki.isa import convert, cost, enums
from nki.isa.cast import Array, to_float32
from nki.isa.rows.common import PSUM, SBUF, Arrays, flat, on, raw, source, target
from nki.isa.rows.matmul_rules import INPUTS, MATMUL_RULES, matmul_cycles
from nki.isa.rules import requires, same_dtype
from nki.isa.spec import ANY_DTYPE, PMAX, Attribute, Call, Instruction, Role
from nki.isa.state import OTHER, UNWRITTEN, Finding, Step

__all__ = ["ROWS", "accumulated"]

Attributes = Mapping[str, Any]


def accumulated(
    step: Step, product: Array, old: Array, dtype: str, accumulate: bool | None
) -> Array:
    """Return what a product leaves in PSUM, in float32.

    Args:
        step: `step.written` says what is known of each element of `old`; unknown is unwritten.
        product: float32, in the shape of `old`.
        old: the stored items of `dst`.
        dtype: NKI's name of their type; bfloat16 is taken to float32, added and rounded again.
        accumulate: as documented: True, False, or None to find out.
    """
    if accumulate is False:
        return product
    written = step.written if step.written is not None else np.full(old.shape, UNWRITTEN, np.uint8)
    total: Array = to_float32(old, dtype) + product
    touched = np.ones(old.shape, bool) if accumulate else written != UNWRITTEN
    if accumulate and (written == UNWRITTEN).any():
        step.findings.append(
            Finding("NKI126", "accumulate=True adds to PSUM that nothing has written")
        )
    if step.generation < 4 and (touched & (written == OTHER)).any():
        step.findings.append(
            Finding(
                "NKI126",
                "a matmul adds to PSUM that another instruction has written, which is undefined "
                f"on NeuronCore-v{step.generation}",
            )
        )
    return np.where(touched, total, product)


def _contraction(step: Step, operands: Arrays, name: str, rows: int) -> Array:
    """Return float64 (K, N) of a (P, N) tensor, or of (P, 2, N) with K = 2 * P."""
    value = to_float32(operands[name], step.dtypes[name])
    return value.reshape(value.shape[0] * rows, -1).astype(np.float64)


def _transposed(step: Step, operands: Arrays) -> Array:
    """Select rows of `stationary` by the one-hot columns of `moving`, keeping every bit."""
    moving = to_float32(flat(operands["moving"]), step.dtypes["moving"])
    one_hot = ((moving == 0) | (moving == 1)).all() and (moving.sum(axis=0) == 1).all()
    if not one_hot:
        raise NkiError(
            "NKI141",
            "nc_matmul with is_transpose=True has a moving tensor that is no identity",
            "pass the tensor to transpose as stationary and nl.shared_identity_matrix as moving",
        )
    result: Array = raw(step, operands, "stationary")[moving.argmax(axis=0)].T
    return result


def _matmul(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    dst = operands["dst"]
    if attributes["is_transpose"] and step.generation >= 3:
        bits = _transposed(step, operands)
        kept = step.dtypes["stationary"] == step.dtypes["dst"]
        value = bits if kept else to_float32(bits.view(operands["stationary"].dtype),
                                             step.dtypes["stationary"])  # fmt: skip
        return {"dst": value}
    rows = 2 if attributes["perf_mode"] == "double_row" else 1
    stationary = _contraction(step, operands, "stationary", rows)
    moving = _contraction(step, operands, "moving", rows)
    # Rounded once: the order of the hardware's float32 sums is not published.
    product = (stationary.T @ moving).astype(np.float32).reshape(dst.shape)
    return {"dst": accumulated(step, product, dst, step.dtypes["dst"], attributes["accumulate"])}


def _transpose(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    data = raw(step, operands, "data")
    kind = step.dtypes["data"]
    spreads = step.engine == "tensor" and step.generation == 2 and kind in INPUTS
    if spreads:
        # A product with the identity: 0 * NaN and 0 * inf reach their whole row.
        value = to_float32(flat(operands["data"]), kind).astype(np.float64)
        return {"dst": (value.T @ np.eye(value.shape[0])).astype(np.float32)}
    return {"dst": data.T}


def _transpose_engine(call: Call) -> str:
    return "tensor" if call.tile("dst").region == "psum" else "vector"


def _transpose_limit(call: Call) -> int:
    return PMAX if call.engine == "tensor" else 32


def _transpose_fits(call: Call) -> bool:
    tile, most = call.tile("data"), _transpose_limit(call)
    return tile.partitions <= most and tile.free <= most


def _tensor_memories(call: Call) -> bool:
    regions = (call.tile("data").region, call.tile("dst").region)
    return call.engine != "tensor" or regions == ("sbuf", "psum")


def _swapped(call: Call) -> bool:
    dst, data = call.tile("dst"), call.tile("data")
    return (dst.partitions, dst.free) == (data.free, data.partitions)


ROWS = (
    Instruction(
        "nc_matmul",
        (
            target(dtypes=INPUTS, regions=PSUM, role=Role.READWRITE, indirect=True),
            source("stationary", INPUTS, regions=SBUF, indirect=True),
            source("moving", INPUTS, regions=SBUF, indirect=True),
            Attribute("is_stationary_onezero", convert.flag, default=False),
            Attribute("is_moving_onezero", convert.flag, default=False),
            Attribute("is_transpose", convert.flag, default=False),
            Attribute("accumulate", convert.accumulate, None),
            Attribute("tile_position", convert.integers(2, none=True), None),
            Attribute("tile_size", convert.integers(2, none=True), None),
            Attribute("perf_mode", convert.member(enums.matmul_perf_mode), "none"),
            convert.NAME,
        ),
        on("tensor"),
        _matmul,
        cost.by(matmul_cycles),
        MATMUL_RULES,
    ),
    Instruction(
        "nc_transpose",
        (
            target(dtypes=ANY_DTYPE),
            source("data", ANY_DTYPE),
            convert.engine(),
            convert.NAME,
        ),
        on("tensor", "vector", choose=_transpose_engine),
        _transpose,
        cost.by(
            lambda call: (
                max(cost.MIN_II, call.tile("data").free)
                if call.engine == "vector"
                else max(call.tile("data").partitions, min(cost.MIN_II, call.tile("data").free))
            )
        ),
        (
            same_dtype("dst", "data"),
            requires(
                "NKI109",
                "nc_transpose on the tensor engine reads sbuf and writes psum, "
                "got data in {a} and dst in {b}",
                "move the tensors, or transpose tiles of 32 by 32 on the vector engine",
                _tensor_memories,
                a=lambda call: call.tile("data").region,
                b=lambda call: call.tile("dst").region,
            ),
            requires(
                "NKI104",
                "nc_transpose data of shape {got} exceeds {most} by {most} of the {engine} engine",
                "split it into tiles; a dst in psum selects the tensor engine (128 by 128)",
                _transpose_fits,
                got=lambda call: call.tile("data").shape,
                most=_transpose_limit,
                engine=lambda call: call.engine,
            ),
            requires(
                "NKI125",
                "nc_transpose dst has shape {got}, the transpose of {data} has ({a}, {b})",
                "dst has a partition per element of a partition of data",
                _swapped,
                got=lambda call: call.tile("dst").shape,
                data=lambda call: call.tile("data").shape,
                a=lambda call: call.tile("data").free,
                b=lambda call: call.tile("data").partitions,
            ),
        ),
    ),
)
