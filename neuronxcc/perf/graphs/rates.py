"""What one node costs: its engine, how long that works, and the arithmetic of products.

`RATES` is the table by class of operator. Bytes of HBM are not here: what is read and written is
known of a section only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType, is_uniform
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.definition import ELEMENTWISE, Kind
from neuronxcc.ir.places import patterns_of
from neuronxcc.ir.table import info
from neuronxcc.perf.graphs.host import HostParameters
from neuronxcc.perf.graphs.machine import LANES, LEAST, Machine
from neuronxcc.perf.parameters import Known
from neuronxcc.targets import Engine

__all__ = ["FREE", "RATES", "NodeCost", "Rate", "class_of", "cost_of", "markdown"]


class Rate(NamedTuple):
    """What an element costs.

    Attributes:
        engine: who works on it.
        cycles: of one lane, for an element of `per`; the name of a parameter of the model stands
            for its value.
        per: "result" or "operands".
        known: how.
        source: where it is printed, or why it was chosen.
    """

    engine: str
    cycles: float | str
    per: str
    known: Known
    source: str


_GUIDE = "NKI performance guide: N cycles for N elements of a partition"
RATES: Final[dict[str, Rate]] = {
    "function": Rate("scalar", 1, "result", "documented", f"{_GUIDE} (activation)"),
    "arithmetic with a number": Rate(
        "vector", 1, "result", "documented", f"{_GUIDE} (tensor_scalar), or scalar (activation)"
    ),
    "arithmetic of tensors": Rate(
        "vector", 2, "result", "documented", "NKI API reference (tensor_tensor): 2N"
    ),
    "division": Rate(
        "vector", "reciprocal_slope", "result", "fitted", "docs/accuracy.md (reciprocal)"
    ),
    "reduction": Rate("vector", 1, "operands", "documented", f"{_GUIDE} (tensor_reduce)"),
    "running reduction": Rate(
        "vector", 2, "operands", "documented", "NKI API reference (tensor_tensor_scan): 2N"
    ),
    "window": Rate("vector", 1, "window", "documented", f"{_GUIDE} (tensor_reduce), overlapping"),
    "copy": Rate("vector", 1, "result", "documented", f"{_GUIDE} (tensor_copy)"),
    "patterns": Rate(
        "vector", 1, "result", "documented", f"{_GUIDE} (tensor_copy), a copy for every run"
    ),
    "transpose": Rate(
        "tensor",
        1,
        "result",
        "documented",
        "NKI architecture guide: a product with the identity, and a copy from PSUM by Vector",
    ),
    "positions": Rate("gpsimd", 1, "result", "documented", f"{_GUIDE} (iota)"),
    "largest": Rate(
        "vector",
        3,
        "operands, for every 8 results",
        "documented",
        "NKI API reference: max8, nc_find_index8 and nc_match_replace8 pass over the elements",
    ),
    "sort": Rate(
        "gpsimd", 1, "operands, times log2", "assumed", "no sort is published as an instruction"
    ),
    "random numbers": Rate("gpsimd", 4, "result", "assumed", "no rate of the generator is printed"),
    "scattered choice": Rate(
        "gpsimd", 1, "window", "assumed", "no instruction is published for it"
    ),
    "other call": Rate(
        "vector", 2, "operands and result", "assumed", "one pass over what is read and written"
    ),
}

FREE: Final = ""  # the class of what costs nothing
NUMBERS: Final = "arithmetic with a number"
# What Scalar does as well, at one element of a lane in a cycle.
_EITHER: Final = frozenset({NUMBERS, "copy", "patterns"})

_BY_OP = {
    Op.DIVIDE: "division",
    Op.IOTA: "positions",
    Op.REDUCE: "reduction",
    Op.ARG_REDUCE: "reduction",
    Op.CUMULATIVE: "running reduction",
    Op.REDUCE_WINDOW: "window",
    Op.SELECT_AND_SCATTER: "scattered choice",
    Op.SORT: "sort",
    Op.TOPK: "largest",
    Op.TRANSPOSE: "transpose",
    Op.CONCATENATE: "copy",
    Op.PAD: "copy",
    Op.DOT_GENERAL: "product",
    Op.CONVOLUTION: "product",
    Op.GATHER: "rows",
    Op.SCATTER: "rows",
    Op.DYNAMIC_SLICE: "rows",
    Op.DYNAMIC_UPDATE_SLICE: "rows",
    # Engines convert what they read and write, and take any access pattern.
    Op.CONVERT: FREE,
    Op.BITCAST_CONVERT: FREE,
    Op.SLICE: FREE,
    Op.REVERSE: FREE,
    Op.BROADCAST_IN_DIM: FREE,
    Op.RESHAPE: FREE,
}
_RANDOM = ("rand", "normal", "uniform", "bernoulli", "dropout", "exponential", "multinomial")
_CHECKS = "neuron::check"
_ATTENTION = "scaled_dot_product"


def class_of(node: Node) -> str:
    """The class of a node: a row of `RATES`, "product", "rows", "attention", or `FREE`."""
    if node.op is Op.GATHER and patterns_of(node) is not None:
        return "patterns"
    found = _BY_OP.get(node.op)
    if found is not None:
        return found
    if node.op is Op.CUSTOM_CALL:
        return _class_of_call(str(node["target"]))
    block = info(node)
    if block.kind in ELEMENTWISE:
        if block.engine is Engine.SCALAR:
            return "function"
        wide = sum(_is_tensor(src) for src in node.srcs)
        return "arithmetic of tensors" if wide > 1 else NUMBERS
    # The rest are leaves and parts; what calls graphs is taken apart by who asks.
    return {Kind.COLLECTIVE: "collective", Kind.CALL: "host"}.get(block.kind, FREE)


def _class_of_call(target: str) -> str:
    if target.startswith(_CHECKS):
        return FREE
    if _ATTENTION in target:
        return "attention"
    name = target.partition("::")[2]
    return "random numbers" if any(word in name for word in _RANDOM) else "other call"


def _is_tensor(node: Node) -> bool:
    """Return whether an operand has a value of its own for every element of a row."""
    while node.op in {Op.CONVERT, Op.RESHAPE}:
        (node,) = node.srcs
    if node.op is Op.CONSTANT:
        return not is_uniform(node["literal"].array)
    if node.op is not Op.BROADCAST_IN_DIM:
        return True
    last = len(node.shape) - 1
    dims, source = node["dims"], node.srcs[0]
    # One value for each row is a number for its partition, also where a row has one element.
    return last in dims and source.shape[dims.index(last)] > 1


@dataclass(slots=True)
class NodeCost:
    """What a node costs.

    Attributes:
        node: whose.
        kind: its class.
        engine: who does most of it, "" if nobody.
        busy: microseconds by engine; "dma" is what is moved beyond whole tensors.
        either: microseconds of work that either of these engines may do.
        flops: multiplications and additions of products.
        filled: of the Tensor Engine's array that a product fills, 1 for all of it.
        row_bytes: of the rows that a gather or scatter moves, 0 for others.
        touched: bytes of its first operand that it reads, -1 for all of them.
        result: of a copy, the number of the graph's result that it makes; -1 for others.
    """

    node: Node
    kind: str
    engine: str = ""
    busy: dict[str, float] = field(default_factory=dict)
    either: dict[str, float] = field(default_factory=dict)
    flops: int = 0
    filled: float = 1.0
    row_bytes: int = 0
    touched: int = -1
    result: int = -1

    @property
    def longest(self) -> float:
        """Microseconds of the engine that works longest."""
        shared = self.either.get(self.engine, 0.0)
        return max(max(self.busy.values(), default=0.0), shared)

    @property
    def works(self) -> bool:
        """Return whether an engine does something for it."""
        return bool(self.busy or self.either)


def cost_of(node: Node, machine: Machine) -> NodeCost:
    """Return what a node costs on a logical core."""
    kind = class_of(node)
    made = NodeCost(node, kind)
    special = _SPECIAL.get(kind)
    if special is not None:
        special(made, machine)
    elif kind in RATES:
        _by_rate(made, machine)
    if made.busy and not made.engine:
        made.engine = max(made.busy, key=lambda name: made.busy[name])
    return made


def _by_rate(made: NodeCost, machine: Machine) -> None:
    rate, node = RATES[made.kind], made.node
    cycles = getattr(machine.known, rate.cycles) if isinstance(rate.cycles, str) else rate.cycles
    result = sum(t.size for t in node.types)
    operands = sum(src.type.size for src in node.srcs)
    dtype = node.srcs[0].dtype if node.srcs else node.types[0].dtype
    if rate.per == "window":
        elements, cycles = result, cycles * math.prod(node["window"])
    elif made.kind == "sort":
        elements = operands
        cycles *= max(1, math.ceil(math.log2(max(2, node.srcs[0].shape[node["dim"]]))))
    elif made.kind == "largest":
        elements, cycles = operands, cycles * -(-node["k"] // 8)
    elif rate.per == "operands":
        elements = operands
    elif rate.per == "operands and result":
        elements = operands + result
    else:
        elements = result
    us = machine.lanes_us(rate.engine, elements, cycles, dtype)
    if made.kind in _EITHER:
        made.either = {"vector": us, "scalar": machine.lanes_us("scalar", elements, 1, dtype)}
        made.engine = "vector"
        if made.kind == "patterns":
            least = {name: _copies_us(node, name, machine) for name in made.either}
            made.either = {name: max(us, least[name]) for name, us in made.either.items()}
        return
    made.busy[rate.engine] = us
    if made.kind == "transpose":
        made.busy["tensor"] *= machine.passes(dtype)
        made.either = _from_psum(elements, machine)
        made.engine = "tensor"


def _copies_us(node: Node, engine: str, machine: Machine) -> float:
    """Microseconds of a gather's access patterns if each copy took the least that one takes."""
    found = patterns_of(node)
    assert found is not None
    blocks = -(-math.prod(node.shape[: found.rows]) // (LANES * machine.lnc))
    return found.copies * blocks * LEAST / machine.spec(engine).clock_ghz / 1e3


# ---- products -----------------------------------------------------------------------------------


def _product(made: NodeCost, machine: Machine) -> None:
    node = made.node
    batch, m, k, n = _dot(node) if node.op is Op.DOT_GENERAL else _convolution(node)
    dtype = node.srcs[0].dtype
    made.flops = 2 * batch * m * k * n
    made.busy["tensor"] = machine.product_us(batch, m, k, n, dtype)
    made.filled = _filled(made.flops, made.busy["tensor"], machine, dtype)
    made.engine = "tensor"
    made.either = _from_psum(node.types[0].size, machine)


def _from_psum(elements: int, machine: Machine) -> dict[str, float]:
    """Who copies what the Tensor Engine made."""
    return {name: machine.lanes_us(name, elements, 1, DType.F32) for name in ("vector", "scalar")}


def _filled(flops: int, us: float, machine: Machine, dtype: DType) -> float:
    clock = machine.spec("tensor").clock_ghz * 1e3 * machine.lnc
    best = 2 * LANES * LANES * clock / machine.passes(dtype) * machine.graph.product_efficiency
    return min(1.0, flops / us / best) if us else 1.0


def _dot(node: Node) -> tuple[int, int, int, int]:
    """How many products of [m, k] and [k, n]: (batch, m, k, n)."""
    lhs, rhs = node.srcs
    batch = math.prod(lhs.shape[d] for d in node["lhs_batch"])
    k = math.prod(lhs.shape[d] for d in node["lhs_contract"])
    return batch, _over(lhs.type, batch * k), k, _over(rhs.type, batch * k)


def _over(whole: TensorType, part: int) -> int:
    return whole.size // part if part else 0


def _convolution(node: Node) -> tuple[int, int, int, int]:
    w = node.srcs[1]
    groups = node["feature_group_count"] * node["batch_group_count"]
    out, per_group, *window = (w.shape[d] for d in node["rhs_spec"])
    k = per_group * math.prod(window)
    each = out // groups
    places = node.types[0].size // max(1, out)
    return groups, places, k, each


# ---- attention ----------------------------------------------------------------------------------


def _attention(made: NodeCost, machine: Machine) -> None:
    """Products of queries and keys, a softmax, products with values; in backward 5 products."""
    node = made.node
    backward = "backward" in str(node["target"])
    query, key, value = node.srcs[1:4] if backward else node.srcs[:3]
    if query.type.rank != 4:
        made.kind = "other call"
        _by_rate(made, machine)
        return
    batch, heads, rows, width = query.shape
    keys, wide = key.shape[2], value.shape[3]
    # What a causal mask hides is left out in tiles of 128, which the Tensor Engine takes whole.
    shown = in_tiles = 1.0
    if _causal(node) and rows == keys:
        tiles = -(-max(rows, 1) // LANES)
        shown, in_tiles = _shown(rows), (tiles + 1) / (2 * tiles)
    often, dtype = batch * heads, query.dtype
    first = machine.product_us(often, rows, width, keys, dtype)
    second = machine.product_us(often, rows, keys, wide, dtype)
    products = 2.5 if backward else 1.0
    made.flops = int(2 * often * rows * keys * (width + wide) * products * shown)
    tensor = (first + second) * products * in_tiles
    made.filled = _filled(made.flops, tensor, machine, dtype)
    scores = int(often * rows * keys * shown)
    # The weights are turned around for the second product.
    tensor += machine.lanes_us("tensor", scores, 1, dtype) * machine.passes(dtype)
    made.busy["tensor"] = tensor
    made.busy["scalar"] = machine.lanes_us("scalar", scores, 1, dtype)
    made.busy["vector"] = machine.lanes_us("vector", scores, 4 if backward else 2, dtype)
    made.engine = "tensor"


def _shown(rows: int) -> float:
    """The share of the scores that a causal mask leaves, in tiles of 128 rows and columns."""
    whole, rest = divmod(rows, LANES)
    shown = LANES * LANES * whole * (whole + 1) // 2 + rest * rows
    return shown / (rows * rows) if rows else 1.0


def _causal(node: Node) -> bool:
    """Return whether a flag says so; that of the efficient form comes after one about results."""
    flags = [value for value in node["args"] if isinstance(value, bool)]
    if "efficient_attention.default" in str(node["target"]):
        flags = flags[1:]
    named = dict(node["kwargs"])
    return any(flags) or named.get("is_causal") is True


# ---- rows ---------------------------------------------------------------------------------------


def _rows(made: NodeCost, machine: Machine) -> None:
    """Gathers and scatters move rows; slices at a place that only the run knows are one each."""
    node = made.node
    if node.op is Op.GATHER:
        sizes = node["slice_sizes"]
        moved = node.types[0]
        run = _run(sizes, node.srcs[0].shape)
        itemsize = moved.dtype.itemsize
    elif node.op is Op.SCATTER:
        moved = node.srcs[-1].type
        itemsize = moved.dtype.itemsize
        run = _run(_updated(node), node.srcs[0].shape)
    elif node.op is Op.DYNAMIC_SLICE:
        moved = node.types[0]
        run, itemsize = _run(moved.shape, node.srcs[0].shape), moved.dtype.itemsize
    else:
        moved = node.srcs[1].type
        run, itemsize = _run(moved.shape, node.srcs[0].shape), moved.dtype.itemsize
    run = max(1, min(run, moved.size or 1))
    made.row_bytes = run * itemsize
    made.touched = moved.nbytes
    made.engine = "dma"
    made.busy["dma"] = machine.rows_us(-(-moved.size // run), made.row_bytes)
    if node.op is Op.SCATTER:
        # Read, combined and written.
        made.busy["dma"] *= 2
        made.busy["vector"] = machine.lanes_us("vector", moved.size, 1, moved.dtype)


def _updated(node: Node) -> tuple[int, ...]:
    """The extents of one update of a scatter, in the order of the operand's dimensions."""
    shape = node.srcs[0].shape
    window = node.get("update_window_dims", ())
    updates = node.srcs[-1].shape
    inserted = {*node.get("inserted_window_dims", ()), *node.get("input_batching_dims", ())}
    sizes = iter([updates[d] for d in window])
    return tuple(1 if d in inserted else next(sizes, 1) for d in range(len(shape)))


def _run(sizes: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """Elements of a window that lie one after the other in the whole."""
    run = 1
    for size, extent in zip(reversed(sizes), reversed(shape), strict=True):
        run *= size
        if size != extent:
            break
    return run


# ---- what a core does not have ------------------------------------------------------------------


def _on_host(made: NodeCost, _machine: Machine) -> None:
    """The operands go to the host and the results come back; what it does between is not known."""
    known, node = HostParameters(), made.node
    moved = sum(src.type.nbytes for src in node.srcs) + sum(t.nbytes for t in node.types)
    made.busy["host"] = known.eager_wait + known.copy_us(moved)


_SPECIAL = {"product": _product, "attention": _attention, "rows": _rows, "host": _on_host}


def markdown() -> str:
    """Return the table as the page docs/estimate.md has it."""
    lines = ["| Class | Engine | Cycles | Per | Known | Source |", "|---|---|---|---|---|---|"]
    for name, row in RATES.items():
        cycles = f"`{row.cycles}`" if isinstance(row.cycles, str) else f"{row.cycles:g}"
        lines.append(
            f"| {name} | {row.engine} | {cycles} | {row.per} | {row.known} | {row.source} |"
        )
    return "\n".join(lines) + "\n"
