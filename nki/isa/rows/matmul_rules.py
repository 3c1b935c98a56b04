"""The rules and the cost of the Tensor Engine's products."""

from __future__ import annotations

from nki.isa import cost
from nki.isa.rules import requires
from nki.isa.spec import PMAX, Call, Rule

__all__ = ["INPUTS", "MATMUL_RULES", "matmul_cycles", "moving_limit", "tiling"]

_WIDE = ("float32", "tfloat32")
_FP8 = ("float8_e4m3", "float8_e5m2", "float8_e4m3fn")
INPUTS = frozenset({*_WIDE, *_FP8, "bfloat16", "float16"})


def moving_limit(call: Call) -> int:
    """Return the most elements per partition of `moving`."""
    if call.generation < 4:
        return 512
    return 8192 if call.tile("dst").dtype == "bfloat16" else 4096


def _rows(call: Call) -> int:
    return 2 if call.attributes.get("perf_mode") == "double_row" else 1


def _width(call: Call, name: str) -> int:
    return call.tile(name).free // _rows(call)


def tiling(*row_sizes: tuple[int, tuple[int, ...]], columns: bool) -> tuple[Rule, ...]:
    """Make the rules of `tile_position` and `tile_size`.

    Args:
        *row_sizes: per generation, the sizes of tiles.
        columns: whether columns can be tiled too.
    """
    sizes = dict(row_sizes)

    def both(call: Call) -> bool:
        attributes = call.attributes
        return (attributes["tile_position"] is None) == (attributes["tile_size"] is None)

    def legal(call: Call) -> bool:
        size, position = call.attributes["tile_size"], call.attributes["tile_position"]
        if size is None or position is None:
            return True
        allowed = sizes[call.generation]
        column = size[1] in allowed if columns else (size[1] == PMAX and position[1] == 0)
        inside = all(p % s == 0 and p >= 0 and p + s <= PMAX
                     for p, s in zip(position, size, strict=True) if s > 0)  # fmt: skip
        return size[0] in allowed and column and inside

    def fits(call: Call) -> bool:
        size = call.attributes["tile_size"]
        if size is None:
            return True
        tile = call.tile("stationary")
        return tile.partitions <= int(size[0]) and _width(call, "stationary") <= int(size[1])

    return (
        requires(
            "NKI123",
            "{instruction} tile_position and tile_size must be given together",
            "give both, or neither for the whole array",
            both,
        ),
        requires(
            "NKI123",
            "{instruction} cannot use tile_size {size} at tile_position {position} on {nc}",
            "sizes are {allowed}; a position is a multiple of the size and ends within 128"
            + ("" if columns else "; columns are not tiled: (rows, 128) at (row, 0)"),
            legal,
            size=lambda call: call.attributes["tile_size"],
            position=lambda call: call.attributes["tile_position"],
            allowed=lambda call: ", ".join(map(str, sizes[call.generation])),
        ),
        requires(
            "NKI123",
            "{instruction} stationary of shape {got} does not fit tile_size {size}",
            "use a larger tile, or a smaller stationary tensor",
            fits,
            got=lambda call: call.tile("stationary").shape,
            size=lambda call: call.attributes["tile_size"],
        ),
    )


def _wide_together(call: Call) -> bool:
    kinds = [call.tile(name).dtype in _WIDE for name in ("stationary", "moving")]
    return kinds[0] == kinds[1]


def _one_e4m3(call: Call) -> bool:
    kinds = {call.tile(name).dtype for name in ("stationary", "moving")}
    return not kinds >= {"float8_e4m3", "float8_e4m3fn"}


def _no_fn(call: Call) -> bool:
    return all(tile.dtype != "float8_e4m3fn" for _, _, tile in call.tiles())


def _dst_dtype(call: Call) -> bool:
    kind = call.tile("dst").dtype
    if kind == "float32" or (kind == "bfloat16" and call.generation == 4):
        return True
    transposes = call.attributes["is_transpose"] and call.generation >= 3
    return transposes and kind == call.tile("stationary").dtype


def _dst_shape(call: Call) -> bool:
    dst = call.tile("dst")
    return dst.partitions == _width(call, "stationary") and dst.free == _width(call, "moving")


def _double(call: Call) -> bool:
    return _rows(call) == 2


def _double_shapes(call: Call) -> bool:
    tiles = [call.tile("stationary"), call.tile("moving")]
    return not _double(call) or all(len(t.shape) >= 3 and t.shape[1] == 2 for t in tiles)


def _double_dtypes(call: Call) -> bool:
    return not _double(call) or all(
        call.tile(name).dtype in _FP8 for name in ("stationary", "moving")
    )


def _double_alone(call: Call) -> bool:
    size = call.attributes["tile_size"]
    return not _double(call) or (
        not call.attributes["is_transpose"] and (size is None or size[1] == PMAX)
    )


def _untiled_indirect(call: Call) -> bool:
    position = call.attributes["tile_position"]
    return position in (None, (0, 0)) or not any(t.indirect for _, _, t in call.tiles())


def matmul_cycles(call: Call) -> float:
    """Back-to-back average: ``max(min(64, N_stationary), N_moving)``, four times for float32."""
    cycles = max(min(cost.MIN_II, _width(call, "stationary")), _width(call, "moving"))
    quadruple = call.tile("moving").dtype == "float32"
    # Exact 0 and 1 save half of the passes, and so does transpose mode on NeuronCore-v3.
    onezero = call.attributes.get("is_moving_onezero") or call.attributes.get(
        "is_stationary_onezero"
    )
    transposes = call.attributes.get("is_transpose") and call.generation >= 3
    return cycles * (1 if not quadruple else 2 if onezero or transposes else 4)


_SHAPES: tuple[Rule, ...] = (
    requires(
        "NKI120",
        "{instruction} stationary has {a} partitions and moving has {b}",
        "both hold the contraction in the partition dimension: give them the same",
        lambda c: c.tile("stationary").partitions == c.tile("moving").partitions,
        a=lambda call: call.tile("stationary").partitions,
        b=lambda call: call.tile("moving").partitions,
    ),
    requires(
        "NKI121",
        "{instruction} stationary free size {got} exceeds maximum 128",
        "split it into tiles of nl.tile_size.gemm_stationary_fmax",
        lambda call: _width(call, "stationary") <= PMAX,
        got=lambda call: _width(call, "stationary"),
    ),
    requires(
        "NKI122",
        "{instruction} moving free size {got} exceeds maximum {most} of {nc} with a {dst} dst",
        "split it into tiles of nl.tile_size.gemm_moving_fmax",
        lambda call: _width(call, "moving") <= moving_limit(call),
        got=lambda call: _width(call, "moving"),
        most=moving_limit,
        dst=lambda call: call.tile("dst").dtype,
    ),
    requires(
        "NKI125",
        "{instruction} dst has shape {got}, the product has ({m}, {n})",
        "dst has a partition per column of stationary and an element per column of moving",
        _dst_shape,
        got=lambda call: call.tile("dst").shape,
        m=lambda call: _width(call, "stationary"),
        n=lambda call: _width(call, "moving"),
    ),
)

MATMUL_RULES: tuple[Rule, ...] = (
    requires(
        "NKI124",
        "nc_matmul perf_mode.double_row does not exist on NeuronCore-v2",
        "build for trn2 or trn3, or use matmul_perf_mode.none",
        lambda call: not _double(call),
        generations=(2,),
    ),
    requires(
        "NKI124",
        "nc_matmul perf_mode.double_row needs float8 operands, got {a} and {b}",
        "use float8_e4m3 or float8_e5m2, on trn3 also float8_e4m3fn",
        _double_dtypes,
        a=lambda call: call.tile("stationary").dtype,
        b=lambda call: call.tile("moving").dtype,
    ),
    requires(
        "NKI124",
        "nc_matmul perf_mode.double_row needs operands of shape (K, 2, N), got {a} and {b}",
        "split the contraction: its second half is the first free dimension",
        _double_shapes,
        a=lambda call: call.tile("stationary").shape,
        b=lambda call: call.tile("moving").shape,
    ),
    requires(
        "NKI124",
        "nc_matmul perf_mode.double_row excludes column tiling and is_transpose",
        "leave one of them out",
        _double_alone,
    ),
    requires(
        "NKI107",
        "nc_matmul float8_e4m3fn does not exist on {nc}",
        "use float8_e4m3, whose largest value is 240, or build for trn3",
        _no_fn,
        generations=(2, 3),
    ),
    requires(
        "NKI108",
        "nc_matmul stationary is {a} and moving is {b}",
        "float32 and tfloat32 are multiplied with each other only: convert one of them",
        _wide_together,
        a=lambda call: call.tile("stationary").dtype,
        b=lambda call: call.tile("moving").dtype,
    ),
    requires(
        "NKI108",
        "nc_matmul mixes float8_e4m3 and float8_e4m3fn",
        "convert one of them: the engine reads both as one format",
        _one_e4m3,
    ),
    *_SHAPES,
    requires(
        "NKI107",
        "nc_matmul dst has data type {got} on {nc}",
        "the result is float32, from NeuronCore-v4 on also bfloat16; "
        "transposes may keep the type of stationary",
        _dst_dtype,
        got=lambda call: call.tile("dst").dtype,
    ),
    *tiling((2, (64, 128)), (3, (32, 64, 128)), (4, (32, 64, 128)), columns=True),
    requires(
        "NKI119",
        "nc_matmul uses tensor indirection with a tile_position",
        "leave tile_position out, or gather first",
        _untiled_indirect,
    ),
    requires(
        "NKI119",
        "nc_matmul moving uses tensor indirection with is_transpose=True",
        "gather it first with nisa.tensor_copy",
        lambda c: not (c.attributes["is_transpose"] and c.tile("moving").indirect),
    ),
)
