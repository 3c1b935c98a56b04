"""The values of a kernel's expressions at the current points: one vector of them, or one point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from neuronxcc.codegen.errors import CodegenUnsupported
from neuronxcc.codegen.llvm import ops
from neuronxcc.codegen.llvm.complexes import Pair, Value
from neuronxcc.codegen.llvm.emitter import Emitter, Val
from neuronxcc.codegen.llvm.formats import (
    from_memory,
    memory_elem,
    register_elem,
    rounded_to_memory,
    to_memory,
)
from neuronxcc.codegen.llvm.fused import formulas, rounded_by_store
from neuronxcc.codegen.llvm.memory import NOWHERE, Place, read, read_pair, write, write_pair
from neuronxcc.codegen.llvm.moved import moved
from neuronxcc.codegen.llvm.num import Num
from neuronxcc.codegen.loop import Access, Scalar, Store, operands
from neuronxcc.codegen.space import Space
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op


class Bits(NamedTuple):
    """An expression's value as memory holds it."""

    scalar: Scalar


class Points:
    """Where we are in the space, and what is known there.

    Attributes:
        position: For each dimension of the space the index (i64).
        along: For dimensions along which the lanes differ what each lane adds to the position.
        lanes: How many; 0 for a single point.
        mask: Which lanes take part; None for all.
        streams: Stores to be done past the caches. The position along the dimension of the lanes
            is always a multiple of their number.
    """

    def __init__(
        self,
        em: Emitter,
        space: Space,
        pointers: Sequence[Val],
        streams: frozenset[Access] = frozenset(),
    ) -> None:
        self.em = em
        self.space = space
        self.pointers = list(pointers)
        self.streams = streams
        self.formulas = formulas(space)
        self.rounded_by_store = rounded_by_store(space)
        self.moved = moved(space)
        self.position: list[Val] = [em.const("i64", 0)] * space.rank
        self.along: dict[int, tuple[int, ...]] = {}
        self.lanes = 0
        self.mask: Val | None = None
        # The accumulator tile of an epilogue: pointer to the current row.
        self.tile_row: Val | None = None
        self.tile_column: Val | None = None
        # Accesses that go to a buffer of ours instead (tiles.py).
        self.buffered: dict[Access, Place] = {}
        # Values kept from an earlier pass over a row: how to load them.
        self.kept: dict[Scalar, Callable[[], Value]] = {}

    def lie_along(self, dim: int, lanes: int, mask: Val | None = None) -> None:
        """The lanes are neighbours along one dimension."""
        self.along = {dim: tuple(range(lanes))}
        self.lanes = lanes
        self.mask = mask

    def single(self) -> None:
        """No lanes: one point."""
        self.along = {}
        self.lanes = 0
        self.mask = None

    # -- expressions --------------------------------------------------------------------------

    def value(self, root: Scalar | Bits) -> Value:
        """The expression's value, computed where it varies and no deeper."""
        stack = [(root, False)]
        while stack:
            wanted, ready = stack.pop()
            if self.em.recall(wanted) is not None:
                continue
            if not isinstance(wanted, Bits) and wanted in self.kept:
                self._remember(wanted, self.kept[wanted]())
            elif not ready:
                stack.append((wanted, True))
                stack.extend((need, False) for need in reversed(self._needs(wanted)))
            elif isinstance(wanted, Bits):
                self._remember(wanted, self._bits(wanted.scalar))
            else:
                self._remember(wanted, self._compute(wanted))
        return self._known(root)

    def _needs(self, wanted: Scalar | Bits) -> Sequence[Scalar | Bits]:
        """The operands that it is computed from."""
        if not isinstance(wanted, Bits):
            formula = self.formulas.get(wanted)
            if formula is not None:
                return formula[1]
            return (_cast_from(wanted),) if wanted.op is Op.BITCAST_CONVERT else operands(wanted)
        scalar = wanted.scalar
        if scalar not in self.moved:
            return (scalar,)
        if scalar.op is Op.BITCAST_CONVERT:
            return (_cast_from(scalar),)
        if not scalar.srcs:
            return operands(scalar)
        # A choice, or a load under a condition.
        condition, *others = scalar.srcs
        return (condition, *map(Bits, others), *operands(scalar)[len(scalar.srcs) :])

    def real(self, root: Scalar) -> Val:
        """The value of an expression that is not complex."""
        self.value(root)
        return self._real(root)

    def _known(self, scalar: Scalar | Bits) -> Value:
        value: Value = self.em.recall(scalar)
        return value

    def _real(self, scalar: Scalar | Bits) -> Val:
        value = self._known(scalar)
        assert isinstance(value, Val)
        return value

    def _remember(self, scalar: Scalar | Bits, value: Value) -> None:
        level = max(value.re.level, value.im.level) if isinstance(value, Pair) else value.level
        self.em.local(self.em.placed(level))[scalar] = value

    def define(self, scalar: Scalar, value: Value) -> None:
        """Sets the value of a reduction, for as long as the innermost scope is open."""
        self.em.local(self.em.level)[scalar] = value

    def _compute(self, scalar: Scalar) -> Value:  # noqa: PLR0911 - one for each kind
        formula = self.formulas.get(scalar)
        if scalar.what == "const":
            assert scalar.value is not None
            return constant(self.em, scalar.dtype, scalar.value)
        if scalar.what == "index":
            return self._index(scalar)
        if scalar.what == "load":
            return self._load(scalar)
        if scalar.what == "check":
            return self._check(scalar)
        if formula is not None:
            return formula[0](*(Num(self.em, self._real(s)) for s in formula[1])).val
        if scalar in self.rounded_by_store:
            return self._known(scalar.srcs[0])
        return self._operator(scalar)

    def _operator(self, scalar: Scalar) -> Value:
        assert scalar.what == "op", f"{scalar} is not known here"
        assert scalar.op is not None
        if scalar.op is Op.BITCAST_CONVERT:
            return from_memory(self.em, scalar.dtype, self._cast(scalar))
        srcs = [self._known(s) for s in scalar.srcs]
        source = scalar.srcs[1 if scalar.op is Op.SELECT else 0].dtype
        what = ops.Typed(scalar.op, scalar.dtype, source, scalar.direction)
        return ops.apply(self.em, what, srcs)

    def _bits(self, scalar: Scalar) -> Val:
        """The element as it is stored."""
        em = self.em
        if scalar not in self.moved:
            return to_memory(em, scalar.dtype, self._real(scalar))
        if scalar.op is Op.BITCAST_CONVERT:
            return self._cast(scalar)
        if scalar.op is Op.SELECT:
            condition, yes, no = scalar.srcs
            return em.select(self._real(condition), self._real(Bits(yes)), self._real(Bits(no)))
        assert scalar.access is not None
        place = self.place(scalar.access, scalar.dtype)
        if not scalar.srcs:
            return read(em, place, self.mask, None)
        condition, other = scalar.srcs
        known = self._real(condition)
        return em.select(known, read(em, place, self.mask, known), self._real(Bits(other)))

    def _check(self, scalar: Scalar) -> Val:
        """The number, and a byte written somewhere or nowhere: no branch."""
        em = self.em
        value, low, high = (self._real(src) for src in scalar.srcs)
        assert scalar.access is not None
        # What is below wraps around to what is far above.
        width = em.binary("sub", high, low)
        outside = em.compare("ugt", em.binary("sub", value, low), width)
        if outside.lanes:
            if self.mask is not None:
                outside = em.binary("and", outside, self.mask)
            outside = em.reduce_or(outside)
        place = em.gep(
            memory_elem(scalar.dtype),
            self.pointers[scalar.access.slot],
            em.const("i64", scalar.access.offset),
        )
        place = em.select(outside, place, NOWHERE)
        em.effect(f"store i8 1, {place.typed}, align 1", place)
        return value

    def _cast(self, scalar: Scalar) -> Val:
        """The bits of a BITCAST_CONVERT."""
        return self.em.bits(self._real(_cast_from(scalar)), memory_elem(scalar.dtype))

    def _index(self, scalar: Scalar) -> Val:
        em, elem = self.em, register_elem(scalar.dtype)
        dim = self.space.dim_of(scalar.dim)
        if dim is None:
            return em.const(elem, 0)
        return self.lane_positions(dim, elem)

    def lane_positions(self, dim: int, elem: str) -> Val:
        """The position along a dimension as an integer; a vector if it differs between lanes."""
        base = self.em.integer(self.position[dim], elem)
        if dim not in self.along:
            return base
        return self.em.binary("add", base, self.em.lane_constants(elem, self.along[dim]))

    def prefetch(self, access: Access, dtype: DType, ahead: int) -> None:
        """Asks for the lines of the current lanes `ahead` elements on; they need not exist."""
        em, place = self.em, self.place(access, dtype)
        name = "@llvm.prefetch.p0"
        em.declarations[name] = f"declare void {name}(ptr, i32, i32, i32)"
        for first in range(0, self.lanes * place.align, 64):
            offset = em.const("i64", ahead + first // place.align)
            pointer = em.gep(place.elem, place.pointer, offset)
            em.line(f"call void {name}({pointer.typed}, i32 0, i32 2, i32 1)")

    # -- memory -------------------------------------------------------------------------------

    def place(self, access: Access, dtype: DType) -> Place:
        """Where the lanes' elements are; of complex numbers their real parts."""
        em, elem = self.em, memory_elem(dtype)
        if access in self.buffered:
            return self.buffered[access]
        scale = 2 if dtype.is_complex else 1
        if self.space.kernel.slots[access.slot].tile:
            assert self.tile_row is not None
            assert self.tile_column is not None
            pointer = em.gep(elem, self.tile_row, self.tile_column)
            return Place(elem, pointer, tuple(range(self.lanes)))
        fixed = access.offset
        terms: list[Val] = []
        extra: Val | None = None
        for dim in range(self.space.rank):
            stride = self.space.stride(access, dim)
            position = self.position[dim]
            if position.constant:
                fixed += stride * int(position.text)
            elif stride:
                terms.append(em.binary("mul", position, em.const("i64", stride * scale)))
        for index, stride in access.indices:
            known = self._real(index)
            wide = em.integer(known, "i64", signed=not index.dtype.is_unsigned)
            term = em.binary("mul", wide, em.like(wide, stride * scale))
            if not term.lanes:
                terms.append(term)
            else:
                extra = term if extra is None else em.binary("add", extra, term)
        pointer = em.gep(elem, self.pointers[access.slot], em.const("i64", fixed * scale))
        # Outer dimensions first: their part of the address stays in the outer loops.
        for term in sorted(terms, key=lambda t: t.level):
            pointer = em.gep(elem, pointer, term)
        return Place(elem, pointer, self._pattern(access, scale), extra)

    def _pattern(self, access: Access, scale: int) -> tuple[int, ...]:
        steps = [
            (self.space.stride(access, dim) * scale, lanes) for dim, lanes in self.along.items()
        ]
        return tuple(sum(step * lanes[i] for step, lanes in steps) for i in range(self.lanes))

    def _read(
        self, access: Access, dtype: DType, condition: Val | None, *, fresh: bool = False
    ) -> Value:
        em, place = self.em, self.place(access, dtype)
        if dtype.is_complex:
            return Pair(*read_pair(em, place, self.mask, condition, fresh=fresh))
        return from_memory(em, dtype, read(em, place, self.mask, condition, fresh=fresh))

    def _load(self, scalar: Scalar) -> Value:
        assert scalar.access is not None
        if not scalar.srcs:
            return self._read(scalar.access, scalar.dtype, None)
        condition = self._real(scalar.srcs[0])
        value = self._read(scalar.access, scalar.dtype, condition)
        other = self._known(scalar.srcs[1])
        return ops.select(self.em, condition, value, other)

    def prepare(self, stores: Sequence[Store]) -> None:
        """Computes everything that the stores need, so that all loads come before all stores."""
        for store in stores:
            self.value(self._stored(store))
            if store.mask is not None:
                self.value(store.mask)
            for index, _ in store.access.indices:
                self.value(index)

    def visit(self) -> None:
        """Loads, computes and stores everything at the current points."""
        stores = self.space.kernel.stores
        self.prepare(stores)
        for store in stores:
            self.store(store)

    def _stored(self, store: Store) -> Scalar | Bits:
        """The form of the value in which it is stored or combined."""
        value = store.value
        computed = value.dtype.is_complex or value in self.rounded_by_store
        return value if computed or store.combine is not None else Bits(value)

    def store(self, store: Store) -> None:
        """Writes the store's value at the current points; `prepare` must have run."""
        em = self.em
        dtype = self.space.kernel.slots[store.access.slot].dtype
        value = self._known(self._stored(store))
        condition = None if store.mask is None else self._real(store.mask)
        if store.combine is not None:
            old = self._read(store.access, dtype, condition, fresh=True)
            value = ops.apply(em, ops.Typed(store.combine, dtype, dtype), [old, value])
        place = self.place(store.access, dtype)
        if isinstance(value, Pair):
            write_pair(em, place, value.re, value.im, self.mask, condition)
            return
        if store.value in self.rounded_by_store:
            value = rounded_to_memory(em, value)
        elif store.combine is not None:
            value = to_memory(em, dtype, value)
        write(em, place, value, self.mask, condition, stream=store.access in self.streams)


def _cast_from(scalar: Scalar) -> Bits:
    """The value of which a BITCAST_CONVERT takes the bits."""
    (source,) = scalar.srcs
    if source.dtype.itemsize != scalar.dtype.itemsize:
        raise CodegenUnsupported("bitcast_convert between types of different size")
    if source.dtype.is_complex or scalar.dtype.is_complex:
        raise CodegenUnsupported("bitcast_convert of complex numbers")
    return Bits(source)


def constant(em: Emitter, dtype: DType, value: complex) -> Value:
    """A literal as registers hold it."""
    elem = register_elem(dtype)
    if dtype.is_complex:
        number = complex(value)
        return Pair(em.const(elem, number.real), em.const(elem, number.imag))
    return em.const(elem, value.real)
