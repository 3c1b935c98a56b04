"""Microscaling: QuantizeMX and `__op$block_scaled_dot`.

Source: the error pages EVRF036 to EVRF058 of the Neuron documentation, the OCP Microscaling Formats
specification 1.0. Inferred, as the pages leave it open: the scales are E8M0, as bytes or as
f8e8m0fnu, one for each 32 elements of the packed dimension (the last group may be smaller); of the
four values in a word the first is in the lowest byte; an `element_dtype` that isn't given is
float8_e4m3fn.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final

from neuronxcc.frontends.hlo.errors import RefusedError
from neuronxcc.frontends.hlo.notes import Note
from neuronxcc.frontends.hlo.site import Handler, Site, Value
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType

GROUP: Final = 32  # elements with one scale
PACKED: Final = 4  # elements in a word
_BIAS, _NAN_SCALE = 127, 255
_SCALES = frozenset({DType.U8, DType.F8E8M0})


@dataclass(frozen=True, slots=True)
class _Format:
    """An element type.

    Attributes:
        dtype: The type.
        largest: Its largest finite value.
        exponent: The exponent of that value.
    """

    dtype: DType
    largest: float
    exponent: int


_FORMATS = {
    "float8_e5m2": _Format(DType.F8E5M2, 57344.0, 15),
    "float8_e4m3fn": _Format(DType.F8E4M3FN, 448.0, 8),
}


def _refused(number: int, text: str, remedy: str) -> RefusedError:
    return RefusedError(f"NCC_EVRF0{number}", text, remedy)


def _format(site: Site, name: str) -> _Format:
    if name == "float8_e4m3fn":
        site.note(
            Note(
                "Data type F8E4M3FN is not supported on TRN1/TRN2 "
                f"({site.proto.custom_call_target})",
                "compile for trn3; --experimental-unsafe-fp8e4m3fn-as-fp8e4m3 does not apply here",
                "NCC_EVRF051",
                needs="float8_e4m3fn",
            )
        )
    return _FORMATS[name]


def _groups(extent: int) -> int:
    return -(-extent // GROUP)


def _resized(shape: tuple[int, ...], dim: int, extent: int) -> tuple[int, ...]:
    return (*shape[:dim], extent, *shape[dim + 1 :])


# ---- QuantizeMX ---------------------------------------------------------------------------------


def _quantize(site: Site) -> Value:
    if len(site.operands) != 1:
        raise _refused(
            37, f"QuantizeMX custom call operand count must be exactly 1, not {len(site.operands)}",
            "pass the input tensor alone",
        )  # fmt: skip
    x, config = site.one, _quantize_config(site)
    dim = config.get("dim", 0)
    rank = x.type.rank
    if type(dim) is not int or not rank or dim + rank * (dim < 0) not in (rank - 1, rank - 2):
        raise _refused(
            38, f"QuantizeMX custom call dim {dim} is invalid for input rank {rank}",
            "use the last dimension (-1) or the one before it (-2)",
        )  # fmt: skip
    dim += rank * (dim < 0)
    size, method = config.get("block_size", GROUP), config.get("scale_method", "EMAX")
    if size != GROUP:
        raise _refused(39, f"QuantizeMX custom call block_size must be 32, not {size}", "use 32")
    if method != "EMAX":
        raise _refused(
            40, f"QuantizeMX custom call scale_method is unsupported: {method!r}", 'use "EMAX"'
        )
    if x.dtype not in (DType.BF16, DType.F16):
        raise _refused(
            41, f"QuantizeMX custom call input type is unsupported: {x.dtype.value}",
            "cast the input to BF16 or F16",
        )  # fmt: skip
    if x.shape[dim] % PACKED:
        raise _refused(
            58, f"QuantizeMX custom call input dimension {dim} of {x.type} must be divisible by 4",
            "pad it, or reshape",
        )  # fmt: skip
    quantized, scale = _quantize_results(site, x, dim, config.get("dtype"))
    return _quantized(x, dim, _format(site, config["dtype"]), scale, quantized)


def _quantize_config(site: Site) -> dict[str, Any]:
    try:
        config = json.loads(site.proto.backend_config)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise _refused(
            36, "QuantizeMX custom call has invalid backend_config JSON",
            'write a JSON object: {"dtype": "float8_e4m3fn", "dim": -1, "block_size": 32, '
            '"scale_method": "EMAX"}',
        )  # fmt: skip
    return config


def _quantize_results(
    site: Site, x: Node, dim: int, dtype: object
) -> tuple[TensorType, TensorType]:
    """The declared types of data and scale."""
    if not isinstance(site.type, tuple) or len(site.type) != 2:
        raise _refused(
            57, "QuantizeMX custom call must return a tuple with exactly 2 outputs",
            "declare (quantized_data, scale)",
        )  # fmt: skip
    quantized, scale = site.type
    wanted = TensorType(DType.U32, _resized(x.shape, dim, x.shape[dim] // PACKED))
    scales = _resized(x.shape, dim, _groups(x.shape[dim]))
    why = ""
    if not isinstance(dtype, str) or dtype not in _FORMATS:
        why = f"dtype {dtype!r} is none of {', '.join(_FORMATS)}"
    elif quantized != wanted:
        why = f"quantized_data is declared {quantized}, {wanted} is right"
    elif not isinstance(scale, TensorType) or scale.dtype not in _SCALES or scale.shape != scales:
        why = f"scale is declared {scale}, {TensorType(DType.U8, scales)} is right"
    if why:
        raise _refused(
            42, f"QuantizeMX custom call is malformed: {why}",
            "use a supported FP8 dtype; declare U32 data, four values to an element, and scales",
        )  # fmt: skip
    assert isinstance(quantized, TensorType)
    assert isinstance(scale, TensorType)
    return quantized, scale


def _quantized(
    x: Node, dim: int, format_: _Format, scale: TensorType, data: TensorType
) -> tuple[Node, Node]:
    """EMAX: the scale is the power of two of the largest magnitude, less the format's own."""
    wide = build.convert(x, DType.F32)
    groups, extent = _groups(x.shape[dim]), x.shape[dim]
    edge = [0] * x.type.rank
    edge[dim] = groups * GROUP - extent
    padded = build.pad(build.abs_(wide), 0.0, 0, edge)
    split = (*x.shape[:dim], groups, GROUP, *x.shape[dim + 1 :])
    bits = build.bitcast_convert(build.reshape(padded, split), DType.U32)
    largest = build.reduce(bits, "max", dim + 1)  # of magnitudes as of their bits; NaN is largest
    exponent = build.convert(build.shift_right_logical(largest, 23), DType.S32)
    low = build.subtract(exponent, format_.exponent)
    byte = build.maximum(low, build.full_like(low, 0))
    byte = build.select(build.equal(exponent, _NAN_SCALE), build.full_like(byte, _NAN_SCALE), byte)
    factor_bits = build.shift_left(
        build.convert(build.subtract(build.full_like(byte, 2 * _BIAS), byte), DType.U32), 23
    )
    factor = build.bitcast_convert(factor_bits, DType.F32)
    nan = build.full_like(factor, float("nan"))
    factor = build.select(build.equal(byte, _NAN_SCALE), nan, factor)
    scaled = build.multiply(wide, _spread(factor, dim, extent))
    bound = build.full_like(scaled, format_.largest)
    kept = build.clamp(build.negate(bound), scaled, bound)
    # A comparison with NaN is false: clamping must not turn it into a number.
    kept = build.select(build.not_equal(scaled, scaled), scaled, kept)
    small = build.convert(kept, format_.dtype)
    codes = build.convert(byte, DType.U8)
    scales = codes if scale.dtype is DType.U8 else build.bitcast_convert(codes, scale.dtype)
    return _pack(small, dim, data), scales


def _spread(x: Node, dim: int, extent: int) -> Node:
    """Each element of a dimension for the 32 that it belongs to."""
    shape = (*x.shape[: dim + 1], GROUP, *x.shape[dim + 1 :])
    dims = [d for d in range(len(shape)) if d != dim + 1]
    wide = build.broadcast_in_dim(x, shape, dims)
    flat = build.reshape(wide, _resized(x.shape, dim, x.shape[dim] * GROUP))
    return build.slice_dim(flat, dim, 0, extent)


def _pack(x: Node, dim: int, type_: TensorType) -> Node:
    codes = build.bitcast_convert(x, DType.U8)
    total: Node | None = None
    for place in range(PACKED):
        part = build.slice_dim(codes, dim, place, x.shape[dim], PACKED)
        word = build.convert(part, DType.U32)
        word = build.shift_left(word, 8 * place) if place else word
        total = word if total is None else build.or_(total, word)
    assert total is not None
    assert total.type == type_
    return total


def _unpacked(x: Node, dim: int, format_: _Format) -> Node:
    """The values in float32."""
    parts = []
    for place in range(PACKED):
        word = build.shift_right_logical(x, 8 * place) if place else x
        code = build.convert(build.and_(word, 0xFF), DType.U8)
        parts.append(build.convert(build.bitcast_convert(code, format_.dtype), DType.F32))
    shape = _resized(x.shape, dim, x.shape[dim] * PACKED)
    return build.reshape(build.stack(parts, dim + 1), shape)


# ---- __op$block_scaled_dot ----------------------------------------------------------------------


def _scaled_dot(site: Site) -> Node:
    if len(site.operands) != 4:
        raise _refused(
            43, f"ScaledMatmul custom call must have exactly 4 operands, not {len(site.operands)}",
            "pass lhs, rhs, lhs_scale, rhs_scale",
        )  # fmt: skip
    lhs, rhs, lhs_scale, rhs_scale = site.tensors
    for side, x, number in (("LHS", lhs, 46), ("RHS", rhs, 47)):
        if x.dtype is not DType.U32:
            raise _refused(
                44, f"ScaledMatmul custom call {side} input type is unsupported: {x.dtype.value}",
                "use the packed U32 data that QuantizeMX returns",
            )  # fmt: skip
        if x.type.rank < 2:
            raise _refused(
                number, f"ScaledMatmul custom call {side} tensor must have rank >= 2, not {x.type}",
                "reshape it to two dimensions or more",
            )  # fmt: skip
    if not isinstance(site.type, TensorType) or site.type.dtype not in (DType.F32, DType.BF16):
        raise _refused(
            45, f"ScaledMatmul custom call output type is unsupported: {site.type}",
            "declare the result as F32 or BF16",
        )  # fmt: skip
    config = _dot_config(site)
    name = config["element_dtype"]
    if not name:
        site.note(
            Note("element_dtype is not given and taken as float8_e4m3fn", "name it in the config")
        )
    format_ = _format(site, name or "float8_e4m3fn")
    left = _Side("lhs", lhs, lhs_scale, config)
    right = _Side("rhs", rhs, rhs_scale, config)
    sizes = [math.prod(side.x.shape[d] for d in side.batch) for side in (left, right)]
    if sizes[0] != sizes[1] or len(left.batch) != len(right.batch):
        raise _refused(
            48, f"ScaledMatmul custom call batch dimension mismatch: {lhs.type} by {left.batch}, "
            f"{rhs.type} by {right.batch}",
            "align the batch dimensions",
        )  # fmt: skip
    counted = [[side.x.shape[d] for d in side.contract] for side in (left, right)]
    if counted[0] != counted[1]:
        raise _refused(
            50, "ScaledMatmul custom call contracting dimension sizes mismatch: "
            f"{counted[0]} and {counted[1]}",
            "align the contracting dimensions",
        )  # fmt: skip
    return build.dot_general(
        left.values(format_), right.values(format_),
        lhs_batch=left.batch, rhs_batch=right.batch,
        lhs_contract=left.contract, rhs_contract=right.contract, dtype=site.type.dtype,
    )  # fmt: skip


_DIMENSIONS = tuple(
    f"{side}_{kind}_dimensions" for side in ("lhs", "rhs") for kind in ("batch", "contracting")
)


def _dot_config(site: Site) -> dict[str, Any]:
    """The dimensions and the element type; "" and "None" stand for no config."""
    text = site.proto.backend_config.decode("utf-8", "replace").strip()
    try:
        given = json.loads(text) if text not in {"", "None"} else {}
        given = given.get("scaled_dot_backend_config", {})
        found: dict[str, Any] = {name: given.get(name, []) for name in _DIMENSIONS}
        found["element_dtype"] = given.get("element_dtype", "")
    except (ValueError, AttributeError, RecursionError):
        found = {}
    whole = all(
        isinstance(found.get(name), list) and all(type(n) is int for n in found[name])
        for name in _DIMENSIONS
    )
    if not whole or found["element_dtype"] not in ("", *_FORMATS):
        raise _refused(
            49, "ScaledMatmul custom call could not parse backend_config",
            'write {"scaled_dot_backend_config": {"lhs_contracting_dimensions": [1], ...}} with '
            "integers in each list",
        )  # fmt: skip
    return found


class _Side:
    """One operand with its scales; its first contracting dimension is the packed one."""

    def __init__(self, side: str, x: Node, scale: Node, config: dict[str, Any]) -> None:
        self.x, self.scale = x, scale
        self.batch: list[int] = config[f"{side}_batch_dimensions"]
        self.contract: list[int] = config[f"{side}_contracting_dimensions"] or [x.type.rank - 1]
        for kind, dims, number in (("batch", self.batch, 54), ("contracting", self.contract, 55)):
            if any(not 0 <= d < x.type.rank for d in dims):
                raise _refused(
                    number,
                    f"ScaledMatmul custom call {kind} dimension index out of bounds: {dims} of "
                    f"{x.type}",
                    "use indices from 0 to the rank, exclusive",
                )
        if set(self.batch) & set(self.contract):
            raise _refused(
                53,
                "ScaledMatmul custom call contracting dimension overlaps with batch dimension: "
                f"{self.contract}, {self.batch}",
                "make them disjoint",
            )
        dim = self.contract[0]
        wanted = _resized(x.shape, dim, _groups(x.shape[dim] * PACKED))
        if scale.dtype not in _SCALES or scale.shape != wanted:
            raise _refused(
                49,
                f"ScaledMatmul custom call {side}_scale is {scale.type}; "
                f"{TensorType(DType.U8, wanted)} belongs to {x.type}",
                "use the scales that QuantizeMX returns",
            )

    def values(self, format_: _Format) -> Node:
        """In float32, times their scales."""
        dim = self.contract[0]
        values = _unpacked(self.x, dim, format_)
        scale = self.scale
        if scale.dtype is DType.U8:
            scale = build.bitcast_convert(scale, DType.F8E8M0)
        spread = _spread(build.convert(scale, DType.F32), dim, values.shape[dim])
        return build.multiply(values, spread)


TARGETS: dict[str, Handler] = {"QuantizeMX": _quantize, "__op$block_scaled_dot": _scaled_dot}
