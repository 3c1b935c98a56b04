"""Elementwise operators and reductions along rows: one pass of loads and stores for a whole group.

A block is up to 128 rows, one per partition, and some columns. Every operator of the group is
computed for a block before the next one, so that what is between them never leaves the chip. Where
reductions need more columns than fit, the columns are gone through once for each reduction, and
once more for the results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import nki.isa as nisa
import nki.language as nl
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from nki.device.emitter import (
    PARTITIONS,
    Emitter,
    Number,
    Operand,
    Value,
    chunks,
    even_chunks,
    require_form,
)
from nki.device.gelu import half_of_gelu
from nki.device.groups import Group, Space, Use, is_number
from nki.device.pointwise import emit
from nki.device.resident import Resident
from nki.device.spaces import MOST_COLUMNS, equal_nodes, space_of, spread_of
from nki.device.transfers import Leaf, leaf_of, load, place_of, store
from nki.device.types import HELD
from nki.device.views import Dims, collapsed, contiguous, split
from nki.dtypes import info
from nki.tensor import NkiTensor

__all__ = ["Rows", "blocks_of", "number_of", "reduced", "run_rows"]

Tensors = Mapping[Node, NkiTensor | Resident]

_ROOM = 96 * 1024  # bytes of a partition that the tiles of a block may take
_KEPT = 32 * 1024  # bytes of a partition for tiles that stay from block to block
#: Operators that the ALU of Vector has, two of which it does in one instruction.
_ALU: Mapping[Op, str] = {
    Op.ADD: "add",
    Op.SUBTRACT: "subtract",
    Op.MULTIPLY: "multiply",
    Op.MAXIMUM: "maximum",
    Op.MINIMUM: "minimum",
}
#: f of x f(x) that is one function.
_GATES: Mapping[Op, str] = {Op.NORMAL_CDF: "gelu", Op.LOGISTIC: "silu"}
#: Operators whose last instruction writes any type.
_WRITES_ANY = frozenset(
    {*_ALU, Op.DIVIDE, Op.NEGATE, Op.ABS, Op.EXP, Op.LOG, Op.SQRT, Op.RSQRT, Op.TANH, Op.ERF}
    | {Op.LOGISTIC, Op.NORMAL_CDF, Op.POWER, Op.SELECT}
)
_NARROW = frozenset({DType.BF16, DType.F16, DType.F8E4M3, DType.F8E4M3FN, DType.F8E5M2})
# What tiles of its own come from: the operands are none of the block's.
_ANCHORS = frozenset({Op.DOT_GENERAL, Op.CONVOLUTION})
_SPREAD = frozenset({"float32", "bfloat16", "float16"})
_LEAST_SPREAD, _BANK = 128, 512  # columns that are spread, and of a bank of PSUM
_LEAST_PART = 256  # columns that are worth a core of their own
_TEMPORARIES = 4  # tiles that one operator takes besides its result, at the most


def number_of(node: Node) -> Number:
    """Return the number that all elements of a constant are."""
    value = node["literal"].array.reshape(-1)[0]
    return int(value) if node.dtype.is_integer or node.dtype is DType.PRED else float(value)


class ResidentLeaf(NamedTuple):
    """A tensor in SBUF as the rows and columns of a kernel see it; see `Leaf`."""

    tensor: Resident
    offset: int
    rows: Dims
    columns: Dims


class Rows:
    """Evaluates a group block by block."""

    def __init__(
        self,
        e: Emitter,
        group: Group,
        space: Space,
        inputs: Tensors,
        outputs: Tensors,
        *,
        linear: bool = False,
        spread: bool = False,
    ) -> None:
        """Begin.

        Args:
            e: the emitter.
            group: what to compute.
            space: its rows and columns.
            inputs: tensors in HBM of what comes from elsewhere.
            outputs: tensors in HBM for the group's outputs.
            linear: all of it is element by element in the order of memory, so that rows and columns
                need not be dimensions.
            spread: there is one row, whose columns lie over all partitions; what has one value is
                on each of them.
        """
        self._linear, self._spread = linear, spread
        self.size = max(node.type.size for node in group.nodes)
        self._ones: NkiTensor | None = None
        self.e = e
        self.group = group
        self.space = space
        for node in (*group.nodes, *inputs):
            require_form(node.dtype)
        self._same = equal_nodes(group)
        self._leaves: dict[tuple[Node, int], Leaf] = {}
        for node in group.nodes:
            for number, use in enumerate(group.uses[node]):
                if use.source in inputs and node.op not in _ANCHORS:
                    self._leaves[node, number] = self._leaf(use, inputs[use.source], node)
        self._stores = []
        for node in group.outputs:
            source, view = group.stored.get(node) or Use(node, contiguous(node.shape))
            for tensor in _places(outputs[node]):
                self._stores.append((source, self._leaf(Use(source, view), tensor, source)))
        self._full = {
            node
            for node in group.nodes
            if (linear and not (spread and node.type.size == 1))
            or (not linear and group.kind_of(node, space) == "full")
        }
        self._kept: dict[tuple[Leaf, int, int], Value] = {}
        self._lines: dict[tuple[Node, int, int], Operand] = {}
        self._room = _KEPT
        self._reductions = [node for node in group.nodes if node.op is Op.REDUCE]
        self._readers = self._counted()
        self._row = self._column = 0
        self._values: dict[Node, Operand] = {}  # of the block
        self._rows: dict[Node, Operand] = {}  # of all columns of its rows
        self._loaded: dict[Leaf, Value] = {}
        self._aims: dict[Node, NkiTensor] = {}  # where values that stay on the chip are written

    def _leaf(self, use: Use, tensor: NkiTensor | Resident, node: Node) -> Leaf:
        rows, columns = self.space
        view = use.view
        if node in self.group.lines:
            return Leaf(tensor, use.source.dtype, view.offset, (), collapsed(view.dims))
        if self._linear and view.size == self.size:
            dims = collapsed(view.dims)
            step = dims[0][1] if dims else 0
            at = collapsed(((rows, columns * step),)), collapsed(((columns, step),))
            return Leaf(tensor, use.source.dtype, view.offset, *at)
        if split(view, rows, columns) is not None:
            return leaf_of(tensor, use.source.dtype, view, rows, columns)
        if view.size == rows:
            return Leaf(tensor, use.source.dtype, view.offset, collapsed(view.dims), ())
        return Leaf(tensor, use.source.dtype, view.offset, (), ())  # one number

    def _counted(self) -> Counter[Node]:
        """Return how often each node of the group is read, stores included."""
        same = self._same
        found: Counter[Node] = Counter(same.get(node, node) for node, _ in self._stores)
        for node in self.group.nodes:
            if node not in same:
                found.update(same.get(u.source, u.source) for u in self.group.uses[node])
        return found

    def residents(self) -> list[ResidentLeaf]:
        """Return what of it is in SBUF already or stays there, row by row."""
        leaves = [*self._leaves.values(), *(leaf for _, leaf in self._stores)]
        return [
            ResidentLeaf(leaf.tensor, leaf.offset, leaf.rows, leaf.columns)
            for leaf in leaves
            if isinstance(leaf.tensor, Resident) and leaf.rows
        ]

    # --- sizes -----------------------------------------------------------------------------------

    def columns_per_block(self) -> int:
        """Return how many columns fit in a block, in view of the tiles that are in use at once."""
        width = self._width()
        fits = max(1, (_ROOM // width) or 1)
        if self._reductions and self.space.columns <= fits:
            return self.space.columns
        return max(min(self.space.columns, MOST_COLUMNS, fits), 1)

    def _width(self) -> int:
        """Return bytes per column that a block takes at the most, twice for what runs ahead."""
        last: dict[object, int] = {}
        made: list[tuple[int, object, int]] = []
        for at, node in enumerate(self.group.nodes):
            for number, use in enumerate(self.group.uses[node] if node.op not in _ANCHORS else ()):
                leaf = self._leaves.get((node, number))
                if leaf is None:
                    last[use.source] = at
                elif not leaf.same_columns:
                    if leaf not in last:
                        made.append((at, leaf, _itemsize(leaf.dtype)))
                    last[leaf] = at
            if node in self._full or node in self.group.lines:
                made.append((at, node, _itemsize(node.dtype)))
                last.setdefault(node, at)
        for node, _ in self._stores:
            last[node] = len(self.group.nodes)
        if self._reductions:
            # All of it is kept for the results.
            most = sum(size for _, _, size in made)
        else:
            ends = [(begin, last[what], size) for begin, what, size in made]
            most = max(
                (sum(s for a, b, s in ends if a <= at <= b) for at in range(len(self.group.nodes))),
                default=4,
            )
        return 2 * most + 4 * _TEMPORARIES

    # --- blocks ----------------------------------------------------------------------------------

    def begin_rows(self, row: int, partitions: int) -> None:
        """Begin with other rows."""
        self._row = row
        self.e.partitions = partitions
        self._rows = {}

    def begin_columns(self, column: int, columns: int, given: Mapping[Node, Operand]) -> None:
        """Begin with other columns of the rows.

        Args:
            column: first column.
            columns: how many.
            given: values that are known.
        """
        self._column = column
        self.e.columns = columns
        self._values = dict(given)
        self._loaded = {}
        self._aims = {}
        self.e.goals = {}
        for node, leaf in self._stores:
            if node in self._full and isinstance(leaf.tensor, Resident) and node not in self._aims:
                goal = place_of(self.e, leaf, self._row, column)
                assert goal is not None
                self._aims[node] = self.e.goals[node] = goal

    def give(self, node: Node, value: Operand) -> None:
        """Let a value of the block be known."""
        self._values[node] = value

    def value(self, node: Node) -> Operand:
        """Return the value of a node for the block."""
        node = self._same.get(node, node)
        for known in (self._values, self._rows):
            if node in known:
                return known[node]
        if node in self.group.lines:
            return self._line(node)
        together = self._together(node)
        if together is not None:
            (self._values if node in self._full else self._rows)[node] = together
            return together
        operands = [self._operand(node, n) for n in range(len(self.group.uses[node]))]
        self.e.at(node)
        if node.op is Op.REDUCE:
            made: Operand = reduced(self.e, node, operands[0], "float32" if self._spread else "")
            if self._spread:
                made = self._across(node, made)
        else:
            made = emit(self.e, node, operands)
        (self._values if node in self._full else self._rows)[node] = made
        return made

    def _together(self, node: Node) -> Operand | None:
        """Return a value for which one instruction does what two operators mean, None if none does.

        exp(x - v) is one activation, which also sums up its row; x * c + y is one instruction of
        Vector, and the sum of squares of a row one of Scalar. What an instruction computes is
        rounded when it is written: so it may be of any type, but what is between the two is not.
        """
        if node.op is Op.CONVERT:
            return self._converted(node)
        if node.op is Op.REDUCE:
            return self._sum_of_squares(node)
        if node not in self._full:
            return None
        if node.op is Op.EXP and node.dtype is DType.F32:
            return self._shifted_exp(node)
        if node.op is Op.MULTIPLY:
            gated = self._gated(node, node)
            if gated is not None:
                return gated
        return self._two(node) if node.op in _ALU else None

    def _gated(self, node: Node, written: Node) -> Operand | None:
        """Return x f(x) where that is a function of the Scalar Engine: GELU, its tanh form, SiLU.

        Args:
            node: the product.
            written: what is written: its value, perhaps in another type.
        """
        half = half_of_gelu(self.group.uses[node], self._parts)
        if half is not None:
            value = self._operand(*half)
            if isinstance(value, Value) and not value.vector:
                self.e.at(written)
                return self.e.activation("gelu_apprx_tanh", value, written.dtype)
        uses = [(self._same.get(u.source, u.source), u.view) for u in self.group.uses[node]]
        for x, gate in (uses, uses[::-1]):
            inner = gate[0]
            if inner.op not in _GATES or inner.dtype is not DType.F32 or not self._lone(inner):
                continue
            use = self.group.uses[inner][0]
            if inner not in self._full or (self._same.get(use.source, use.source), use.view) != x:
                continue
            value = self._operand(inner, 0)
            if isinstance(value, Value) and not value.vector:
                self.e.at(written)
                return self.e.activation(_GATES[inner.op], value, written.dtype)
        return None

    def _parts(self, node: Node, op: Op) -> tuple[Use, ...] | None:
        """Return the operands of a float32 value that is computed here for one reader alone.

        None if it is another operator's, or needed by others.
        """
        node = self._same.get(node, node)
        if not self._only_for(node, op) or node.dtype is not DType.F32:
            return None
        same = self._same
        return tuple(Use(same.get(u.source, u.source), u.view) for u in self.group.uses[node])

    def _converted(self, node: Node) -> Operand | None:
        """Let who computes a value write it in the type that it is converted to."""
        inner = self._source(node)
        if node.dtype not in _NARROW or inner.dtype is not DType.F32 or not self._lone(inner):
            return None
        if inner.op not in _WRITES_ANY or inner in self.group.lines:
            return None
        made = None
        if inner in self._full:
            made = self._gated(inner, node) if inner.op is Op.MULTIPLY else None
            made = self._two(inner, node) if made is None and inner.op in _ALU else made
        if made is None:
            operands = [self._operand(inner, n) for n in range(len(self.group.uses[inner]))]
            self.e.at(node)
            as_ = Node.make(inner.op, TensorType(node.dtype, inner.shape), inner.srcs, inner.attrs)
            made = emit(self.e, as_, operands)
        return made

    def _source(self, node: Node) -> Node:
        """Return the node whose value is the first operand."""
        source = self.group.uses[node][0].source
        return self._same.get(source, source)

    def _lone(self, node: Node) -> bool:
        """Return whether a value is computed here for one reader, which is not yet."""
        known = node in self._values or node in self._rows
        return self._readers[node] == 1 and not known and node in self.group.uses

    def _only_for(self, node: Node, op: Op) -> bool:
        """Return whether an operand is full, of an operator, and for one reader alone."""
        return node.op is op and node in self._full and self._lone(node)

    def _sum_of_squares(self, node: Node) -> Operand | None:
        """Return the sum of squares of rows: the Scalar Engine adds up what it computes."""
        e, inner = self.e, self._source(node)
        if node["kind"] != "add" or node.dtype is not DType.F32 or self._spread:
            return None
        if e.columns != self.space.columns or not self._only_for(inner, Op.MULTIPLY):
            return None
        factors = self.group.uses[inner]
        if factors[0] != factors[1] or inner.dtype is not DType.F32:
            return None
        x = self._operand(inner, 0)
        if not isinstance(x, Value) or x.vector:
            return None
        e.at(node)
        squares, total = e.new(DType.F32, vector=False), e.new("float32", vector=True)
        e.spend(squares, scalar=True)
        nisa.activation(
            squares, op="square", data=x.tile, reduce_op="add", reduce_res=total,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip
        return Value(total, DType.F32, vector=True)

    def _shifted_exp(self, node: Node) -> Operand | None:
        inner = self._source(node)
        if not self._only_for(inner, Op.SUBTRACT):
            return None
        x, shift = self._operand(inner, 0), self._operand(inner, 1)
        if not isinstance(x, Value) or x.vector or not isinstance(shift, Value) or not shift.vector:
            return None
        e = self.e
        e.at(node)
        negative = e.binary("multiply", shift, -1.0, DType.F32).tile
        sums = [r for r in self._reductions if r["kind"] == "add" and r.dtype is DType.F32
                and self._source(r) is node]  # fmt: skip
        if e.columns != self.space.columns or not sums:
            return e.activation("exp", x, DType.F32, bias=negative)
        made, total = e.new(DType.F32, vector=False), e.new("float32", vector=True)
        e.spend(made, scalar=True)
        nisa.activation(
            made, op="exp", data=x.tile, bias=negative, reduce_op="add", reduce_res=total,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip
        for reduction in sums:
            sum_ = Value(total, DType.F32, vector=True)
            self._rows[reduction] = self._across(reduction, sum_) if self._spread else sum_
        return Value(made, DType.F32)

    def _two(self, node: Node, written: Node | None = None) -> Operand | None:
        """Return (x op v) op' y for a tile x and a number or vector v: one instruction.

        Args:
            node: the second operator.
            written: what is written, if it is the node's value in another type.
        """
        uses = self.group.uses[node]
        for number in (0, 1):
            inner = self._same.get(uses[number].source, uses[number].source)
            if inner.op not in _ALU or inner.dtype is not DType.F32:
                continue
            if not self._only_for(inner, inner.op) or uses[0].source is uses[1].source:
                continue
            wide = [self._is_wide(inner, 0), self._is_wide(inner, 1)]
            if wide[0] == wide[1]:
                continue
            pair = [self._operand(inner, 0), self._operand(inner, 1)]
            x, v = pair if wide[0] else (pair[1], pair[0])
            assert isinstance(x, Value)
            other = self._operand(node, 1 - number)
            return self._both(node, written or node, (inner, x, v, wide[1]), (other, number))
        return None

    def _is_wide(self, node: Node, number: int) -> bool:
        """Return whether an operand has a value for each column."""
        source = self.group.uses[node][number].source
        if is_number(source):
            return False
        leaf = self._leaves.get((node, number))
        if leaf is not None:
            return not leaf.same_columns
        return source in self._full or source in self.group.lines

    def _both(
        self,
        node: Node,
        written: Node,
        first: tuple[Node, Value, Operand, bool],
        second: tuple[Operand, int],
    ) -> Value | None:
        """Issue one instruction for two operators.

        Args:
            node: the second operator.
            written: whose value is written.
            first: the first operator, its tile, its other operand, and whether that comes first.
            second: the other operand of the second one, and which operand the first one is.
        """
        e = self.e
        inner, x, v, reverse = first
        other, number = second
        e.at(written)
        tile = isinstance(other, Value) and not other.vector
        if tile and isinstance(other, Value) and {x.tile.buffer, other.tile.buffer} == {nl.psum}:
            other = Value(e.on_sbuf(other.tile), other.dtype)
        operand = e.vector32(v) if isinstance(v, Value) else float(v)
        made = e.new(written.dtype, vector=False)
        steps: dict[str, Any] = {
            "op0": _ALU[inner.op], "operand0": operand, "reverse0": reverse, "op1": _ALU[node.op],
            "reverse1": number == 1,
        }  # fmt: skip
        e.spend(made, scalar=False, each=2.0 if tile else 1.0)
        if tile and isinstance(other, Value):
            nisa.scalar_tensor_tensor(made, data=x.tile, operand1=other.tile, **steps)
        else:
            more = e.vector32(other) if isinstance(other, Value) else float(other)
            nisa.tensor_scalar(made, x.tile, operand1=more, **steps)
        return Value(made, written.dtype)

    def _line(self, node: Node) -> Operand:
        """Return a value for each column: it is computed once for all rows."""
        e = self.e
        key = (node, self._column, e.columns)
        found = self._lines.get(key)
        if found is None:
            partitions = e.partitions
            e.partitions = min(PARTITIONS, self.space.rows)
            operands = [self._operand(node, n) for n in range(len(self.group.uses[node]))]
            e.at(node)
            found = emit(e, node, operands)
            e.partitions = partitions
            size = e.columns * _itemsize(node.dtype)
            if size <= self._room:
                self._room -= size
                self._lines[key] = found
        if isinstance(found, Value) and found.tile.shape[0] != e.partitions:
            found = found._replace(tile=found.tile[0 : e.partitions])
        return found

    def _across(self, node: Node, x: Operand) -> Operand:
        """Return the reduction of a vector over all partitions, on each of them."""
        e = self.e
        assert isinstance(x, Value)
        if self._ones is None:
            self._ones = nl.ndarray((PARTITIONS, PARTITIONS), dtype="float32", buffer=nl.sbuf)
            nisa.memset(self._ones, 1.0)
        total = nl.ndarray((PARTITIONS, 1), dtype="float32", buffer=nl.psum)
        if node["kind"] == "add":
            nisa.nc_matmul(total, self._ones, x.tile)
        else:
            line = nl.ndarray((1, PARTITIONS), dtype="float32", buffer=nl.psum)
            nisa.nc_transpose(line, x.tile)
            one = nl.ndarray((1, 1), dtype="float32", buffer=nl.sbuf)
            nisa.tensor_reduce(one, op=REDUCTIONS[node["kind"]], data=line, axis=(1,))
            # A product with ones copies it to all partitions.
            nisa.nc_matmul(total, self._ones[0:1], one)
        made = e.new(node.dtype, vector=True)
        nisa.tensor_copy(made, total)
        return Value(made, node.dtype, vector=True)

    def _operand(self, node: Node, number: int) -> Operand:
        use = self.group.uses[node][number]
        if is_number(use.source):
            return number_of(use.source)
        leaf = self._leaves.get((node, number))
        if leaf is None:
            return self.value(use.source)
        found = self._loaded.get(leaf)
        if found is None:
            self.e.at(node)
            found = self._loaded[leaf] = self._load(leaf)
        return found

    def _load(self, leaf: Leaf) -> Value:
        """Return a block of a tensor; what is the same for all rows stays on the chip."""
        e = self.e
        if not leaf.same_rows:
            return load(e, leaf, self._row, self._column)
        column = 0 if leaf.same_columns else self._column
        key = (leaf, column, e.columns)
        found = self._kept.get(key)
        if found is None:
            partitions = e.partitions
            e.partitions = min(PARTITIONS, self.space.rows)
            found = _line_of(e, leaf, column) or load(e, leaf, 0, column)
            e.partitions = partitions
            size = (1 if leaf.same_columns else e.columns) * _itemsize(leaf.dtype)
            if size <= self._room:
                self._room -= size
                self._kept[key] = found
        if found.tile.shape[0] != e.partitions:
            found = found._replace(tile=found.tile[0 : e.partitions])
        return found

    def store(self, *, full: bool | None = None) -> None:
        """Write the outputs of the block, all or those of full or of one column."""
        for node, leaf in self._stores:
            is_line = node in self.group.lines
            is_full = node in self._full or is_line
            if full is not None and is_full is not full:
                continue
            if is_line and (self._row or self.e.core):
                continue  # it was stored with the first rows
            value = self.value(node)
            self.e.at(node)
            columns = self.e.columns
            if not is_full:
                self.e.columns = 1
            partitions = self.e.partitions
            if is_line or (self._spread and not is_full):
                self.e.partitions = 1
                if isinstance(value, Value):
                    value = value._replace(tile=value.tile[0:1])
            # Whoever computed a value that stays may have written it where it stays.
            there = isinstance(value, Value) and value.tile is self._aims.get(node)
            if not (there and isinstance(leaf.tensor, Resident)):
                store(self.e, leaf, value, self._row, self._column if is_full else 0)
            self.e.columns, self.e.partitions = columns, partitions

    def rows(self, row: int, partitions: int, given: Mapping[Node, Operand] | None = None) -> None:
        """Compute and store everything of some rows.

        Args:
            row: the first one.
            partitions: how many.
            given: values of all columns that are known.
        """
        self.begin_rows(row, partitions)
        total = self.space.columns
        parts = even_chunks(total, self.columns_per_block()) if given is None else [(0, total)]
        if len(parts) > 1:
            for node in self._reductions:
                self._rows[node] = self._in_parts(node, parts)
        for column, columns in parts:
            self.begin_columns(column, columns, given or {})
            self.store(full=None if column == 0 else True)

    @property
    def may_be_parted(self) -> bool:
        """Return whether some columns can be computed without the others."""
        return not self._reductions and not self.group.lines

    def part(self, row: int, partitions: int, column: int, columns: int) -> None:
        """Compute and store some columns of some rows; see `may_be_parted`."""
        self.begin_rows(row, partitions)
        for at, some in even_chunks(columns, self.columns_per_block()):
            self.begin_columns(column + at, some, {})
            self.store(full=None if column + at == 0 else True)

    def _in_parts(self, node: Node, parts: list[tuple[int, int]]) -> Operand:
        """Return a reduction whose columns do not fit at once."""
        op = REDUCTIONS[node["kind"]]
        total: Operand | None = None
        for column, columns in parts:
            self.begin_columns(column, columns, {})
            part = reduced(self.e, node, self._operand(node, 0), held="float32")
            total = part if total is None else self.e.binary(op, total, part, DType.F32)
        assert isinstance(total, Value)
        return self.e.copied(total, node.dtype) if node.dtype is not DType.F32 else total


def _line_of(e: Emitter, leaf: Leaf, column: int) -> Value | None:
    """Return what is the same for all rows: loaded once, and spread by a product with ones.

    A transfer to all partitions would read it as often as there are partitions. None where it is
    short or of a type that the Tensor Engine does not multiply.
    """
    kind, partitions, columns = HELD[leaf.dtype], e.partitions, e.columns
    if kind not in _SPREAD or leaf.same_columns or partitions < PARTITIONS:
        return None
    if columns < _LEAST_SPREAD or isinstance(leaf.tensor, Resident):
        return None
    e.partitions = 1
    line = load(e, leaf, 0, column).tile
    ones = nl.ndarray((1, partitions), dtype=kind, buffer=nl.sbuf)
    nisa.memset(ones, 1.0)
    e.partitions = partitions
    made = e.tile(columns, kind)
    for at, size in chunks(columns, _BANK):
        total = nl.ndarray((partitions, size), dtype="float32", buffer=nl.psum)
        nisa.nc_matmul(total, ones, line[:, at : at + size])
        e.copy(made[:, at : at + size], total)
    return Value(made, leaf.dtype)


def _places(tensor: NkiTensor | Resident) -> list[NkiTensor | Resident]:
    """Return where a result is to be: what stays may be in HBM, too."""
    if isinstance(tensor, Resident) and tensor.hbm is not None:
        return [tensor, tensor.hbm]
    return [tensor]


def _itemsize(dtype: DType) -> int:
    return max(info(HELD[dtype]).itemsize, 1)


REDUCTIONS: Mapping[str, str] = {
    "add": "add",
    "mul": "multiply",
    "max": "maximum",
    "min": "minimum",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
}


def reduced(e: Emitter, node: Node, x: Operand, held: str = "") -> Value:
    """Return the reduction of the columns of a block as a vector."""
    op = REDUCTIONS[node["kind"]]
    kind = held or HELD[node.dtype]
    if op.startswith("bitwise"):
        kind = HELD[node.dtype]
    made = e.new(kind, vector=True)
    if not isinstance(x, Value) or x.vector:
        tile = e.full(x, node.dtype)
        dense = e.tile(e.columns, tile.dtype)
        nisa.tensor_copy(dense, tile)
        tile = dense
    else:
        tile = x.tile
    e.spend(tile, scalar=False)
    nisa.tensor_reduce(made, op=op, data=tile, axis=(1,))
    return Value(made, node.dtype, vector=True)


# --- groups without products ---------------------------------------------------------------------


def run_rows(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Compute a group without products."""
    used = [inputs[node] for node in group.inputs()] + [outputs[node] for node in group.outputs]
    widths = {t.columns for t in used if isinstance(t, Resident)}
    natural = [space for space in group.spaces if space.columns in widths]
    if natural:
        rows = Rows(e, group, natural[0], inputs, outputs)
        for row, partitions in e.share(blocks_of(natural[0].rows)):
            rows.rows(row, partitions)
        return
    spread = spread_of(group)
    if spread is not None:
        # One block, which is one core's.
        if not e.core:
            Rows(e, group, spread, inputs, outputs, linear=True, spread=True).rows(0, PARTITIONS)
        return
    space, linear = space_of(group, e.cores)
    rows = Rows(e, group, space, inputs, outputs, linear=linear)
    whole, rest = divmod(rows.size, space.columns) if linear else (space.rows, 0)
    blocks = blocks_of(whole)
    if len(blocks) + bool(rest) < e.cores and rows.may_be_parted:
        # Too few rows for all cores: they share the columns.
        each = max(_LEAST_PART, -(-space.columns // e.cores))
        for column, columns in e.share(chunks(space.columns, each)):
            for row, partitions in blocks:
                rows.part(row, partitions, column, columns)
        return
    for row, partitions in e.share([*blocks, *([(whole, 1)] if rest else [])]):
        if row < whole:
            rows.rows(row, partitions)
        else:
            rows.part(row, partitions, 0, rest)


def blocks_of(rows: int) -> list[tuple[int, int]]:
    """Return (first row, rows) of blocks."""
    return chunks(rows, PARTITIONS)
