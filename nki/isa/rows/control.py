"""Instructions that move no tensor: registers, the two cores of a logical core, queries.

Rows without a meaning are carried out by the runtime: they make objects, or need both cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.dtypes import NAMES, info
from nki.isa import convert, cost, enums
from nki.isa.cast import Array, bit_pattern
from nki.isa.rows.common import SBUF, Arrays, on, source, target
from nki.isa.rules import requires, same_dtype
from nki.isa.spec import (
    ANY_DTYPE,
    HBM,
    REGISTER,
    Attribute,
    Call,
    Cost,
    Instruction,
    Kind,
    Operand,
    Role,
    Rule,
)
from nki.isa.state import Step
from nki.tensor import NkiTensor

__all__ = ["ROWS"]

Attributes = Mapping[str, Any]

_WORDS = frozenset(name for name in NAMES if info(name).itemsize <= 4)
_GPSIMD_DMA_BYTES = {4: 1024, 2: 512, 1: 256}
_RANK = convert.integer(0, 1)


def _as_int32(value: Array) -> Array:
    """Return the 32-bit register value of an integer, or the bits of anything else."""
    array = value.reshape(1, 1)
    if array.dtype.kind not in "iu":
        array = array.view(np.dtype(f"u{array.dtype.itemsize}"))
    return array.astype(np.int64).astype(np.uint32).view(np.int32)


def _move(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del step, attributes
    return {"dst": _as_int32(operands["src"])}


def _store(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    dst = operands["dst"]
    word = bit_pattern(_as_int32(operands["src"])).astype(np.dtype(f"u{dst.dtype.itemsize}"))
    # The pattern is not rounded.
    return {"dst": word if step.dtypes["dst"] == "tfloat32" else word.view(dst.dtype)}


def _one_element(name: str) -> Rule:
    return requires(
        "NKI137",
        "{instruction} " + name + " must have one element, got shape {got}",
        "slice one element: its shape is (1,) or (1, 1)",
        lambda call: call.tile(name).size == 1,
        got=lambda call: call.tile(name).shape,
    )


def _cores(given: Any) -> tuple[int, ...]:
    values = tuple(convert.integers()(given))
    if values != (0, 1):
        raise ValueError(f"must be (0, 1), got {given}; a logical core has two physical ones")
    return values


def _gpsimd_bytes(call: Call) -> int:
    tile = call.tile("src")
    return tile.free * tile.info.itemsize


def _small_enough(call: Call) -> bool:
    if call.attributes["dma_engine"] != "gpsimd_dma":
        return True
    return _gpsimd_bytes(call) <= _GPSIMD_DMA_BYTES[call.tile("src").info.itemsize]


def _sendrecv_engine(call: Call) -> str:
    return "gpsimd" if call.attributes["dma_engine"] == "gpsimd_dma" else "dma"


def _sendrecv_ns(call: Call) -> float:
    if call.engine == "dma":
        return cost.dma_copy(call)
    tile = call.tile("src")
    return tile.size * tile.info.itemsize / 153.0


_REGISTER_DST = Operand("dst", Role.WRITE, Kind.REGISTER, REGISTER)
_VALUE = convert.integer(-(2**31), 2**32 - 1)


def _initial(given: Any) -> Any:
    """Return what a new register holds: an integer, None, or what a tensor does, which 0.2 has."""
    return given if given is None or isinstance(given, NkiTensor) else _VALUE(given)


ROWS = (
    Instruction(
        "sendrecv",
        (
            source("src", ANY_DTYPE, regions=SBUF),
            target("dst", ANY_DTYPE, regions=SBUF),
            Attribute("send_to_rank", _RANK),
            Attribute("recv_from_rank", _RANK),
            Attribute("pipe_id", convert.integer()),
            Attribute("dma_engine", convert.member(enums.dma_engine), "dma"),
            convert.NAME,
        ),
        on("dma", "gpsimd", first=3, choose=_sendrecv_engine),
        None,
        Cost(
            _sendrecv_ns,
            cost.DMA + "; 153 GB/s per direction inside GpSimd (trainium2_arch.rst)",
            unit="ns",
        ),
        (
            same_dtype("src", "dst"),
            requires(
                "NKI138",
                "sendrecv src has shape {a} and dst has {b}",
                "both cores exchange tensors of the same shape",
                lambda call: call.tile("src").shape == call.tile("dst").shape,
                a=lambda call: call.tile("src").shape,
                b=lambda call: call.tile("dst").shape,
            ),
            requires(
                "NKI138",
                "sendrecv with dma_engine.gpsimd_dma moves {got} bytes per partition, at most "
                "{most} of {dtype} are possible",
                "use dma_engine.dma, or exchange in several instructions",
                _small_enough,
                got=_gpsimd_bytes,
                most=lambda call: _GPSIMD_DMA_BYTES[call.tile("src").info.itemsize],
                dtype=lambda call: call.tile("src").dtype,
            ),
        ),
    ),
    Instruction(
        "core_barrier",
        (
            source("data", ANY_DTYPE, regions=frozenset({"shared_hbm"})),
            Attribute("cores", _cores),
            convert.engine("gpsimd"),
            convert.NAME,
        ),
        on("gpsimd", "tensor", "vector", "scalar", "sync", first=3),
        None,
    ),
    Instruction(
        "register_alloc",
        (Attribute("x", _initial, None),),
        on("sync"),
        None,
    ),
    Instruction(
        "register_move",
        (_REGISTER_DST, Operand("src", Role.READ, Kind.REGISTER_OR_INT, REGISTER)),
        on("sync"),
        _move,
    ),
    Instruction(
        "register_load",
        (_REGISTER_DST, source("src", _WORDS, regions=HBM | SBUF, any_start=True)),
        on("sync"),
        _move,
        rules=(_one_element("src"),),
    ),
    Instruction(
        "register_store",
        (
            target(dtypes=_WORDS, regions=HBM | SBUF, any_start=True),
            Operand("src", Role.READ, Kind.REGISTER, REGISTER),
        ),
        on("sync"),
        _store,
        rules=(_one_element("dst"),),
    ),
    Instruction("get_nc_version", (), on("sync"), None),
    Instruction("get_nc_sub_version", (), on("sync"), None),
)
