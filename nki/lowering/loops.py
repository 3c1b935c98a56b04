"""Loop kernels of works."""

from __future__ import annotations

from collections.abc import Sequence

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Access, Dim, Kernel, Kind, Scalar, Slot, Store
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.program.tape_functions import TapeLoop
from nki.lowering import values
from nki.lowering.draft import Draft
from nki.lowering.indices import IndexTerm, Moved
from nki.lowering.operands import (
    LANES,
    Leaf,
    Operand,
    Pointer,
    Reach,
    State,
    f32,
    moved,
    rows_of,
    s32,
)
from nki.lowering.shapes import refine, row_major, split
from nki.recording import RegisterForm, TileForm

__all__ = ["Flat", "Lanes", "LoopMaker"]


_Agreed = tuple[tuple[int, ...], list[tuple[int, ...]]]


class LoopMaker:
    """A loop kernel being made: slots appear as pointers are named."""

    def __init__(
        self, work: Draft, name: str, extents: Sequence[int], kinds: Sequence[Kind] = ()
    ) -> None:
        self.work = work
        self.name = f"nki_{name}"
        self.extents = tuple(extents)
        self.kinds = tuple(kinds) or (Kind.PARALLEL,) * len(self.extents)
        self.stores: list[Store] = []
        self._slots: dict[tuple[Pointer, DType, int], int] = {}
        self._reaches: list[Reach] = []

    def slot(self, pointer: Pointer, dtype: DType, advance: int = 0) -> int:
        """Return the number of the slot of a pointer."""
        key = (pointer, dtype, advance)
        if key not in self._slots:
            self._slots[key] = len(self._slots)
            self._reaches.append(Reach(0, 0, written=False))
        return self._slots[key]

    def _lowest(self, pointer: Pointer, strides: Sequence[int], size: int) -> tuple[Pointer, int]:
        """Return a pointer to the first byte that strides reach, and the offset of element 0."""
        pairs = zip(self.extents, strides, strict=True)
        low = sum(min(0, stride * (extent - 1)) for extent, stride in pairs)
        if not low:
            return pointer, 0
        return moved(pointer, low * size), -low

    def _touch(
        self,
        slot: int,
        size: int,
        strides: Sequence[int],
        indices: Sequence[IndexTerm],
        *,
        written: bool,
    ) -> None:
        pairs = zip(self.extents, strides, strict=True)
        high = sum(abs(stride) * (extent - 1) for extent, stride in pairs)
        low = 0
        for _, stride, first, last in indices:
            low += min(first * stride, last * stride)
            high += max(first * stride, last * stride)
        low, high = low * size, (high + 1) * size
        before = self._reaches[slot]
        if before.low != before.high:
            low, high = min(low, before.low), max(high, before.high)
        self._reaches[slot] = Reach(low, high, before.written or written)

    def get(
        self,
        pointer: Pointer,
        dtype: DType,
        strides: Sequence[int] | None = None,
        *,
        advance: int = 0,
        indices: Sequence[IndexTerm] = (),
        mask: Scalar | None = None,
    ) -> Scalar:
        """Load an item.

        Args:
            pointer: where element 0 is.
            dtype: of the items.
            strides: per dimension of the kernel, in elements; all 0 by default.
            advance: bytes from chunk to chunk.
            indices: (expression, stride, least value, greatest value).
            mask: where it is false, 0 and no read.
        """
        steps = tuple(strides) if strides is not None else (0,) * len(self.extents)
        pointer, offset = self._lowest(pointer, steps, dtype.itemsize)
        slot = self.slot(pointer, dtype, advance)
        self._touch(slot, dtype.itemsize, steps, indices, written=False)
        return build.load(
            dtype, slot, steps, offset, indices=[(e, s) for e, s, _, _ in indices], mask=mask,
            other=build.const(0.0 if dtype.is_float else 0, dtype),
        )  # fmt: skip

    def moving(self, name: str) -> tuple[IndexTerm, Scalar | None]:
        """Return the index that a scalar moves an operand by, and the mask of what is skipped."""
        found = Moved(self.work, name)
        source = found.source
        if isinstance(source, Leaf):
            item = self.get(source, DType.S32)
        else:
            item = self.get(source.pointer, values.stored_type(source.dtype))
        return found.index(item), found.inside(item)

    def put(
        self,
        pointer: Pointer,
        value: Scalar,
        strides: Sequence[int],
        *,
        advance: int = 0,
        indices: Sequence[IndexTerm] = (),
        mask: Scalar | None = None,
        combine: Op | None = None,
    ) -> None:
        """Store an item of the type of the value; see `get`."""
        pointer, offset = self._lowest(pointer, strides, value.dtype.itemsize)
        slot = self.slot(pointer, value.dtype, advance)
        self._touch(slot, value.dtype.itemsize, strides, indices, written=True)
        access = Access(slot, tuple(strides), offset, tuple((e, s) for e, s, _, _ in indices))
        self.stores.append(Store(access, value, combine, mask))

    def number(self, value: float) -> Scalar:
        """Return a number as float32; it is data, so that the kernel is the same for all."""
        return self.get(f32(value), DType.F32)

    def whole(self, value: int) -> Scalar:
        """Return an integer as s32, likewise."""
        return self.get(s32(value), DType.S32)

    def _made(self) -> Kernel:
        dims = tuple(Dim(e, k) for e, k in zip(self.extents, self.kinds, strict=True))
        slots = tuple(Slot(dtype) for _, dtype, _ in self._slots)
        return Kernel(self.name, dims, slots, tuple(self.stores))

    def finish(self) -> None:
        """Note the action: a function that splits its work itself."""
        pointers = [pointer for pointer, _, _ in self._slots]
        self.work.add(TapeLoop(self._made()), pointers, self._reaches)


class Typed(LoopMaker):
    """A loop kernel that knows where operands are."""

    def _place(self, operand: Operand) -> tuple[Operand, tuple[int, ...], int]:
        """Return what is used instead of the operand, its strides, and the advance."""
        raise NotImplementedError

    def steps(self, operand: Operand) -> tuple[int, ...]:
        """Return the strides of an operand per dimension of the kernel."""
        return self._place(operand)[1]

    def advance(self, operand: Operand) -> int:
        """Return the bytes from one chunk of an operand to the next."""
        return self._place(operand)[2]

    def load(self, which: str | Operand) -> Scalar:
        """Return the item of a tensor operand as it is stored."""
        operand = self._operand(which)
        return self._item(operand, values.stored_type(operand.dtype))

    def _operand(self, which: str | Operand) -> Operand:
        return self.work.operand(which, moved=True) if isinstance(which, str) else which

    def _item(self, operand: Operand, kind: DType) -> Scalar:
        real, strides, advance = self._place(operand)
        indices, mask = self._index(real)
        return self.get(real.pointer, kind, strides, advance=advance, indices=indices, mask=mask)

    def _index(self, operand: Operand) -> tuple[list[IndexTerm], Scalar | None]:
        if not operand.moved:
            return [], None
        index, mask = self.moving(operand.name)
        return [index], mask

    def inside(self, name: str) -> Scalar | None:
        """Return whether the scalar that moves an operand is in bounds; None if it surely is."""
        return self._index(self.work.operand(name, moved=True))[1]

    def bits(self, which: str | Operand) -> Scalar:
        """Return the item's bit pattern, an unsigned integer of its size: what copies move."""
        operand = self._operand(which)
        return self._item(operand, values.bits_type(operand.dtype))

    def read(self, name: str) -> Scalar:
        """Return an operand, also if it is a number, as the engines read it: float32."""
        form = self.work.form(name)
        if isinstance(form, TileForm):
            return values.to_float32(self.load(name), form.dtype)
        if isinstance(form, RegisterForm):
            return build.convert(self.register(name), DType.F32)
        return self.number(form)

    def integer(self, name: str) -> Scalar:
        """Return an operand that is an integer, a number or a register with 64 bits."""
        form = self.work.form(name)
        if isinstance(form, TileForm):
            return values.to_integer(self.load(name))
        # A number may be an integer written as a float, 2.0.
        item = self.register(name) if isinstance(form, RegisterForm) else self.whole(int(form))
        return build.convert(item, DType.S64)

    def register(self, name: str) -> Scalar:
        """Return the s32 value of a register."""
        return self.get(self.work.leaf(name), DType.S32)

    # --- results ---------------------------------------------------------------------------------

    def store(self, which: str | Operand, item: Scalar, *, mask: Scalar | None = None) -> None:
        """Store an item of the stored type, or its bit pattern."""
        if isinstance(which, str):
            # A kernel that reduces stores nowhere that an index says: a copy does that afterwards.
            which = self.work.operand(which, moved=Kind.REDUCE not in self.kinds)
        real, strides, advance = self._place(which)
        indices, inside = self._index(real)
        if inside is not None:
            mask = inside if mask is None else build.op(Op.AND, mask, inside)
        self.put(real.pointer, item, strides, advance=advance, indices=indices, mask=mask)

    def write(self, name: str, value: Scalar) -> None:
        """Cast what was computed as `nki.isa.cast.write` does, and store it."""
        self.store(name, values.cast(value, self.work.dtype(name)))


class Flat(Typed):
    """A loop kernel over all elements of operands of equal size; it splits its work itself."""

    def __init__(self, work: Draft, name: str, operands: Sequence[Operand]) -> None:
        self.work = work
        self._plans: dict[Operand, tuple[Operand, tuple[int, ...]]] = {}
        self._back: list[tuple[Operand, Operand]] = []
        reals = list(operands)
        dims = [operand.dims for operand in reals]
        found = refine(dims)
        while isinstance(found, int):
            reals[found] = self._pack(reals[found])
            dims[found] = reals[found].dims
            found = refine(dims)
        extents, steps = found
        for operand, real, strides in zip(operands, reals, steps, strict=True):
            self._plans[operand] = (real, strides or (0,))
        super().__init__(work, name, extents or (1,))

    def _pack(self, operand: Operand) -> Operand:
        reads, writes = self.work.writes(operand)
        dense = self.work.temporary(operand.shape, operand.dtype)
        if writes:
            self._back.append((dense, operand))
        if reads:
            self.work.copy_bits(operand, dense)
        return dense

    def _place(self, operand: Operand) -> tuple[Operand, tuple[int, ...], int]:
        real, strides = self._plans[operand]
        return real, strides, 0

    def finish(self) -> None:
        """Note the action, and copy results from dense memory to where they belong."""
        super().finish()
        for dense, operand in self._back:
            self.work.copy_bits(dense, operand)


class Lanes(Typed):
    """A loop kernel that works partition by partition: dimension 0 are the rows of a chunk.

    `read` and `write` take names of operands or operands; whichever were named when the kernel was
    begun have an element per point, others one per partition.
    """

    def __init__(
        self,
        work: Draft,
        name: str,
        full: Sequence[Operand],
        kept: Sequence[Operand] = (),
        *,
        reduce: bool = False,
    ) -> None:
        self.work = work
        self.partitions = (*full, *kept)[0].partitions
        self.rows = rows_of(self.partitions)
        self._plans: dict[Operand, tuple[Operand, tuple[int, ...]]] = {}
        self._back: list[tuple[Operand, Operand]] = []
        self._keep = kept[0].free if kept else 1
        outer, inner = self._agree(list(full), list(kept), reduce=reduce)
        outer_extents, outer_steps = outer
        inner_extents, inner_steps = inner
        if reduce and not inner_extents:
            # A dimension of one element still is one to reduce over.
            inner_extents, inner_steps = (1,), [(0,)] * len(full)
        for i, operand in enumerate([*full, *kept]):
            real = self._real(operand)
            tail = inner_steps[i] if i < len(full) else (0,) * len(inner_extents)
            self._plans[operand] = (real, (real.strides[0], *outer_steps[i], *tail))
        super().__init__(
            work,
            name,
            (self.rows, *outer_extents, *inner_extents),
            (Kind.PARALLEL,) * (1 + len(outer_extents)) + (Kind.REDUCE,) * len(inner_extents),
        )
        self._outer = len(outer_extents)

    @property
    def chunks(self) -> int:
        """How often the function is called."""
        return self.partitions // self.rows

    # --- layouts ---------------------------------------------------------------------------------

    def _real(self, operand: Operand) -> Operand:
        return self._plans[operand][0] if operand in self._plans else operand

    def _pack(self, operand: Operand) -> Operand:
        """Let the kernel use dense memory instead."""
        reads, writes = self.work.writes(operand)
        if not writes:
            dense = self.work.dense(operand)
        else:
            dense = self.work.temporary(operand.shape, operand.dtype)
            self._back.append((dense, operand))
            if reads:
                self.work.copy_bits(operand, dense)
        self._plans[operand] = (dense, ())
        return dense

    def _agree(
        self, full: list[Operand], kept: list[Operand], *, reduce: bool
    ) -> tuple[_Agreed, _Agreed]:
        """Return extents and strides of the dimensions that are kept, and of the reduced ones."""
        every = [*full, *kept]
        fixed = [i for i, operand in enumerate(every) if operand.is_virtual]
        while True:
            dims = [self._real(operand).free_dims for operand in every]
            inner: _Agreed | int = ((), [()] * len(full))
            if reduce:
                halves = [split(found, self._keep) for found in dims[: len(full)]]
                if None in halves:
                    self._pack(full[halves.index(None)])
                    continue
                known = [half for half in halves if half is not None]
                dims[: len(full)] = [half[0] for half in known]
                inner = refine([half[1] for half in known], fixed)
            outer = refine(dims, fixed)
            for found in (outer, inner):
                if isinstance(found, int):
                    self._pack(every[found])
                    break
            else:
                assert not isinstance(outer, int)
                assert not isinstance(inner, int)
                return outer, inner

    # --- values ----------------------------------------------------------------------------------

    def _place(self, operand: Operand) -> tuple[Operand, tuple[int, ...], int]:
        if operand in self._plans:
            real, strides = self._plans[operand]
        else:
            assert operand.free == 1, f"{operand.name} has no element per point"
            real = operand
            step = operand.strides[0] if operand.partitions == self.partitions else 0
            strides = (step, *[0] * (len(self.extents) - 1))
        if self.rows == self.partitions:
            return real, strides, 0
        return real, strides, strides[0] * self.rows * real.itemsize

    def partition(self) -> Scalar:
        """Return the number of the partition among those of the operands, s32."""
        step = (1, *[0] * (len(self.extents) - 1))
        advance = 4 * self.rows if self.rows != self.partitions else 0
        return self.get(LANES, DType.S32, step, advance=advance)

    def position(self, dtype: DType = DType.S64, *, reduced: bool = False) -> Scalar:
        """Return the number of the element in its partition.

        Args:
            dtype: of the number.
            reduced: count along REDUCE dimensions only.
        """
        before = 1 + self._outer if reduced else 1
        total: Scalar | None = None
        for dim, step in enumerate(row_major(self.extents[before:]), before):
            part = build.op(Op.MULTIPLY, build.index(dim, dtype), step)
            total = part if total is None else build.op(Op.ADD, total, part)
        return build.const(0, dtype) if total is None else total

    def first(self, name: str) -> Scalar:
        """Return the first item along the REDUCE dimensions."""
        real, strides, advance = self._place(self.work.operand(name, moved=True))
        kept = 1 + self._outer
        steps = (*strides[:kept], *[0] * (len(strides) - kept))
        indices, mask = self._index(real)
        kind = values.stored_type(real.dtype)
        return self.get(real.pointer, kind, steps, advance=advance, indices=indices, mask=mask)

    def along(self, operand: Operand) -> Scalar:
        """Return the sum of an operand's strides times positions, dimension 0 left out: s32."""
        total = build.const(0, DType.S32)
        for dim, step in enumerate(self.steps(operand)[1:], 1):
            part = build.op(Op.MULTIPLY, build.index(dim, DType.S32), step)
            total = build.op(Op.ADD, total, part)
        return total

    def lane_state(self, state: State, dtype: DType) -> tuple[State, tuple[int, ...], int]:
        """Return pointer, strides and advance of an item per partition of a state."""
        strides = (1, *[0] * (len(self.extents) - 1))
        return state, strides, dtype.itemsize * self.rows if self.rows != self.partitions else 0

    def finish(self) -> None:
        """Note the action, and copy results from dense memory to where they belong."""
        pointers = [pointer for pointer, _, _ in self._slots]
        advance = tuple(by for _, _, by in self._slots)
        function = TapeLoop(self._made(), lanes=True, advance=advance)
        self.work.add(function, pointers, self._reaches, self.chunks)
        for dense, operand in self._back:
            self.work.copy_bits(dense, operand)
