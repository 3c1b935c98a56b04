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
from nki.isa.rows.dma_rules import (
    AXES,
    HWDGE_V2,
    PRIORITY,
    SKIP,
    TRIGGER,
    WRITTEN_BEFORE,
    direct,
    gather_transpose,
    gathers,
    hardware_transpose,
    hwdge_gather,
    hwdge_types,
    mode,
    modifies,
    permutation,
    scales,
    shape_after,
    sources,
    static,
    transpose_mode,
)
from nki.isa.rules import requires, same_dtype
from nki.isa.spec import (
    ANY_DTYPE,
    GENERATIONS,
    HBM,
    Attribute,
    Cost,
    Engines,
    Instruction,
    Kind,
    Operand,
    Role,
)
from nki.isa.state import Step

__all__ = ["ROWS"]

Attributes = Mapping[str, Any]

_REACH = HBM | SBUF
_MOST_SOURCES = 16
_COST = Cost(cost.dma_copy, cost.DMA, unit="ns")
_ENGINES = Engines(dict.fromkeys(GENERATIONS, ("dma",)), trigger=True)


def _copy(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    return {"dst": copied(step, operands, "src")}


def _transpose(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    src = operands["src"]
    bits = raw(step, operands, "src").reshape(src.shape)
    return {"dst": bits.transpose(attributes["axes"] or AXES[src.ndim])}


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
            PRIORITY,
            HWDGE_V2,
            TRIGGER,
            requires(
                "NKI108",
                "dma_copy with dge_mode.hwdge moves bytes, but src is {a} and dst is {b}",
                "reinterpret one of them with .view(dtype), or leave dge_mode open to convert",
                hwdge_types,
                a=lambda call: call.tile("src").dtype,
                b=lambda call: call.tile("dst").dtype,
            ),
            requires(
                "NKI134",
                "dma_copy with vector_offset needs software descriptors, got dge_mode.{mode}",
                "use dge_mode.swdge or dge_mode.unknown",
                hwdge_gather,
                mode=mode,
            ),
            requires(
                "NKI134",
                "dma_copy with a dynamic address cannot use dge_mode.none",
                "its descriptors are written before the kernel runs: use dge_mode.unknown",
                static,
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
                lambda c: permutation(c) == AXES.get(len(c.tile("src").shape)),
                axes=permutation,
                rank=lambda call: len(call.tile("src").shape),
            ),
            requires(
                "NKI125",
                "dma_transpose dst has shape {got}, the transpose of src has {want}",
                "give dst exactly this shape, sizes of 1 included",
                lambda call: call.tile("dst").shape == shape_after(call),
                got=lambda call: call.tile("dst").shape,
                want=shape_after,
            ),
            PRIORITY,
            HWDGE_V2,
            requires(
                "NKI134",
                "dma_transpose cannot use dge_mode.{mode} {how}",
                "use dge_mode.unknown; hwdge is for static addresses, swdge for vector_offset",
                transpose_mode,
                mode=mode,
                how=lambda c: "with vector_offset" if c.tile("src").indirect else "without",
            ),
            requires(
                "NKI135",
                "dma_transpose with dge_mode.hwdge cannot take {problem}",
                "use dge_mode.unknown, or split the tensor",
                direct,
                problem=hardware_transpose,
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
                gathers,
                problem=gather_transpose,
            ),
            SKIP,
        ),
        findings=(WRITTEN_BEFORE,),
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
            Attribute("scales", scales, None),
            Attribute("unique_indices", convert.flag, default=True),
            _OOB,
            convert.NAME,
        ),
        _ENGINES,
        _compute,
        Cost(
            lambda call: cost.dma_copy(call) * len(sources(call)),
            cost.DMA + "; every source is read once",
            unit="ns",
        ),
        (
            requires(
                "NKI135",
                "dma_compute has {got} sources, at most 16 are possible",
                "sum in several instructions",
                lambda call: len(sources(call)) <= _MOST_SOURCES,
                got=lambda call: len(sources(call)),
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
                    c.attributes["scales"] is None or len(c.attributes["scales"]) == len(sources(c))
                ),
                got=lambda call: len(call.attributes["scales"]),
                want=lambda call: len(sources(call)),
            ),
            requires(
                "NKI135",
                "dma_compute with vector_offset needs exactly 2 sources and unique_indices=True",
                "one source is what is modified, the other what is added",
                modifies,
            ),
            SKIP,
        ),
    ),
)
