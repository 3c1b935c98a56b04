"""Runs an instruction of today on what a function of the first generation was given.

The row in `nki.isa.table` says which arguments are tiles, which have one value for each partition,
and which are attributes. A function gives its ``locals()``: its signature is the rest of the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.first_generation.compute import (
    LANES,
    TILE,
    Operand,
    compute,
    compute_into,
    tile_of,
)
from nki.first_generation.dtypes import promote
from nki.first_generation.isa.common import kind_of, lanes_float32, no_more
from nki.first_generation.tensors import Result
from nki.first_generation.writes import stretch
from nki.isa.spec import Instruction, Kind, Role
from nki.isa.table import TABLE
from nki.tensor import NkiTensor

__all__ = ["computed", "written"]

Given = Mapping[str, Any]

_TILES = (Kind.TILE, Kind.SCALAR_OR_TILE)
_ELEMENTWISE = ("tensor_tensor", "scalar_tensor_tensor")


def _attributes(row: Instruction, given: Given) -> dict[str, Any]:
    return {a.name: given[a.name] for a in row.attributes if a.name in given}


def repeated(tiles: dict[str, NkiTensor]) -> dict[str, NkiTensor]:
    """Repeat free dimensions of size 1 of tiles, where another one is larger.

    Dimensions that a tile does not have count as 1, behind the partition. Tiles with as many
    elements in each partition stay as they are, and so do those that don't fit, which the
    instruction refuses.
    """
    if len({math.prod(tile.shape[1:]) for tile in tiles.values()}) < 2:
        return tiles
    rank = max(tile.ndim for tile in tiles.values())
    shapes = [(1,) * (rank - tile.ndim) + tile.shape[1:] for tile in tiles.values()]
    try:
        free = np.broadcast_shapes(*shapes)
    except ValueError:
        return tiles
    return {
        key: stretch(tile.reshape((tile.shape[0], *shape)), (tile.shape[0], *free))
        for (key, tile), shape in zip(tiles.items(), shapes, strict=True)
    }


def computed(
    name: str,
    given: Given,
    kind: str | None = None,
    *,
    columns: int | None = None,
    operators: Given | None = None,
) -> Result:
    """Return the tile that an instruction computes from its first tile, in that tile's shape.

    Args:
        name: of the instruction, and of the function that was called.
        given: its arguments by name; an operand that is an `Operand` already is taken as it is.
        kind: the type of the result if `dtype` is None, by default that of all tiles together.
        columns: the result has so many for each partition.
        operators: by name of an operand, the operator that takes it as float32 if it computes.
    """
    no_more(name, given["more"])
    row, mask = TABLE[name], given["mask"]
    known = {o.name: given[o.name] for o in row.operands if o.name in given}
    tiles = {
        o.name: tile_of(known[o.name], f"{name} {o.name}", mask)
        for o in row.operands
        if o.name in known and o.kind in _TILES and not isinstance(known[o.name], Operand)
    }
    if name in _ELEMENTWISE:
        tiles = repeated(tiles)
    operands: dict[str, Operand] = {}
    for key, value in known.items():
        if isinstance(value, Operand):
            operands[key] = value
        elif key in tiles:
            operands[key] = Operand(tiles[key])
        elif operators is not None and key in operators:
            operands[key] = lanes_float32(value, operators[key])
        else:
            operands[key] = Operand(value, LANES)
    first, *others = tiles.values()
    if kind is None:
        kind = promote(first.dtype, others[0].dtype) if others else first.dtype
    return compute(
        name,
        first.shape if columns is None else (first.shape[0], columns),
        kind_of(given["dtype"], kind),
        operands,
        attributes=_attributes(row, given),
        domain=first.shape,
        follows=TILE if columns is None else LANES,
        mask=mask,
        buffer=given.get("buffer"),
    )


def written(name: str, given: Given) -> None:
    """Issue an instruction that writes to the tile `dst` of its arguments; see `computed`.

    `dtype` is documented, and without a meaning beside a destination.
    """
    row = TABLE[name]
    operands: dict[str, Operand] = {}
    for operand in row.operands:
        value = given.get(operand.name)
        if operand.name == "dst":
            keeps = operand.role is Role.READWRITE
        elif isinstance(value, Operand):
            operands[operand.name] = value
        else:
            operands[operand.name] = Operand(value, TILE if operand.kind in _TILES else LANES)
    compute_into(
        name,
        given["dst"],
        operands,
        attributes=_attributes(row, given),
        mask=given["mask"],
        keeps=keeps,
    )
