"""Random legal calls of instructions, on operands of any layout, with tolerances.

Engines' sums are float32 in some order: n terms of sizes that sum to S differ by at most
n * 2**-24 * S. Functions differ by ulps of float32, which may turn the rounding of a narrower type,
so by one ulp of that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from nki.dtypes import info
from nki.isa.act import ACTIVATIONS
from nki.isa.alu import ALU, COMPARISONS
from tests.nki.lowering_tools import Given, dense, items, layouts, storage_shape, tile

NUMERIC = [
    "float32", "bfloat16", "float16", "int32", "uint32", "int8", "uint8", "int16", "uint16",
    "float8_e4m3", "float8_e5m2", "float8_e4m3fn", "bool_", "tfloat32", "float8_e8m0fnu",
]  # fmt: skip
INTEGERS = ["int32", "uint32", "int16", "uint16", "int8", "uint8"]
FLOATS = ["float32", "bfloat16", "float16", "float8_e5m2"]
# Which zero the maximum of 0 and -0 is depends on NumPy's vectors: then zeros are equal.
ANY_ZERO = 1e-46
PARTITIONS = [1, 3, 16, 32, 48, 128]
FREE = [1, 2, 6, 24, 33]


class Case(NamedTuple):
    """A call, and how much results may differ."""

    operands: dict[str, Any]
    attributes: dict[str, Any]
    ulps: float = 0
    least: float = 0.0


class Maker:
    """Draws operands of one shape."""

    def __init__(self, draw: Any, *, free: int | None = None, addressed: bool = True) -> None:
        self.draw = draw
        self.partitions = draw(st.sampled_from(PARTITIONS))
        self.free = free if free is not None else draw(st.sampled_from(FREE))
        self.seed = draw(st.integers(0, 1 << 20))
        self.addressed = addressed
        self.used = 0

    def pick(self, *choices: Any) -> Any:
        """One of some values."""
        return self.draw(st.sampled_from(choices))

    def flag(self) -> bool:
        """True or False."""
        return bool(self.draw(st.booleans()))

    def _layout(self, free: Any, partitions: int | None, *, broadcast: bool) -> Any:
        layout = self.draw(
            layouts(
                self.partitions if partitions is None else partitions,
                free, broadcast=broadcast, addressed=False,
            )
        )  # fmt: skip
        if self.addressed and self.draw(st.booleans()):
            # Apart from each other, so that nothing is shared by chance.
            layout = replace(layout, address=self.used)
            self.used += 16384
        return layout

    def tile(
        self,
        dtypes: list[str],
        *,
        free: Any = None,
        partitions: int | None = None,
        special: bool = True,
        written: bool = False,
        **more: Any,
    ) -> Given:
        """An operand; a written one is not broadcast."""
        self.seed += 1
        layout = self._layout(
            self.free if free is None else free, partitions, broadcast=not written
        )
        return tile(self.seed, layout, self.pick(*dtypes), special=special, **more)

    def dst(self, dtypes: list[str] = NUMERIC, **more: Any) -> Given:
        """A written operand."""
        return self.tile(dtypes, written=True, **more)

    def vector(self, dtypes: list[str] = ["float32"], **more: Any) -> Given:  # noqa: B006
        """One element for every partition."""
        return self.tile(dtypes, free=1, **more)

    def scalar(self, *, special: bool = True) -> Any:
        """A number, or a vector of float32."""
        number = self.pick(0.0, 1.0, -2.5, 0.125, 3.0)
        return self.pick(number, self.vector(special=special))


Make = Callable[[Maker], Case]
CASES: dict[str, Make] = {}


def case(name: str) -> Callable[[Make], Make]:
    """Register a maker of calls; the instruction is the name up to a colon."""

    def register(make: Make) -> Make:
        CASES[name] = make
        return make

    return register


_EXACT = [
    op.name for op in ALU.values()
    if not op.bitvec and op.name not in ("power", "rsqrt", "reciprocal")
]  # fmt: skip
_BINARY = [name for name in _EXACT if not ALU[name].unary]
_BITVEC = [op.name for op in ALU.values() if op.bitvec]


@case("tensor_tensor")
def _tensor_tensor(m: Maker) -> Case:
    operands = {"dst": m.dst(), "data1": m.tile(NUMERIC), "data2": m.tile(NUMERIC)}
    return Case(operands, {"op": m.pick(*_BINARY)}, least=ANY_ZERO)


@case("tensor_tensor:integers")
def _tensor_tensor_wide(m: Maker) -> Case:
    kinds = ["int32", "uint32"]
    operands = {"dst": m.dst(kinds), "data1": m.tile(kinds), "data2": m.tile(kinds)}
    return Case(operands, {"op": m.pick(*_BINARY)}, least=ANY_ZERO)


@case("tensor_tensor:bitvec")
def _tensor_tensor_bits(m: Maker) -> Case:
    kinds = [*INTEGERS, "bool_"]
    operands = {"dst": m.dst(kinds), "data1": m.tile(kinds), "data2": m.tile(kinds)}
    return Case(operands, {"op": m.pick(*[op for op in _BITVEC if op != "invert"])})


@case("tensor_tensor:power")
def _power(m: Maker) -> Case:
    operands = {
        "dst": m.dst(["float32"]),
        "data1": m.tile(["float32"], special=False),
        "data2": m.tile(["float32", "int8"], special=False),
    }
    return Case(operands, {"op": "power"}, ulps=2)


@case("tensor_tensor:in place")
def _in_place(m: Maker) -> Case:
    dst = m.dst(["float32", "bfloat16", "int16"])
    data = Given(dst.data, dst.dtype, dst.layout, shares="dst")
    other = m.tile(NUMERIC)
    return Case(
        {"dst": dst, "data1": data, "data2": other},
        {"op": m.pick("add", "maximum")},
        least=ANY_ZERO,
    )


@case("tensor_copy:overlapping")
def _overlapping(m: Maker) -> Case:
    """A copy within one storage, to where it is read from or elsewhere."""
    n, shift = m.pick(4, 7), m.pick(0, 1, 3)
    kind, other = m.pick(("float32", "float32"), ("float32", "int32"), ("bfloat16", "float16"))
    whole = dense(m.partitions, n + 3)
    layout = replace(whole, shape=(m.partitions, n), offset=shift)
    moved = replace(layout, offset=m.pick(0, 2))
    data = items(m.seed, storage_shape(whole), kind)
    return Case(
        {"dst": Given(data, kind, layout), "src": Given(data, other, moved, shares="dst")}, {}
    )


def _stage(m: Maker, names: list[str], i: int) -> dict[str, Any]:
    op = m.pick(*names)
    operand = None if ALU[op].unary else m.scalar()
    return {f"op{i}": op, f"operand{i}": operand, f"reverse{i}": m.flag()}


@case("tensor_scalar")
def _tensor_scalar(m: Maker) -> Case:
    given: dict[str, Any] = {"dst": m.dst(), "data": m.tile(NUMERIC), **_stage(m, _EXACT, 0)}
    if m.flag():
        given |= _stage(m, _EXACT, 1)
    return Case(given, {}, least=ANY_ZERO)


@case("tensor_scalar:bitvec")
def _tensor_scalar_bits(m: Maker) -> Case:
    given: dict[str, Any] = {"dst": m.dst(INTEGERS), "data": m.tile(INTEGERS)}
    for i in range(m.pick(1, 2)):
        op = m.pick(*_BITVEC)
        number = m.pick(3, 1, 31, -5, 2**31 + 7, 2.0, -5.0)
        vector = m.pick(m.vector(INTEGERS), m.vector(["float32", "bfloat16"]))
        operand = None if op == "invert" else m.pick(number, vector)
        given |= {f"op{i}": op, f"operand{i}": operand, f"reverse{i}": m.flag()}
    return Case(given, {})


@case("tensor_scalar:rsqrt")
def _tensor_scalar_rsqrt(m: Maker) -> Case:
    given = {"dst": m.dst(["float32"]), "data": m.tile(["float32"]), "op0": "rsqrt"}
    return Case({**given, "operand0": None}, {}, ulps=2)


@case("scalar_tensor_tensor")
def _scalar_tensor_tensor(m: Maker) -> Case:
    operands = {
        "dst": m.dst(), "data": m.tile(NUMERIC), "operand0": m.scalar(),
        "operand1": m.tile(NUMERIC), "op0": m.pick(*_BINARY), "op1": m.pick(*_BINARY),
        "reverse0": m.flag(), "reverse1": m.flag(),
    }  # fmt: skip
    return Case(operands, {}, least=ANY_ZERO)


@case("reciprocal")
def _reciprocal(m: Maker) -> Case:
    return Case({"dst": m.dst(), "data": m.tile(NUMERIC)}, {})


@case("tensor_copy")
def _copy(m: Maker) -> Case:
    return Case({"dst": m.dst(), "src": m.tile(NUMERIC)}, {})


@case("tensor_copy:packed")
def _copy_packed(m: Maker) -> Case:
    kind = m.pick("float8_e5m2_x4", "float4_e2m1fn_x4")
    dst, src = m.dst(["uint32"]), m.tile(["uint32"])
    if info(kind).itemsize == 2:
        dst, src = m.dst(["uint16"]), m.tile(["uint16"])
    return Case(
        {name: Given(g.data, kind, g.layout) for name, g in (("dst", dst), ("src", src))},
        {},
    )


@case("memset")
def _memset(m: Maker) -> Case:
    dst = m.dst()
    value = m.pick(0, 1, 7, 100) if not info(dst.dtype).is_float else m.pick(0, 2.5, -1e9, 3)
    return Case({"dst": dst}, {"value": value})


@case("tensor_copy_predicated")
def _predicated(m: Maker) -> Case:
    kind = m.pick(*NUMERIC)
    operands = {
        "dst": m.dst([kind]), "src": m.pick(m.tile([kind]), 2.5),
        "predicate": m.tile(["uint8", "uint16", "uint32"], special=False),
    }  # fmt: skip
    return Case(operands, {"reverse_pred": m.flag()})


def _sums(m: Maker, size: float = 40.0) -> float:
    """Bound of sums of as many elements as a partition has, each at most so large."""
    return m.free * 2.0**-24 * m.free * size


_REDUCTIONS = [op.name for op in ALU.values() if op.reduces and not op.bitvec]


@case("tensor_reduce")
def _tensor_reduce(m: Maker) -> Case:
    kept, reduced = m.pick(1, 2, 3), m.pick((1,), (5,), (2, 3), (17,))
    op = m.pick(*_REDUCTIONS)
    free = (kept, *reduced)
    m.free = int(np.prod(reduced))
    axis = tuple(range(2, 2 + len(reduced)))
    exact = op not in ("add", "subtract", "multiply")
    dst = m.dst(NUMERIC if exact else FLOATS, free=kept)
    data = m.tile(NUMERIC if exact else FLOATS, free=free, special=exact)
    attributes = {"op": op, "axis": axis, "negate": m.flag()}
    if exact:
        return Case({"dst": dst, "data": data}, attributes, least=ANY_ZERO)
    if op == "multiply":
        return Case({"dst": dst, "data": data}, attributes, ulps=2.0 + m.free)
    return Case({"dst": dst, "data": data}, attributes, ulps=1, least=_sums(m))


@case("tensor_reduce:bitvec")
def _tensor_reduce_bits(m: Maker) -> Case:
    kept, reduced = m.pick(1, 3), m.pick(1, 5, 16)
    operands = {"dst": m.dst(INTEGERS, free=kept), "data": m.tile(INTEGERS, free=(kept, reduced))}
    op = m.pick("bitwise_and", "bitwise_or", "bitwise_xor")
    return Case(operands, {"op": op, "axis": 2})


@case("tensor_partition_reduce")
def _partition_reduce(m: Maker) -> Case:
    op = m.pick("add", "average", "maximum")
    exact = op == "maximum"
    kinds = NUMERIC if exact else FLOATS
    operands = {"dst": m.dst(kinds, partitions=1), "data": m.tile(kinds, special=exact)}
    bound = ANY_ZERO if exact else m.partitions * 2.0**-24 * m.partitions * 40
    return Case(operands, {"op": op}, ulps=0 if exact else 1, least=bound)


@case("tensor_partition_reduce:bitvec")
def _partition_reduce_bits(m: Maker) -> Case:
    operands = {"dst": m.dst(INTEGERS, partitions=1), "data": m.tile(INTEGERS)}
    return Case(operands, {"op": m.pick("bitwise_or", "bitwise_and")})


@case("tensor_scalar_reduce")
def _scalar_reduce(m: Maker) -> Case:
    reduce_op = m.pick("add", "multiply", "maximum", "minimum")
    exact = reduce_op in ("maximum", "minimum")
    kinds = NUMERIC if exact else ["float32", "bfloat16"]
    command = m.pick("reset_reduce", "reduce", "load_reduce")
    operands: dict[str, Any] = {
        "dst": m.dst(kinds), "data": m.tile(kinds, special=exact), "op0": m.pick("add", "subtract"),
        "operand0": m.scalar(special=exact), "reduce_op": reduce_op,
        "reduce_res": m.vector(["float32", *kinds], written=True),
    }  # fmt: skip
    if command == "load_reduce":
        operands["reduce_init"] = m.scalar(special=exact)
    attributes = {"reduce_cmd": command, "reduce_res_negate": m.flag()}
    if exact:
        return Case(operands, attributes, least=ANY_ZERO)
    if reduce_op == "multiply":
        return Case(operands, attributes, ulps=m.free + 2.0)
    return Case(operands, attributes, ulps=1, least=_sums(m))


def _function(m: Maker, operands: dict[str, Any], attributes: dict[str, Any]) -> Case:
    """Functions: a few ulps of float32 of the largest thing that is added in them."""
    return Case(operands, attributes, ulps=32, least=_sums(m, 2.0) + 1e-5)


@case("activation")
def _activation(m: Maker) -> Case:
    names = [name for name in ACTIVATIONS if name != "prelu"]
    operands: dict[str, Any] = {
        "dst": m.dst(["float32"]),
        "op": m.pick(*names),
        "data": m.tile(["float32", "bfloat16"], special=False),
        "scale": m.pick(1.0, 0.5, m.vector(special=False)),
    }
    if m.flag() and operands["op"] != "reciprocal":
        operands["bias"] = m.vector(special=False)
    return _function(m, operands, {})


@case("activation:reduced")
def _activation_sums(m: Maker) -> Case:
    operands: dict[str, Any] = {
        "dst": m.dst(["float32"]),
        "op": m.pick("copy", "sigmoid", "tanh", "square"),
        "data": m.tile(["float32", "bfloat16"], special=False),
        "reduce_op": "add",
        "reduce_res": m.vector(["float32"], written=True),
    }
    command = m.pick("idle", "reset", "reduce", "reset_reduce")
    return Case(operands, {"reduce_cmd": command}, ulps=8, least=_sums(m, 1600.0))


@case("activation_reduce")
def _activation_reduce(m: Maker) -> Case:
    operands = {
        "dst": m.dst(["bfloat16"]), "op": "exp", "data": m.tile(["float32"], special=False),
        "reduce_op": "add", "reduce_res": m.vector(["float32"], written=True),
        "scale": 0.25,
    }  # fmt: skip
    return Case(operands, {}, ulps=16, least=_sums(m))


@case("activate2")
def _activate2(m: Maker) -> Case:
    op0, op1 = m.pick(("multiply", "add"), ("subtract", "bypass"), ("bypass", "bypass"))
    operands = {
        "dst": m.dst(["float32"]), "op": m.pick("copy", "prelu", "relu", "abs"),
        "data": m.tile(["float32", "float16"]), "imm0": m.scalar(), "imm1": m.scalar(),
        "op0": op0, "op1": op1, "relu_param": m.scalar(), "reverse0": op0 == "subtract",
        "reduce_op": m.pick("maximum", "minimum", "abs_max", "abs_min"),
        "reduce_res": m.vector(["float32"], written=True),
    }  # fmt: skip
    if isinstance(operands["imm0"], Given) != isinstance(operands["imm1"], Given):
        operands["imm0"] = operands["imm1"] = 0.5
    command = m.pick("reset_reduce", "reduce", "idle")
    return Case(operands, {"reduce_cmd": command}, least=ANY_ZERO)


@case("exponential")
def _exponential(m: Maker) -> Case:
    operands: dict[str, Any] = {
        "dst": m.dst(["float32", "bfloat16"]), "src": m.tile(["float32"], special=False),
        "max_value": m.pick(2.0, m.vector(special=False)),
        "reduce_res": m.vector(["float32"], written=True),
    }  # fmt: skip
    command = m.pick("idle", "reset_reduce", "load_reduce")
    if command == "load_reduce":
        operands["reduce_init"] = 3.0
    return Case(operands, {"reduce_cmd": command}, ulps=64 + m.free)


def _pattern(m: Maker) -> list[list[int]]:
    counts = m.draw(
        st.sampled_from([(m.free,), (1, m.free)] + ([(2, m.free // 2)] if m.free % 2 == 0 else []))
    )
    return [[m.pick(1, -3, 7, 1 << 20), count] for count in counts]


@case("iota")
def _iota(m: Maker) -> Case:
    operands = {"dst": m.dst(), "offset": m.pick(0, -5, 2**31 - 3)}
    return Case(operands, {"pattern": _pattern(m), "channel_multiplier": m.pick(0, 1, -7, 1 << 28)})


@case("affine_select")
def _affine_select(m: Maker) -> Case:
    operands = {"dst": m.dst(), "on_true_tile": m.tile(NUMERIC), "offset": m.pick(0, 3, -9)}
    attributes = {
        "pattern": _pattern(m), "channel_multiplier": m.pick(0, 1, -1),
        "on_false_value": m.pick(-3.5, 0.0, 1e30), "cmp_op": m.pick(*COMPARISONS),
    }  # fmt: skip
    return Case(operands, attributes)


@case("range_select")
def _range_select(m: Maker) -> Case:
    bounds = {}
    for name in ("bound0", "bound1"):
        given = m.vector(special=False)
        rounded = np.round(np.abs(given.data) * 4).astype(np.float32)
        bounds[name] = Given(rounded, "float32", given.layout)
    operands = {
        "dst": m.dst(), "on_true_tile": m.tile(["float32", "bfloat16", "float16"]), **bounds,
        "comp_op0": m.pick("greater_equal", "greater"), "comp_op1": m.pick("less", "less_equal"),
        "reduce_res": m.vector(["float32"], written=True),
    }  # fmt: skip
    command = m.pick("idle", "reset", "reduce", "reset_reduce")
    attributes = {"reduce_cmd": command, "range_start": m.pick(0, 5)}
    return Case(operands, attributes, least=ANY_ZERO)


@case("select_reduce")
def _select_reduce(m: Maker) -> Case:
    operands = {
        "dst": m.dst(), "predicate": m.tile(["uint8", "int16"], special=False),
        "on_true": m.tile(["float32", "bfloat16", "int8"]), "on_false": m.scalar(),
        "reduce_res": m.vector(["float32", "bfloat16"], written=True),
    }  # fmt: skip
    attributes = {
        "reduce_cmd": m.pick("idle", "reduce", "reset_reduce"),
        "reverse_pred": m.flag(),
    }
    return Case(operands, attributes, least=ANY_ZERO)


@case("bn_stats")
def _bn_stats(m: Maker) -> Case:
    operands = {
        "dst": m.dst(["float32"], free=m.pick((6,), (2, 3))),
        "data": m.tile(["float32", "bfloat16"], special=False),
    }
    return Case(operands, {}, ulps=4, least=_sums(m, 1600.0))


@case("bn_stats:in place")
def _bn_stats_in_place(m: Maker) -> Case:
    """Six results where six items were."""
    data = m.tile(["float32"], free=m.pick((6,), (2, 3)), special=False)
    dst = Given(data.data, data.dtype, data.layout, shares="data")
    return Case({"data": data, "dst": dst}, {}, ulps=4, least=_sums(m, 1600.0))


@case("bn_aggr")
def _bn_aggr(m: Maker) -> Case:
    count = m.pick(1, 2, 4)
    data = m.tile(["float32"], free=m.pick((3 * count,), (count, 3)), special=False)
    data.data[...] = np.abs(data.data) + 1
    return Case({"dst": m.dst(["float32"], free=2), "data": data}, {}, ulps=64, least=1e-4)
