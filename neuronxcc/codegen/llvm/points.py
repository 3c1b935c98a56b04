"""The values of a kernel's expressions at the current points: one vector of them, or one point."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from neuronxcc.codegen.errors import CodegenUnsupported
from neuronxcc.codegen.llvm import ops
from neuronxcc.codegen.llvm.emitter import BITS, Emitter, Val, vector_type
from neuronxcc.codegen.llvm.formats import from_memory, memory_elem, register_elem, to_memory
from neuronxcc.codegen.llvm.ops import Pair, Value
from neuronxcc.codegen.loop import Access, Scalar, Store, operands
from neuronxcc.codegen.space import Space
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op

# The largest constant stride that a wide load and a shuffle serve better than a gather.
_SHUFFLED_STRIDE = 4


class Points:
    """Where we are in the space, and what is known there.

    Attributes:
        position: For each dimension of the space the index (i64); for the dimension `vec` that of
            lane 0.
        vec: The dimension along which the lanes lie; None for a single point.
        lanes: How many; 0 for a single point.
        mask: Which lanes take part; None for all.
    """

    def __init__(self, em: Emitter, space: Space, pointers: Sequence[Val]) -> None:
        self.em = em
        self.space = space
        self.pointers = list(pointers)
        self.position: list[Val] = [em.const("i64", 0)] * space.rank
        self.vec: int | None = None
        self.lanes = 0
        self.mask: Val | None = None
        # The accumulator tile of an epilogue: pointer to the current row.
        self.tile_row: Val | None = None
        # Values kept from an earlier pass over a row: how to load them.
        self.kept: dict[Scalar, Callable[[], Value]] = {}

    # -- expressions --------------------------------------------------------------------------

    def value(self, root: Scalar) -> Value:
        """The expression's value, computed where it varies and no deeper."""
        stack = [(root, False)]
        while stack:
            scalar, ready = stack.pop()
            if self.em.recall(scalar) is not None:
                continue
            if scalar in self.kept:
                self._remember(scalar, self.kept[scalar]())
            elif ready:
                self._remember(scalar, self._compute(scalar))
            else:
                stack.append((scalar, True))
                stack.extend((src, False) for src in reversed(operands(scalar)))
        return self._known(root)

    def real(self, root: Scalar) -> Val:
        """The value of an expression that is not complex."""
        value = self.value(root)
        assert isinstance(value, Val)
        return value

    def _known(self, scalar: Scalar) -> Value:
        value: Value = self.em.recall(scalar)
        return value

    def _remember(self, scalar: Scalar, value: Value) -> None:
        level = max(value.re.level, value.im.level) if isinstance(value, Pair) else value.level
        self.em.local(self.em.placed(level))[scalar] = value

    def define(self, scalar: Scalar, value: Value) -> None:
        """Sets the value of a reduction, for as long as the innermost scope is open."""
        self.em.local(self.em.level)[scalar] = value

    def _compute(self, scalar: Scalar) -> Value:
        if scalar.what == "const":
            return constant(self.em, scalar.dtype, scalar.value or 0)
        if scalar.what == "index":
            return self._index(scalar)
        if scalar.what == "load":
            return self._load(scalar)
        if scalar.what != "op":
            raise AssertionError(f"{scalar} is not known here")
        assert scalar.op is not None
        srcs = [self._known(s) for s in scalar.srcs]
        dtypes = [s.dtype for s in scalar.srcs]
        return ops.apply(self.em, scalar.op, scalar.dtype, srcs, dtypes, scalar.direction)

    def _index(self, scalar: Scalar) -> Val:
        em, elem = self.em, register_elem(scalar.dtype)
        dim = self.space.dim_of(scalar.dim)
        if dim is None:
            return em.const(elem, 0)
        base = em.integer(self.position[dim], elem)
        if dim != self.vec:
            return base
        return em.binary("add", base, em.lane_constants(elem, range(self.lanes)))

    # -- addresses ----------------------------------------------------------------------------

    def _base(self, access: Access, elem: str, scale: int) -> tuple[Val, Val | None]:
        """Pointer to the element of lane 0, and what else each lane adds (in elements)."""
        em = self.em
        slot = self.space.kernel.slots[access.slot]
        if slot.tile:
            assert self.tile_row is not None
            assert self.vec is not None
            return em.gep(elem, self.tile_row, self.position[self.vec]), None
        pointer = self.pointers[access.slot]
        constant_part = access.offset
        terms: list[Val] = []
        extra: Val | None = None
        for dim in range(self.space.rank):
            stride = self.space.stride(access, dim)
            if not stride:
                continue
            position = self.position[dim]
            if position.constant:
                constant_part += stride * int(position.text)
            else:
                terms.append(em.binary("mul", position, em.const("i64", stride * scale)))
        for index, stride in access.indices:
            known = self._known(index)
            assert isinstance(known, Val)
            wide = em.integer(known, "i64", signed=not index.dtype.is_unsigned)
            term = em.binary("mul", wide, em.like(wide, stride * scale))
            if term.lanes:
                extra = term if extra is None else em.binary("add", extra, term)
            else:
                terms.append(term)
        pointer = em.gep(elem, pointer, em.const("i64", constant_part * scale))
        for term in sorted(terms, key=lambda t: t.level):
            pointer = em.gep(elem, pointer, term)
        return pointer, extra

    def _lane_stride(self, access: Access) -> int:
        if self.vec is None:
            return 0
        if self.space.kernel.slots[access.slot].tile:
            return 1
        return self.space.stride(access, self.vec)

    def _both(self, a: Val | None, b: Val | None) -> Val | None:
        if a is None or b is None:
            return b if a is None else a
        return self.em.binary("and", a, b)

    # -- loads --------------------------------------------------------------------------------

    def _load(self, scalar: Scalar) -> Value:
        em, access, dtype = self.em, scalar.access, scalar.dtype
        assert access is not None
        condition = other = None
        if scalar.srcs:
            known = self._known(scalar.srcs[0])
            assert isinstance(known, Val)
            condition, other = known, self._known(scalar.srcs[1])
        if dtype.is_complex:
            return self._load_pair(access, dtype, condition, other)
        elem = memory_elem(dtype)
        raw = self._read(access, elem, 1, 0, condition)
        value = from_memory(em, dtype, raw)
        if condition is None:
            return value
        assert isinstance(other, Val)
        return em.select(condition, value, other)

    def _load_pair(
        self, access: Access, dtype: DType, condition: Val | None, other: Value | None
    ) -> Pair:
        em, elem = self.em, memory_elem(dtype)
        re, im = (self._read(access, elem, 2, part, condition) for part in (0, 1))
        if condition is None:
            return Pair(re, im)
        assert isinstance(other, Pair)
        return Pair(em.select(condition, re, other.re), em.select(condition, im, other.im))

    def _read(self, access: Access, elem: str, scale: int, part: int, condition: Val | None) -> Val:
        """Raw elements; lanes that are masked out or where the condition fails hold anything."""
        em = self.em
        pointer, extra = self._base(access, elem, scale)
        if part:
            pointer = em.gep(elem, pointer, em.const("i64", part))
        stride = self._lane_stride(access) * scale
        if extra is None and stride == 0:
            if condition is None:
                return em.pure(elem, 0, em.load_rhs(elem, 0, pointer), pointer)
            if not condition.lanes:
                pointer = self._or_nowhere(condition, pointer)
                return em.pure(elem, 0, em.load_rhs(elem, 0, pointer), pointer)
        if condition is not None:
            condition = em.splat(condition, self.lanes)
        mask = self._both(self.mask, condition)
        if extra is None and stride in (1, -1):
            return self._read_vector(elem, pointer, stride, mask)
        if extra is None and mask is None and 1 < stride <= _SHUFFLED_STRIDE:
            span = (self.lanes - 1) * stride + 1
            wide = em.pure(elem, span, em.load_rhs(elem, span, pointer), pointer)
            return em.shuffle(wide, None, range(0, span, stride))
        return self._gather(elem, self._lane_pointers(elem, pointer, extra, stride), mask)

    def _or_nowhere(self, condition: Val, pointer: Val) -> Val:
        """The pointer where the condition holds, else one to memory of our own."""
        return self.em.select(condition, pointer, Val("ptr", 0, "%nowhere", 0))

    def _read_vector(self, elem: str, pointer: Val, stride: int, mask: Val | None) -> Val:
        em, lanes = self.em, self.lanes
        if stride < 0:
            pointer = em.gep(elem, pointer, em.const("i64", 1 - lanes))
            mask = None if mask is None else self._reversed(mask)
        if mask is None:
            vector = em.pure(elem, lanes, em.load_rhs(elem, lanes, pointer), pointer)
        else:
            vec = vector_type(elem, lanes)
            name = f"@llvm.masked.load.v{lanes}{_name(elem)}.p0"
            em.declarations[name] = f"declare {vec} {name}(ptr, i32, <{lanes} x i1>, {vec})"
            align = BITS[elem] // 8
            rhs = (
                f"call {vec} {name}({pointer.typed}, i32 {align}, {mask.typed},"
                f" {vec} zeroinitializer)"
            )
            vector = em.pure(elem, lanes, rhs, pointer, mask)
        return self._reversed(vector) if stride < 0 else vector

    def _reversed(self, vector: Val) -> Val:
        return self.em.shuffle(vector, None, range(vector.lanes - 1, -1, -1))

    def _lane_pointers(self, elem: str, pointer: Val, extra: Val | None, stride: int) -> Val:
        em = self.em
        offsets = em.lane_constants("i64", [lane * stride for lane in range(self.lanes)])
        if extra is not None:
            offsets = extra if stride == 0 else em.binary("add", extra, offsets)
        return em.gep(elem, pointer, offsets)

    def _all_lanes(self) -> Val:
        return self.em.const("i1", 1, self.lanes)

    def _gather(self, elem: str, pointers: Val, mask: Val | None) -> Val:
        em, lanes = self.em, self.lanes
        vec = vector_type(elem, lanes)
        name = f"@llvm.masked.gather.v{lanes}{_name(elem)}.v{lanes}p0"
        em.declarations[name] = f"declare {vec} {name}(<{lanes} x ptr>, i32, <{lanes} x i1>, {vec})"
        mask = mask or self._all_lanes()
        rhs = (
            f"call {vec} {name}({pointers.typed}, i32 {BITS[elem] // 8}, {mask.typed},"
            f" {vec} zeroinitializer)"
        )
        return em.pure(elem, lanes, rhs, pointers, mask)

    # -- stores -------------------------------------------------------------------------------

    def prepare(self, stores: Sequence[Store]) -> None:
        """Computes everything that the stores need, so that all loads come before all stores."""
        for store in stores:
            self.value(store.value)
            if store.mask is not None:
                self.value(store.mask)
            for index, _ in store.access.indices:
                self.value(index)

    def store(self, store: Store) -> None:
        """Writes the store's value at the current points."""
        dtype = self.space.kernel.slots[store.access.slot].dtype
        value = self._known(store.value)
        condition = None
        if store.mask is not None:
            known = self._known(store.mask)
            assert isinstance(known, Val)
            condition = known
        parts = [value.re, value.im] if isinstance(value, Pair) else [value]
        elem = memory_elem(dtype)
        for part, one in enumerate(parts):
            self._write(store.access, elem, len(parts), part, to_memory(self.em, dtype, one),
                        condition)  # fmt: skip

    def _write(
        self, access: Access, elem: str, scale: int, part: int, value: Val, condition: Val | None
    ) -> None:
        em = self.em
        pointer, extra = self._base(access, elem, scale)
        if part:
            pointer = em.gep(elem, pointer, em.const("i64", part))
        stride = self._lane_stride(access) * scale
        align = BITS[elem] // 8
        if self.vec is None or (extra is None and stride == 0 and not value.lanes):
            if condition is not None:
                pointer = self._or_nowhere(condition, pointer)
            em.line(f"store {value.typed}, {pointer.typed}, align {align}")
            return
        value = em.splat(value, self.lanes)
        if condition is not None:
            condition = em.splat(condition, self.lanes)
        mask = self._both(self.mask, condition)
        vec = value.type
        if extra is None and stride in (1, -1):
            if stride < 0:
                pointer = em.gep(elem, pointer, em.const("i64", 1 - self.lanes))
                value = self._reversed(value)
                mask = None if mask is None else self._reversed(mask)
            if mask is None:
                em.line(f"store {value.typed}, {pointer.typed}, align {align}")
                return
            name = f"@llvm.masked.store.v{self.lanes}{_name(elem)}.p0"
            em.declarations[name] = f"declare void {name}({vec}, ptr, i32, <{self.lanes} x i1>)"
            em.line(f"call void {name}({value.typed}, {pointer.typed}, i32 {align}, {mask.typed})")
            return
        pointers = self._lane_pointers(elem, pointer, extra, stride)
        mask = mask or self._all_lanes()
        name = f"@llvm.masked.scatter.v{self.lanes}{_name(elem)}.v{self.lanes}p0"
        em.declarations[name] = (
            f"declare void {name}({vec}, <{self.lanes} x ptr>, i32, <{self.lanes} x i1>)"
        )
        em.line(f"call void {name}({value.typed}, {pointers.typed}, i32 {align}, {mask.typed})")


def constant(em: Emitter, dtype: DType, value: complex) -> Value:
    """A literal as registers hold it."""
    elem = register_elem(dtype)
    if dtype.is_complex:
        number = complex(value)
        return Pair(em.const(elem, number.real), em.const(elem, number.imag))
    if isinstance(value, complex):
        raise CodegenUnsupported(f"a complex constant of type {dtype.value}")
    return em.const(elem, value)


def combine(em: Emitter, op: Op, dtype: DType, a: Value, b: Value) -> Value:
    """One step of a reduction or of a combining store."""
    return ops.apply(em, op, dtype, [a, b], [dtype, dtype])


def _name(elem: str) -> str:
    return {"float": "f32", "double": "f64", "half": "f16"}.get(elem, elem)
