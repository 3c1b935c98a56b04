"""The DMA engines: dma_copy, dma_transpose, dma_compute.

Indirect and dynamic access, bounds and `oob_mode` belong to the views: a meaning sees what they
select.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.isa import convert, cost, enums
from nki.isa.cast import Array, to_float32
from nki.isa.rows.common import NUMERIC, SBUF, Arrays, copied, raw, source, target
from nki.isa.rows.copy import packed_copy
from nki.isa.rules import requires, same_dtype
from nki.isa.spec import (
    ANY_DTYPE,
    GENERATIONS,
    HBM,
    Attribute,
    Call,
    Cost,
    Engines,
    Instruction,
    Kind,
    Operand,
    Role,
    Rule,
    Tile,
)
from nki.isa.state import Step

__all__ = ["ROWS"]

Attributes = Mapping[str, Any]

_REACH = HBM | SBUF
_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
_MOST_SOURCES = 16
_COST = Cost(cost.dma_copy, cost.DMA, unit="ns")
_ENGINES = Engines(dict.fromkeys(GENERATIONS, ("dma",)), trigger=True)


def _copy(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    return {"dst": copied(step, operands, "src")}


def _permutation(call: Call) -> tuple[int, ...]:
    given = call.attributes["axes"]
    return tuple(given) if given is not None else _AXES.get(len(call.tile("src").shape), ())


def _transpose(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    src = operands["src"]
    bits = raw(step, operands, "src").reshape(src.shape)
    return {"dst": bits.transpose(attributes["axes"] or _AXES[src.ndim])}


def _compute(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    parts = [
        to_float32(value, step.dtypes[f"srcs[{i}]"]).reshape(-1)
        for i, value in enumerate(operands["srcs"])
    ]
    total = np.zeros_like(parts[0]) + parts[0]
    for part in parts[1:]:
        total = total + part
    return {"dst": total}


# Rules


def _mode(call: Call) -> str:
    return str(call.attributes["dge_mode"])


_PRIORITY = requires(
    "NKI116",
    "{instruction} priority does not exist on {nc}",
    "leave it out: quality of service came with NeuronCore-v4",
    lambda call: call.attributes["priority"] is None,
    generations=(2, 3),
)
_HWDGE_V2 = requires(
    "NKI134",
    "{instruction} dge_mode.hwdge does not exist on NeuronCore-v2",
    "use dge_mode.unknown, or build for trn2 or trn3",
    lambda call: _mode(call) != "hwdge",
    generations=(2,),
)
_TRIGGER: Rule = requires(
    "NKI113",
    "dma_copy engine {engine} needs dge_mode.hwdge and must be sync or scalar",
    "leave engine open, or pass dge_mode=nisa.dge_mode.hwdge",
    lambda c: (
        c.attributes["engine"] == "unknown"
        or (_mode(c) == "hwdge" and c.attributes["engine"] in ("sync", "scalar"))
    ),
    engine=lambda call: call.attributes["engine"],
)


def _hwdge_types(call: Call) -> bool:
    return _mode(call) != "hwdge" or call.tile("dst").dtype == call.tile("src").dtype


def _hwdge_gather(call: Call) -> bool:
    return _mode(call) not in ("hwdge", "none") or not any(t.indirect for _, _, t in call.tiles())


def _static(call: Call) -> bool:
    return _mode(call) != "none" or not any(t.dynamic for _, _, t in call.tiles())


def _skips_indirect(call: Call) -> bool:
    skips = call.attributes["oob_mode"] == "skip"
    return not skips or any(t.indirect or t.dynamic for _, _, t in call.tiles())


_SKIP = requires(
    "NKI134",
    "{instruction} oob_mode.skip needs an operand with a dynamic address",
    "static accesses are checked when the kernel is built: use oob_mode.error",
    _skips_indirect,
)


def _shape_after(call: Call) -> tuple[int, ...]:
    shape = call.tile("src").shape
    return tuple(shape[axis] for axis in _permutation(call))


def _hardware_transpose(call: Call) -> str | None:
    """Return what keeps a transpose from the descriptor hardware."""
    src = call.tile("src")
    if src.info.itemsize != 2:
        return f"elements of {src.info.itemsize} bytes: they must have 2"
    if src.shape[-1] > 128:
        return f"a last dimension of {src.shape[-1]}: it must be at most 128"
    if len(src.shape) == 2:
        return None if src.shape[0] == 16 else f"a first dimension of {src.shape[0]}: it must be 16"
    if src.shape[0] not in (1, 2, 4, 8, 16):
        return f"a first dimension of {src.shape[0]}: it must be 1, 2, 4, 8 or 16"
    rows = src.shape[0] * src.shape[-2]
    return f"{rows} rows: they must be a multiple of 16" if rows % 16 else None


def _gather_transpose(call: Call) -> str | None:
    """Return what keeps a gathering transpose from the software descriptors."""
    src = call.tile("src")
    index = src.index
    if src.region not in HBM:
        return f"src in {src.region}: it must be in HBM"
    if src.info.itemsize != 2:
        return f"elements of {src.info.itemsize} bytes: they must have 2"
    if src.shape[-1] > 128:
        return f"a last dimension of {src.shape[-1]}: it must be at most 128"
    if src.shape[0] % 16:
        return f"{src.shape[0]} gathered rows: they must be a multiple of 16"
    if len(src.shape) == 4 and 1 not in src.shape[1:3]:
        return f"shape {src.shape}: dimension 1 or 2 must be 1"
    return None if index is None else _gather_index(index, src.shape[0])


def _gather_index(index: Tile, rows: int) -> str | None:
    shape = index.shape
    if index.region != "sbuf" or index.dtype != "uint32" or len(shape) != 2:
        return f"indices {index.dtype} {shape} in {index.region}: uint32, 2-D, in sbuf is needed"
    if not 16 <= shape[0] <= 128 or shape[0] % 16:
        return f"indices of {shape[0]} partitions: 16 to 128 and a multiple of 16 is needed"
    if shape[1] > 1 and shape[0] != 128:
        return f"indices of shape {shape}: several columns need 128 partitions"
    if index.size < rows:
        return f"{index.size} indices for {rows} rows"
    return None


def _direct(call: Call) -> bool:
    src = call.tile("src")
    if src.indirect or _mode(call) != "hwdge":
        return True
    return _hardware_transpose(call) is None


def _gathers(call: Call) -> bool:
    return not call.tile("src").indirect or _gather_transpose(call) is None


def _transpose_mode(call: Call) -> bool:
    wanted = "swdge" if call.tile("src").indirect else "hwdge"
    return _mode(call) in ("unknown", wanted)


def _sources(call: Call) -> tuple[Tile, ...]:
    given = call.operands["srcs"]
    assert isinstance(given, tuple)
    return given


def _scales(given: Any) -> tuple[float, ...] | None:
    if given is None:
        return None
    values = tuple(float(convert.number(scale)) for scale in given)
    if any(value != 1.0 for value in values):
        raise ValueError(
            f"must all be 1.0, got {list(values)}; scale with nisa.tensor_scalar before"
        )
    return values


def _modifies(call: Call) -> bool:
    indirect = any(tile.indirect for tile in _sources(call)) or call.tile("dst").indirect
    return not indirect or (len(_sources(call)) == 2 and call.attributes["unique_indices"])


_PRIORITY_ATTRIBUTE = Attribute("priority", convert.optional(convert.integer(0, 3)), None)
_DGE = Attribute("dge_mode", convert.member(enums.dge_mode), "unknown")
_OOB = Attribute("oob_mode", convert.member(enums.oob_mode), "error")

ROWS = (
    Instruction(
        "dma_copy",
        (
            target(dtypes=ANY_DTYPE, regions=_REACH, indirect=True, any_start=True),
            source("src", ANY_DTYPE, regions=_REACH, indirect=True, any_start=True),
            _PRIORITY_ATTRIBUTE,
            _OOB,
            _DGE,
            convert.engine(),
            convert.NAME,
        ),
        _ENGINES,
        _copy,
        _COST,
        (
            requires(
                "NKI106",
                "dma_copy dst of shape {a} and src of shape {b} differ in their number of elements",
                "slice or broadcast one of them",
                lambda call: call.tile("dst").size == call.tile("src").size,
                a=lambda call: call.tile("dst").shape,
                b=lambda call: call.tile("src").shape,
            ),
            packed_copy("src"),
            _PRIORITY,
            _HWDGE_V2,
            _TRIGGER,
            requires(
                "NKI108",
                "dma_copy with dge_mode.hwdge moves bytes, but src is {a} and dst is {b}",
                "reinterpret one of them with .view(dtype), or leave dge_mode open to convert",
                _hwdge_types,
                a=lambda call: call.tile("src").dtype,
                b=lambda call: call.tile("dst").dtype,
            ),
            requires(
                "NKI134",
                "dma_copy with vector_offset needs software descriptors, got dge_mode.{mode}",
                "use dge_mode.swdge or dge_mode.unknown",
                _hwdge_gather,
                mode=_mode,
            ),
            requires(
                "NKI134",
                "dma_copy with a dynamic address cannot use dge_mode.none",
                "its descriptors are written before the kernel runs: use dge_mode.unknown",
                _static,
            ),
        ),
    ),
    Instruction(
        "dma_transpose",
        (
            target(dtypes=ANY_DTYPE, regions=SBUF, any_start=True),
            source("src", ANY_DTYPE, regions=_REACH, indirect=True, any_start=True),
            Attribute("axes", convert.integers(none=True), None),
            _PRIORITY_ATTRIBUTE,
            _DGE,
            _OOB,
            convert.NAME,
        ),
        _ENGINES,
        _transpose,
        Cost(
            lambda call: cost.dma_copy(call) / 0.9,
            cost.DMA + "; trainium2_arch.rst: up to 90 % of a copy",
            unit="ns",
        ),
        (
            same_dtype("dst", "src"),
            requires(
                "NKI133",
                "dma_transpose axes {axes} of a {rank}-dimensional src are not supported",
                "use (1, 0), (2, 1, 0) or (3, 1, 2, 0)",
                lambda c: _permutation(c) == _AXES.get(len(c.tile("src").shape)),
                axes=_permutation,
                rank=lambda call: len(call.tile("src").shape),
            ),
            requires(
                "NKI125",
                "dma_transpose dst has shape {got}, the transpose of src has {want}",
                "give dst exactly this shape, sizes of 1 included",
                lambda call: call.tile("dst").shape == _shape_after(call),
                got=lambda call: call.tile("dst").shape,
                want=_shape_after,
            ),
            _PRIORITY,
            _HWDGE_V2,
            requires(
                "NKI134",
                "dma_transpose cannot use dge_mode.{mode} {how}",
                "use dge_mode.unknown; hwdge is for static addresses, swdge for vector_offset",
                _transpose_mode,
                mode=_mode,
                how=lambda c: "with vector_offset" if c.tile("src").indirect else "without",
            ),
            requires(
                "NKI135",
                "dma_transpose with dge_mode.hwdge cannot take {problem}",
                "use dge_mode.unknown, or split the tensor",
                _direct,
                problem=_hardware_transpose,
            ),
            requires(
                "NKI112",
                "dma_transpose with vector_offset does not exist on NeuronCore-v2",
                "gather with nisa.dma_copy first",
                lambda call: not call.tile("src").indirect,
                generations=(2,),
            ),
            requires(
                "NKI135",
                "dma_transpose with vector_offset cannot take {problem}",
                "gather with nisa.dma_copy first, or change the shape",
                _gathers,
                problem=_gather_transpose,
            ),
            _SKIP,
        ),
    ),
    Instruction(
        "dma_compute",
        (
            target(regions=_REACH, indirect=True, any_start=True),
            Operand(
                "srcs",
                Role.READ,
                Kind.TILES,
                _REACH,
                NUMERIC,
                indirect=True,
                any_start=True,
            ),
            Attribute("reduce_op", convert.op("add")),
            Attribute("scales", _scales, None),
            Attribute("unique_indices", convert.flag, default=True),
            _OOB,
            convert.NAME,
        ),
        _ENGINES,
        _compute,
        Cost(
            lambda call: cost.dma_copy(call) * len(_sources(call)),
            cost.DMA + "; every source is read once",
            unit="ns",
        ),
        (
            requires(
                "NKI135",
                "dma_compute has {got} sources, at most 16 are possible",
                "sum in several instructions",
                lambda call: len(_sources(call)) <= _MOST_SOURCES,
                got=lambda call: len(_sources(call)),
            ),
            requires(
                "NKI106",
                "dma_compute tensors differ in their number of elements: {sizes}",
                "all sources and dst have the same",
                lambda call: len({tile.size for _, _, tile in call.tiles()}) == 1,
                sizes=lambda c: ", ".join(f"{name} {t.size}" for name, _, t in c.tiles()),
            ),
            requires(
                "NKI135",
                "dma_compute has {got} scales for {want} sources",
                "give one scale per source, or none",
                lambda c: (
                    c.attributes["scales"] is None
                    or len(c.attributes["scales"]) == len(_sources(c))
                ),
                got=lambda call: len(call.attributes["scales"]),
                want=lambda call: len(_sources(call)),
            ),
            requires(
                "NKI135",
                "dma_compute with vector_offset needs exactly 2 sources and unique_indices=True",
                "one source is what is modified, the other what is added",
                _modifies,
            ),
            _SKIP,
        ),
    ),
)
