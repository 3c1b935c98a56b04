"""Microscaling: quantize_mx, nc_matmul_mx."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.isa import convert, cost
from nki.isa.cast import Array
from nki.isa.mx import (
    LARGEST,
    block_scales,
    dequantise,
    quantise,
    scale_rows,
)
from nki.isa.rows.common import PSUM, SBUF, Arrays, flat, on, read, source, target
from nki.isa.rows.matmul import accumulated
from nki.isa.rows.matmul_rules import matmul_cycles, moving_limit, tiling
from nki.isa.rules import requires, same_partitions
from nki.isa.spec import PMAX, Attribute, Call, Instruction, Role, Rule
from nki.isa.state import Step

__all__ = ["ROWS"]

Attributes = Mapping[str, Any]

_MX = frozenset(LARGEST)
_MX8 = _MX - {"float4_e2m1fn_x4"}
_SCALES = frozenset({"float8_e8m0fnu", "uint8"})
_HALVES = frozenset({"bfloat16", "float16"})
_QUADRANT = 32


def _quantize(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    dtype = step.dtypes["dst"]
    values = read(step, operands, "src")
    scales = block_scales(values, dtype, step.core.scale_rule)
    kept = flat(operands["dst_scale"]).view(np.uint8).copy()
    kept[scale_rows(values.shape[0])] = scales
    return {
        "dst": quantise(values, scales, dtype),
        "dst_scale": kept.view(operands["dst_scale"].dtype),
    }


def _dequantised(step: Step, operands: Arrays, name: str) -> Array:
    """Return float64 of shape (K, N, 4)."""
    items = flat(operands[name])
    scales = flat(operands[f"{name}_scale"]).view(np.uint8)
    scales = scales[scale_rows(items.shape[0]), : items.shape[1]]
    return dequantise(items, scales, step.dtypes[name]).reshape(*items.shape, 4)


def _matmul_mx(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    stationary = _dequantised(step, operands, "stationary")
    moving = _dequantised(step, operands, "moving")
    product = np.einsum("kmq,knq->mn", stationary, moving, optimize=True)
    dst = operands["dst"]
    total = accumulated(
        step,
        product.astype(np.float32).reshape(dst.shape),
        dst,
        step.dtypes["dst"],
        attributes["accumulate"],
    )
    return {"dst": total}


def _scale_partitions(partitions: int) -> int:
    return int(scale_rows(partitions)[-1]) + 1


def _scale_shape(data: str, scale: str, *, exact: bool) -> Rule:
    """Make the rule that a scale tensor holds the scales of a data tensor of packed items."""

    def holds(call: Call) -> bool:
        tile, scales = call.tile(data), call.tile(scale)
        enough = scales.free == tile.free if exact else scales.free >= tile.free
        return scales.partitions >= _scale_partitions(tile.partitions) and enough

    return requires(
        "NKI129",
        "{instruction} " + scale + " has shape {got}; data of shape {shape} needs at least "
        "{rows} partitions" + (" and exactly {free} elements" if exact else " and {free} elements"),
        "scales lie in four partitions of each quadrant of 32: allocate (P / 8, F) for up to 32 "
        "partitions of data and (P, F) for more",
        holds,
        got=lambda call: call.tile(scale).shape,
        shape=lambda call: call.tile(data).shape,
        rows=lambda call: _scale_partitions(call.tile(data).partitions),
        free=lambda call: call.tile(data).free,
    )


def _quadrants(name: str) -> Rule:
    return requires(
        "NKI105",
        "{instruction} " + name + " has {got} partitions, it needs a multiple of 32",
        "pad the contraction with zeros",
        lambda call: call.tile(name).partitions % _QUADRANT == 0,
        got=lambda call: call.tile(name).partitions,
    )


_SHAPES: tuple[Rule, ...] = (
    requires(
        "NKI120",
        "{instruction} stationary has {a} partitions and moving has {b}",
        "both hold the contraction in the partition dimension: give them the same",
        lambda c: c.tile("stationary").partitions == c.tile("moving").partitions,
        a=lambda call: call.tile("stationary").partitions,
        b=lambda call: call.tile("moving").partitions,
    ),
    _quadrants("stationary"),
    requires(
        "NKI121",
        "{instruction} stationary free size {got} must be even and at most 128",
        "pad it, or split it into tiles of nl.tile_size.gemm_stationary_fmax",
        lambda c: c.tile("stationary").free <= PMAX and c.tile("stationary").free % 2 == 0,
        got=lambda call: call.tile("stationary").free,
    ),
    requires(
        "NKI122",
        "{instruction} moving free size {got} exceeds maximum {most} with a {dst} dst",
        "split it into tiles",
        lambda call: call.tile("moving").free <= moving_limit(call),
        got=lambda call: call.tile("moving").free,
        most=moving_limit,
        dst=lambda call: call.tile("dst").dtype,
    ),
    requires(
        "NKI125",
        "{instruction} dst has shape {got}, the product has ({m}, {n})",
        "dst has a partition per column of stationary and an element per column of moving",
        lambda c: (
            (c.tile("dst").partitions, c.tile("dst").free)
            == (c.tile("stationary").free, c.tile("moving").free)
        ),
        got=lambda call: call.tile("dst").shape,
        m=lambda call: call.tile("stationary").free,
        n=lambda call: call.tile("moving").free,
    ),
    _scale_shape("stationary", "stationary_scale", exact=False),
    _scale_shape("moving", "moving_scale", exact=False),
    *tiling((4, (32, 64, 128)), columns=False),
)

ROWS = (
    Instruction(
        "nc_matmul_mx",
        (
            target(
                dtypes=frozenset({"float32", "bfloat16"}),
                regions=PSUM,
                role=Role.READWRITE,
                indirect=True,
            ),
            source("stationary", _MX, regions=SBUF, indirect=True),
            source("moving", _MX, regions=SBUF, indirect=True),
            source("stationary_scale", _SCALES, regions=SBUF, any_start=True),
            source("moving_scale", _SCALES, regions=SBUF, any_start=True),
            Attribute("tile_position", convert.integers(2, none=True), None),
            Attribute("tile_size", convert.integers(2, none=True), None),
            Attribute("accumulate", convert.accumulate, None),
            convert.NAME,
        ),
        on("tensor", first=4),
        _matmul_mx,
        cost.by(
            matmul_cycles,
            "trainium3_arch.rst: four times the contraction in the time of a bfloat16 matmul; "
            + cost.OCTOBER,
        ),
        _SHAPES,
    ),
    Instruction(
        "quantize_mx",
        (
            target(dtypes=_MX8, regions=SBUF),
            source("src", _HALVES, regions=SBUF),
            target("dst_scale", _SCALES, regions=SBUF, role=Role.READWRITE, any_start=True),
            convert.NAME,
        ),
        on("vector", first=4),
        _quantize,
        cost.by(
            lambda call: max(cost.MIN_II, call.tile("src").free / 4),
            "trainium3_arch.rst: four elements per partition and cycle",
        ),
        (
            same_partitions("dst", "src"),
            _quadrants("src"),
            requires(
                "NKI106",
                "quantize_mx src has {got} elements per partition and dst {items} packed items",
                "four elements make one item: dst has a quarter of the free size of src",
                lambda call: call.tile("src").free == 4 * call.tile("dst").free,
                got=lambda call: call.tile("src").free,
                items=lambda call: call.tile("dst").free,
            ),
            _scale_shape("dst", "dst_scale", exact=True),
        ),
    ),
)
