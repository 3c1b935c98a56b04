"""Turns a finished cluster into a loop kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from neuronxcc.codegen.loop import Access, Dim, Kernel, Kind, Scalar, Slot, Store
from neuronxcc.ir.arithmetic import neutral
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import COMBINERS
from neuronxcc.ir.table import Group
from neuronxcc.lowering.emission.inside import kept_inside
from neuronxcc.lowering.fusion.cluster import Cluster, Storage
from neuronxcc.lowering.geometry import index as ix
from neuronxcc.lowering.geometry.index import At, Cond, Index, Joining, Quotient, Term, Value
from neuronxcc.lowering.geometry.layout import Layout, span

Place = Callable[[Node], tuple[Storage, Layout]]
Key = tuple[Node, At]


@dataclass(frozen=True)
class Emitted:
    """A kernel and the storage behind each slot, with the element the slot starts at.

    The tile of an epilogue or operand is slot 0 of the kernel and not listed.
    """

    kernel: Kernel
    operands: tuple[tuple[Storage, int], ...]


def emit(cluster: Cluster, place: Place) -> Emitted:
    """Build the kernel of a cluster; `place` tells where a tensor it loads lies."""
    return _Emitter(cluster, place).run()


class _Emitter:
    def __init__(self, cluster: Cluster, place: Place) -> None:
        self.cluster = cluster
        self.place = place
        self.addresses: dict[Key, tuple[Storage, Index]] = {}
        self.slots: dict[Storage, int] = {}
        self.starts: dict[Storage, int] = {}
        self.scalars: dict[Key, Scalar] = {}
        self.dims: dict[int, int] = {}
        # The axes of the kernel: the cluster's, some of them joined.
        self.extents = dict(cluster.extents)
        self.reduced = set(cluster.reduced)
        self.order = list(cluster.order)
        self.joins: list[Joining] = []
        self._memo: dict[Index, Index] = {}
        self._numbers: dict[tuple[Index, DType], Scalar] = {}

    def run(self) -> Emitted:
        cluster = self.cluster
        keys = list(self._reachable())
        writes = [(w.storage.resolve(), w.address) for w in cluster.writes]
        accesses = [*self.addresses.values(), *writes]
        slots: list[Slot] = []
        if cluster.made is not None:
            slots.append(Slot(cluster.made[0].dtype, tile=True))
        elif cluster.kind != "loop":
            slots.append(Slot(DType.F32, tile=True))
        for storage, address in accesses:
            if storage not in self.slots:
                self.slots[storage] = len(slots)
                slots.append(Slot(storage.node.dtype))
                self.starts[storage] = self._lowest(storage, address)
            self.starts[storage] = min(self.starts[storage], self._lowest(storage, address))
        self._join_axes(keys, accesses)
        accesses = [(storage, self._joined(address)) for storage, address in accesses]
        order = self._dim_order(accesses)
        self.dims = {axis: dim for dim, axis in enumerate(order)}
        for key in keys:
            self.scalars[key] = self._scalar(*key)
        stores = tuple(
            Store(
                self._access(storage, address),
                self.scalars[write.node, write.at],
                write.combine,
                self._mask(write.mask),
            )
            for write, (storage, address) in zip(cluster.writes, writes, strict=True)
        )
        if cluster.made is not None:
            stores = (Store(self._whole_tile(), self.scalars[cluster.made]),)
        dims = tuple(
            Dim(self.extents[a], Kind.REDUCE if a in self.reduced else Kind.PARALLEL) for a in order
        )
        limits = [(0, 0)] * (len(slots) - len(self.slots))
        for storage in self.slots:
            first = -self.starts[storage]
            limits.append((first, first + span(storage.shape, storage.strides)))
        kernel = kept_inside(Kernel(_name(cluster), dims, tuple(slots), stores), limits)
        operands = tuple((storage, self.starts[storage]) for storage in self.slots)
        return Emitted(kernel, operands)

    def _lowest(self, storage: Storage, address: Index) -> int:
        """The first element that an address reaches, as far as that is known."""
        below = 0
        for term, coefficient in address.terms:
            limits = ix.bounds(ix.of_term(term), self.extents)
            if limits is not None:
                below += min(coefficient * limits[0], coefficient * limits[1])
            elif coefficient < 0:
                return 0
        # Under a condition an address may lie outside of the storage; a slot begins inside.
        last = span(storage.shape, storage.strides) - 1
        return min(max(address.offset + below, 0), max(last, 0))

    # ---- what is needed ---------------------------------------------------------------------

    def _reachable(self) -> Iterator[Key]:
        """Every value the writes need, operands first. Notes the addresses of loads."""
        seen: set[Key] = set()
        stack: list[tuple[Key, bool]] = []
        if self.cluster.made is not None:
            stack.append((self.cluster.made, False))
        for write in reversed(self.cluster.writes):
            stack.append(((write.node, write.at), False))
            stack.extend((key, False) for key in _values(At(write.coords, write.mask)))
        while stack:
            key, expanded = stack.pop()
            if key in seen:
                continue
            if expanded:
                seen.add(key)
                yield key
                continue
            stack.append((key, True))
            stack.extend((need, False) for need in reversed(self._needs(key)) if need not in seen)

    def _needs(self, key: Key) -> list[Key]:
        node, at = key
        traced = self.cluster.inside.get(node)
        if traced is None:
            storage, layout = self.place(node)
            parts = list(zip(at.coords, layout.strides, strict=True))
            address = ix.shift(ix.weighted(parts), layout.offset)
            self.addresses[key] = (storage.resolve(), address)
            return _values(at)
        needs = list(traced[at])
        if _asks(node):
            needs.extend(_values(At(at.coords)))
        if node.op in _CONDITIONAL:
            for _, where in traced[at]:
                needs.extend(_values(At((), where.mask)))
        return needs

    # ---- the shape of the kernel --------------------------------------------------------------

    def _join_axes(self, keys: list[Key], accesses: list[tuple[Storage, Index]]) -> None:
        """Put axes together that were split for reshapes, where that turned out not to matter.

        Accesses alone would not need it, but a position that is asked for is simpler on one axis.
        """
        if self.cluster.kind != "loop" or len(self.order) < 2:
            return
        asked = {
            index
            for node, at in keys
            for index in (*(cond.of for cond in at.mask), *(at.coords if _asks(node) else ()))
        }
        asked.update(cond.of for write in self.cluster.writes for cond in write.mask)
        if not asked:
            return
        forms = {*asked, *(address for _, address in accesses)}
        place = 0
        while place + 1 < len(self.order):
            outer, inner = self.order[place : place + 2]
            joining = Joining(outer, inner, self.extents[inner], len(self.extents))
            same = (outer in self.reduced) == (inner in self.reduced)
            whole = {outer, inner} & self.cluster.whole
            if not same or whole or not all(map(joining.fits, forms)):
                place += 1
                continue
            self.extents[joining.axis] = self.extents[outer] * self.extents[inner]
            self.order[place : place + 2] = [joining.axis]
            if outer in self.reduced:
                self.reduced ^= {joining.axis, outer, inner}
            self.joins.append(joining)
            forms = set(map(joining.index, forms))
            place = max(place - 1, 0)

    def _joined(self, index: Index) -> Index:
        """An index of the cluster over the axes of the kernel."""
        if not self.joins:
            return index
        found = self._memo.get(index)
        if found is None:
            found = index
            for joining in self.joins:
                found = joining.index(found)
            self._memo[index] = found
        return found

    def _dim_order(self, accesses: list[tuple[Storage, Index]]) -> list[int]:
        """Axes from the outermost to the innermost, in one of the forms that kernels have."""
        if not self.reduced:
            return self.order
        weight = dict.fromkeys(self.order, 0)
        for storage, address in accesses:
            for term, coefficient in address.terms:
                if isinstance(term, int) and abs(coefficient) == 1:
                    varying = [t for t, _ in address.terms if isinstance(t, int)]
                    weight[term] += storage.node.dtype.itemsize * math.prod(
                        self.extents[t] for t in varying
                    )
        best = max(self.order, key=lambda axis: weight[axis])
        reduced = [a for a in self.order if a in self.reduced]
        parallel = [a for a in self.order if a not in self.reduced]
        if best in self.reduced or not weight[best]:
            return [*parallel, *reduced]
        # Columns: what lies between neighbours of a reduced axis stays innermost.
        step = dict.fromkeys(self.order, 0)
        for _, address in accesses:
            strides = {t: abs(a) for t, a in address.terms if isinstance(t, int)}
            if strides.get(best) == 1 and set(strides) & self.reduced:
                step.update(strides)
                break
        limit = min((step[a] for a in reduced if step[a]), default=1)
        inner = [a for a in parallel if a == best or 0 < step[a] < limit]
        return [*(a for a in parallel if a not in inner), *reduced, *inner]

    # ---- expressions ----------------------------------------------------------------------------

    def _access(self, storage: Storage, address: Index) -> Access:
        address = self._joined(address)
        strides = [0] * len(self.dims)
        indices: list[tuple[Scalar, int]] = []
        for term, coefficient in address.terms:
            if isinstance(term, int):
                strides[self.dims[term]] = coefficient
            else:
                indices.append((self._term(term, None), coefficient))
        offset = address.offset - self.starts[storage]
        return Access(self.slots[storage], tuple(strides), offset, tuple(indices))

    def _number(self, index: Index, dtype: DType) -> Scalar:
        """The value of an index, computed in an integer type."""
        index = self._joined(index)
        found = self._numbers.get((index, dtype))
        if found is not None:
            return found
        total: Scalar | None = None
        for term, coefficient in index.terms:
            part = self._term(term, dtype)
            if coefficient != 1:
                part = _op(Op.MULTIPLY, dtype, part, _const(coefficient, dtype))
            total = part if total is None else _op(Op.ADD, dtype, total, part)
        if total is None:
            total = _const(index.offset, dtype)
        elif index.offset:
            total = _op(Op.ADD, dtype, total, _const(index.offset, dtype))
        self._numbers[index, dtype] = total
        return total

    def _term(self, term: Term, dtype: DType | None) -> Scalar:
        """A term in an integer type; None: in whichever it is at hand."""
        if isinstance(term, int):
            wanted = dtype or DType.S64
            return Scalar.make("index", wanted, dim=self.dims[term])
        if isinstance(term, Value):
            value = self.scalars[term.node, term.at]
            if term.low <= term.high:
                value = _clamped(value, term.low, term.high)
            return value if dtype is None else _converted(value, dtype)
        wanted = dtype or self._width(term.of)
        op = Op.DIVIDE if isinstance(term, Quotient) else Op.REMAINDER
        return _op(op, wanted, self._number(term.of, wanted), _const(term.by, wanted))

    def _width(self, index: Index) -> DType:
        """32 bits if they hold the index and every part of it."""
        limits = ix.bounds(index, self.extents)
        if limits is None or max(abs(limits[0]), abs(limits[1]), abs(index.offset)) >= 1 << 30:
            return DType.S64
        return DType.S32

    def _mask(self, conds: tuple[Cond, ...]) -> Scalar | None:
        mask: Scalar | None = None
        for cond in conds:
            limits = ix.bounds(cond.of, self.extents)
            dtype = self._width(cond.of)
            value = self._number(cond.of, dtype)
            if cond.high - cond.low == 1:
                part = _op(Op.COMPARE, DType.PRED, value, _const(cond.low, dtype), direction="EQ")
                mask = part if mask is None else _op(Op.AND, DType.PRED, mask, part)
                continue
            for bound, direction, implied in (
                (cond.low, "GE", limits is not None and limits[0] >= cond.low),
                (cond.high, "LT", limits is not None and limits[1] < cond.high),
            ):
                if implied:
                    continue
                part = _op(Op.COMPARE, DType.PRED, value, _const(bound, dtype), direction=direction)
                mask = part if mask is None else _op(Op.AND, DType.PRED, mask, part)
        return mask

    def _scalar(self, node: Node, at: At) -> Scalar:
        traced = self.cluster.inside.get(node)
        if traced is None:
            access = self._access(*self.addresses[node, at])
            mask = self._mask(at.mask)
            other = () if mask is None else (mask, _const(0, node.dtype))
            return Scalar.make("load", node.dtype, other, access=access)
        srcs = [self.scalars[key] for key in traced[at]]
        if node.op in Group.ELEMENTWISE:
            return _elementwise(node, srcs)
        rule = _RULES.get(node.op)
        # Else movement: the element that was found.
        return srcs[0] if rule is None else rule(self, node, at, srcs)

    def _reduce(self, node: Node, _at: At, srcs: list[Scalar]) -> Scalar:
        what = "arg" if node.op is Op.ARG_REDUCE else "reduce"
        return Scalar.make(what, node.dtype, tuple(srcs), op=COMBINERS[node["kind"]])

    def _reduce_window(self, node: Node, at: At, srcs: list[Scalar]) -> Scalar:
        ((_, where),) = self.cluster.inside[node][at]
        outside = _const(neutral(node["kind"], node.dtype).item(), node.dtype)
        return self._reduce(node, at, [self._chosen(where, at, srcs[0], outside)])

    def _constant(self, node: Node, _at: At, _srcs: list[Scalar]) -> Scalar:
        return Scalar.make("const", node.dtype, value=node["literal"].array.flat[0].item())

    def _pad(self, node: Node, at: At, srcs: list[Scalar]) -> Scalar:
        ((_, where), _) = self.cluster.inside[node][at]
        return self._chosen(where, at, srcs[0], srcs[1])

    def _concatenate(self, node: Node, at: At, srcs: list[Scalar]) -> Scalar:
        traced = self.cluster.inside[node][at]
        value = srcs[-1]
        for src, (_, where) in zip(reversed(srcs[:-1]), reversed(traced[:-1]), strict=True):
            value = self._chosen(where, at, src, value)
        return value

    def _window(self, node: Node, at: At, srcs: list[Scalar]) -> Scalar:
        where = self.cluster.inside[node][at][0][1]
        return self._chosen(where, at, srcs[0], srcs[1])

    def _scatter(self, node: Node, at: At, srcs: list[Scalar]) -> Scalar:
        """The update where the row's index is the position, else the operand."""
        if len(srcs) == 2:  # the window is known
            return self._window(node, at, srcs)
        update, index, x = srcs
        (dim,) = node["scatter_dims_to_operand_dims"]
        # What is out of range becomes a number that no position is.
        place = _converted(_clamped(_converted(index, DType.S64), -1, node.shape[dim]), DType.S32)
        here = _op(
            Op.COMPARE,
            DType.PRED,
            self._number(at.coords[dim], DType.S32),
            place,
            direction="EQ",
        )
        combine = COMBINERS.get(node["kind"])
        value = update if combine is None else _op(combine, node.dtype, x, update)
        return _op(Op.SELECT, node.dtype, here, value, x)

    def _chosen(self, where: At, at: At, value: Scalar, other: Scalar) -> Scalar:
        """The value where its position is inside, else the other."""
        mask = self._mask(tuple(cond for cond in where.mask if cond not in at.mask))
        if mask is not None and value.what == "load" and value.srcs and value.srcs[0] is mask:
            return Scalar.make("load", value.dtype, (mask, other), access=value.access)
        return value if mask is None else _op(Op.SELECT, value.dtype, mask, value, other)

    def _iota(self, node: Node, at: At, _srcs: list[Scalar]) -> Scalar:
        index = at.coords[node["dim"]]
        if node.dtype in (DType.S32, DType.S64):
            return self._number(index, node.dtype)
        return _converted(self._number(index, self._width(index)), node.dtype)

    def _tile(self, node: Node, _at: At, _srcs: list[Scalar]) -> Scalar:
        tile = Scalar.make("load", DType.F32, access=self._whole_tile())
        return _converted(tile, node.dtype)

    def _whole_tile(self) -> Access:
        extents = [self.extents[axis] for axis in (0, 1, 2)]
        return Access(0, (extents[1] * extents[2], extents[2], 1))


_RULES: dict[Op, Callable[[_Emitter, Node, At, list[Scalar]], Scalar]] = {
    Op.REDUCE: _Emitter._reduce,  # noqa: SLF001 - a table of its own methods
    Op.ARG_REDUCE: _Emitter._reduce,  # noqa: SLF001
    Op.REDUCE_WINDOW: _Emitter._reduce_window,  # noqa: SLF001
    Op.IOTA: _Emitter._iota,  # noqa: SLF001
    Op.CONSTANT: _Emitter._constant,  # noqa: SLF001
    Op.DOT_GENERAL: _Emitter._tile,  # noqa: SLF001
    Op.CUSTOM_CALL: _Emitter._tile,  # noqa: SLF001 - a convolution
    Op.PAD: _Emitter._pad,  # noqa: SLF001
    Op.CONCATENATE: _Emitter._concatenate,  # noqa: SLF001
    Op.DYNAMIC_UPDATE_SLICE: _Emitter._window,  # noqa: SLF001
    Op.SCATTER: _Emitter._scatter,  # noqa: SLF001
}
# Operators that look at the conditions of their sources.
_CONDITIONAL = frozenset(
    {Op.PAD, Op.CONCATENATE, Op.REDUCE_WINDOW, Op.DYNAMIC_UPDATE_SLICE, Op.SCATTER}
)


def _elementwise(node: Node, srcs: list[Scalar]) -> Scalar:
    if node.op is Op.REDUCE_PRECISION:
        bits = (node["exponent_bits"], node["mantissa_bits"])
        srcs = [*srcs, *(_const(count, DType.S32) for count in bits)]
    return _op(node.op, node.dtype, *srcs, direction=node.get("direction", ""))


def _asks(node: Node) -> bool:
    """Return whether a node computes with its own position."""
    return node.op in (Op.IOTA, Op.SCATTER)


def _values(at: At) -> list[Key]:
    found: dict[Key, None] = {}
    ix.values_of(at, lambda value: found.setdefault((value.node, value.at)))
    return list(found)


def _const(value: bool | complex, dtype: DType) -> Scalar:
    if dtype.is_float:
        value = float(value.real)
    elif dtype is DType.PRED:
        value = bool(value)
    elif dtype.is_complex:
        value = complex(value)
    return Scalar.make("const", dtype, value=value)


def _op(op: Op, dtype: DType, *srcs: Scalar, direction: str = "") -> Scalar:
    return Scalar.make("op", dtype, srcs, op=op, direction=direction)


def _converted(value: Scalar, dtype: DType) -> Scalar:
    return value if value.dtype is dtype else _op(Op.CONVERT, dtype, value)


def _clamped(value: Scalar, low: int, high: int) -> Scalar:
    """An index read from a tensor, made to lie in [low, high]; in 64 bits if its type is short."""
    limit = 1 << (8 * value.dtype.itemsize - (0 if value.dtype.is_unsigned else 1))
    if high >= limit or (value.dtype.is_unsigned and low < 0):
        value = _converted(value, DType.S64)
    bounds = _const(low, value.dtype), _const(high, value.dtype)
    return _op(Op.CLAMP, value.dtype, bounds[0], value, bounds[1])


def _name(cluster: Cluster) -> str:
    """Says what the kernel does; equal kernels have equal names."""
    names = [
        node.op.value
        for node in cluster.inside
        if node.op in Group.ELEMENTWISE or node.op in (Op.REDUCE, Op.ARG_REDUCE, Op.GATHER)
    ]
    notable = list(dict.fromkeys(reversed(names)))
    shown = "_".join(notable[:4]) or "copy"
    return f"{cluster.kind}_{shown}"
