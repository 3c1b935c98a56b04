"""What one instruction becomes: functions of a tape, and where their pointers come from.

An implementation gets a :class:`Work` for a template. It asks for operands, makes loop kernels
(`lanes`, `kernel`) or other functions, and the work notes the actions in order. It never sees
places: an action's pointers say "leaf 2 of the event" or "32 constant bytes", and emission finds
the buffers. Dynamic access, layouts that do not fit each other and operands that overlap are
the work's business: an implementation sees direct operands only.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Dim, Kernel, Kind, Scalar, Slot, Store
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.neff.tape import TapeLoop, TapeNative, TapeProduct
from nki.dtypes import info
from nki.isa.spec import Role
from nki.lowering import values
from nki.lowering.shapes import Dims, refine, row_major
from nki.recording import RegisterForm, Template, TileForm, leaves

__all__ = [
    "MOST_ROWS",
    "Action",
    "Constant",
    "Kernel",
    "Lanes",
    "Leaf",
    "Operand",
    "Pointer",
    "Print",
    "Reach",
    "Scratch",
    "State",
    "Variant",
    "Work",
    "rows_of",
]

MOST_ROWS = 16  # partitions that a lane function takes at a time


class Leaf(NamedTuple):
    """The place of a leaf of the template's operands, and bytes from there.

    For a register it is its word in the register file.
    """

    number: int
    offset: int = 0


class Constant(NamedTuple):
    """Bytes that never change; equal ones are kept once."""

    data: bytes
    offset: int = 0


class Scratch(NamedTuple):
    """Memory of this work alone: number in `Work.scratch`."""

    number: int
    offset: int = 0


class State(NamedTuple):
    """Memory that lasts from instruction to instruction, one for every core.

    Attributes:
        name: what it is.
        initial: its bytes when the program starts.
        offset: bytes.
    """

    name: str
    initial: bytes
    offset: int = 0


Pointer = Leaf | Constant | Scratch | State


class Reach(NamedTuple):
    """The bytes that an action may touch from a pointer on, for one chunk: low <= byte < high."""

    low: int
    high: int
    written: bool


@dataclass(frozen=True, slots=True)
class Action:
    """A function of the tape with its pointers.

    Attributes:
        function: what runs.
        pointers: of its slots.
        reaches: likewise.
        chunks: how often a lane function is called, 0 for a function that is none.
    """

    function: TapeLoop | TapeProduct | TapeNative
    pointers: tuple[Pointer, ...]
    reaches: tuple[Reach, ...]
    chunks: int


@dataclass(frozen=True, slots=True)
class Print:
    """Prints an operand: see `PrintStep`."""

    prefix: str
    operand: Operand


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor operand, without indirection.

    Attributes:
        name: of the parameter, with an index for those in lists: ``srcs[1]``.
        dtype: NKI's name.
        shape: sizes.
        strides: of them, in elements.
        pointer: where element 0 is.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    pointer: Pointer

    @property
    def partitions(self) -> int:
        """The size of dimension 0."""
        return self.shape[0]

    @property
    def free(self) -> int:
        """Elements per partition."""
        return math.prod(self.shape[1:])

    @property
    def size(self) -> int:
        """All elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return info(self.dtype).itemsize

    @property
    def free_dims(self) -> Dims:
        """(extent, stride) of all dimensions but the first."""
        return tuple(zip(self.shape[1:], self.strides[1:], strict=True))

    @property
    def dims(self) -> Dims:
        """(extent, stride) of all dimensions."""
        return tuple(zip(self.shape, self.strides, strict=True))


class Variant(NamedTuple):
    """What an event adds to its template that a work depends on.

    Attributes:
        staged: written operands that overlap others: they are computed in scratch memory, and
            copied when everything has been read.
        same: for every leaf the first leaf with the same form at the same place.
        highest: for every leaf that an index moves, the greatest index that stays in its memory.
    """

    staged: bool = False
    same: tuple[int, ...] = ()
    highest: tuple[int, ...] = ()


def rows_of(partitions: int) -> int:
    """Return the partitions of a chunk: the greatest divisor that is at most `MOST_ROWS`."""
    return max(r for r in range(1, min(partitions, MOST_ROWS) + 1) if partitions % r == 0)


@dataclass
class Work:
    """The actions of a template; see the module."""

    template: Template
    variant: Variant = field(default_factory=Variant)
    actions: list[Action | Print] = field(default_factory=list)
    scratch: list[tuple[int, int]] = field(default_factory=list)  # (partitions, bytes of each)
    _known: dict[str, Operand] = field(default_factory=dict)
    _late: list[tuple[Operand, TileForm, int]] = field(default_factory=list)
    _first: dict[str, int] = field(default_factory=dict)
    _forms: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        at = 0
        for name, form in self.template.operands:
            parts = (
                [(f"{name}[{i}]", item) for i, item in enumerate(form)]
                if isinstance(form, tuple) and not isinstance(form, TileForm | RegisterForm)
                else [(name, form)]
            )
            for part, item in parts:
                self._forms[part], self._first[part] = item, at
                at += sum(1 for _ in leaves(item))

    # --- operands --------------------------------------------------------------------------------

    @property
    def attributes(self) -> Any:
        """The canonical attributes."""
        return self.template.attributes

    def form(self, name: str) -> Any:
        """Return the form of an operand or of an item of a list; None if it is absent."""
        return self._forms.get(name)

    def is_tile(self, name: str) -> bool:
        """Whether the operand is given and a tensor."""
        return isinstance(self.form(name), TileForm)

    def has(self, name: str) -> bool:
        """Whether the operand is given."""
        return self.form(name) is not None

    def leaf(self, name: str) -> Leaf:
        """Return the place of a register or tensor."""
        number = self._first[name]
        return Leaf(self.variant.same[number] if self.variant.same else number)

    def first(self, name: str) -> int:
        """Return the number of an operand's first leaf."""
        return self._first[name]

    def dtype(self, name: str) -> str:
        """Return NKI's name of the type of a tensor."""
        form = self.form(name)
        assert isinstance(form, TileForm), name
        return form.dtype

    def role(self, name: str) -> Role:
        """Return how the instruction uses an operand."""
        base = name.partition("[")[0]
        return next(o.role for o in self.template.row.operands if o.name == base)

    def operand(self, name: str) -> Operand:
        """Return a tensor operand without indirection.

        What is gathered is in scratch memory then, and what is to be scattered will be copied from
        there at the end.
        """
        if name not in self._known:
            self._known[name] = self._direct(name)
        return self._known[name]

    def _direct(self, name: str) -> Operand:
        form, role = self.form(name), self.role(name)
        assert isinstance(form, TileForm), name
        late = role is not Role.READ and (self.variant.staged or form.indirect is not None)
        if form.indirect is None and not late:
            return self.plain(name)
        operand = self.temporary(form.shape, form.dtype, name)
        if role is not Role.WRITE:
            self._move(form, name, operand, inward=True)
        if late:
            self._late.append((operand, form, self._first[name]))
        return operand

    def plain(self, name: str) -> Operand:
        """Return a tensor operand as if nothing moved it."""
        form = self.form(name)
        assert isinstance(form, TileForm), name
        return Operand(name, form.dtype, form.shape, element_strides(form), self.leaf(name))

    def temporary(self, shape: Sequence[int], dtype: str, name: str = "") -> Operand:
        """Return memory of this work: dense, partition after partition."""
        size = math.prod(shape[1:]) * info(dtype).itemsize
        self.scratch.append((shape[0], size))
        pointer = Scratch(len(self.scratch) - 1)
        return Operand(name, dtype, tuple(shape), row_major(shape), pointer)

    def dense(self, operand: Operand) -> Operand:
        """Return a dense copy of an operand that is read."""
        copy = self.temporary(operand.shape, operand.dtype, operand.name)
        self.copy_bits(operand, copy)
        return copy

    def copy_bits(self, source: Operand, target: Operand) -> None:
        """Copy items between operands of one shape and type."""
        lanes = Lanes(self, "copy", [target, source])
        lanes.store(target, lanes.load(source))
        lanes.finish()

    def _move(self, form: TileForm, name: str, operand: Operand, *, inward: bool) -> None:
        from nki.lowering.indirect import gather, scatter  # noqa: PLC0415 (both use works)

        if form.indirect is None:
            outer = self.plain(name)
            self.copy_bits(*((outer, operand) if inward else (operand, outer)))
        elif inward:
            gather(self, name, operand)
        else:
            scatter(self, name, operand)

    # --- functions -------------------------------------------------------------------------------

    def lanes(
        self, *names: str | Operand, kept: Sequence[str | Operand] = (), reduce: bool = False
    ) -> Lanes:
        """Begin a kernel that works partition by partition on operands of equal size.

        Args:
            names: operands of (partitions, elements per partition) each; what is not named here
                has one element per partition, or is a number. Those that are absent are left out.
            kept: with `reduce`, operands that have one element for every so many consecutive
                elements of the others. Without any, a whole partition is reduced.
            reduce: what `kept` does not keep are REDUCE dimensions.
        """

        def found(these: Sequence[str | Operand]) -> list[Operand]:
            known = [n for n in these if not isinstance(n, str) or self.is_tile(n)]
            return [self.operand(n) if isinstance(n, str) else n for n in known]

        return Lanes(self, self.template.row.name, found(names), found(kept), reduce=reduce)

    def writes(self, operand: Operand) -> tuple[bool, bool]:
        """Whether the instruction reads, and whether it writes, what an operand shows."""
        if operand.name not in self._forms:
            return True, True
        role = self.role(operand.name)
        return role is not Role.WRITE, role is not Role.READ

    def add(
        self,
        function: TapeLoop | TapeProduct | TapeNative,
        pointers: Sequence[Pointer],
        reaches: Sequence[Reach],
        chunks: int = 0,
    ) -> None:
        """Note an action."""
        self.actions.append(Action(function, tuple(pointers), tuple(reaches), chunks))

    def finish(self) -> None:
        """Write back what was computed in scratch memory, in the order of the table."""
        order = [o.name for o in self.template.row.operands]
        for operand, form, _ in sorted(
            self._late, key=lambda item: order.index(item[0].name.partition("[")[0])
        ):
            self._move(form, operand.name, operand, inward=False)


def element_strides(form: TileForm) -> tuple[int, ...]:
    """Return the strides of a form in elements."""
    size = info(form.dtype).itemsize
    strides = []
    for extent, stride in zip(form.shape, form.strides, strict=True):
        assert extent == 1 or stride % size == 0, form
        strides.append(stride // size if extent > 1 else 0)
    return tuple(strides)


def f32(value: float) -> Constant:
    """Return a float32 number as constant bytes."""
    return Constant(np.float32(value).tobytes())


def s32(value: int) -> Constant:
    """Return an int32 number, of whose bits the low ones are kept, as constant bytes."""
    return Constant(struct.pack("<I", value & 0xFFFFFFFF))


_LANES = Constant(np.arange(128, dtype=np.int32).tobytes())


class Loop:
    """A loop kernel being made: slots appear as pointers are named."""

    def __init__(
        self, work: Work, name: str, extents: Sequence[int], kinds: Sequence[Kind] = ()
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

    def _touch(
        self,
        slot: int,
        size: int,
        strides: Sequence[int],
        bounds: Sequence[tuple[int, int, int]],
        *,
        written: bool,
    ) -> None:
        low = high = 0
        for extent, stride in zip(self.extents, strides, strict=True):
            low += min(0, stride * (extent - 1))
            high += max(0, stride * (extent - 1))
        for first, last, stride in bounds:
            low += min(first * stride, last * stride)
            high += max(first * stride, last * stride)
        before = self._reaches[slot]
        fresh = before.low == before.high
        low, high = low * size, (high + 1) * size
        self._reaches[slot] = Reach(
            low if fresh else min(low, before.low),
            high if fresh else max(high, before.high),
            before.written or written,
        )

    def get(
        self,
        pointer: Pointer,
        dtype: DType,
        strides: Sequence[int] | None = None,
        *,
        advance: int = 0,
        indices: Sequence[tuple[Scalar, int, int, int]] = (),
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
        slot = self.slot(pointer, dtype, advance)
        bounds = [(low, high, stride) for _, stride, low, high in indices]
        self._touch(slot, dtype.itemsize, steps, bounds, written=False)
        return build.load(
            dtype, slot, steps, indices=[(e, s) for e, s, _, _ in indices], mask=mask,
            other=build.const(0.0 if dtype.is_float else 0, dtype),
        )  # fmt: skip

    def put(
        self,
        pointer: Pointer,
        value: Scalar,
        strides: Sequence[int],
        *,
        advance: int = 0,
        indices: Sequence[tuple[Scalar, int, int, int]] = (),
        mask: Scalar | None = None,
        combine: Op | None = None,
    ) -> None:
        """Store an item of the type of the value; see `get`."""
        from neuronxcc.codegen.loop import Access  # noqa: PLC0415

        slot = self.slot(pointer, value.dtype, advance)
        bounds = [(low, high, stride) for _, stride, low, high in indices]
        self._touch(slot, value.dtype.itemsize, strides, bounds, written=True)
        access = Access(slot, tuple(strides), 0, tuple((e, s) for e, s, _, _ in indices))
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


class Lanes(Loop):
    """A loop kernel that works partition by partition: dimension 0 are the rows of a chunk.

    `read` and `write` take names of operands or operands; whichever were named when the kernel was
    begun have an element per point, others one per partition.
    """

    def __init__(
        self,
        work: Work,
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
        keep = kept[0].free if kept else 1
        outer = [self._half(o, keep, 0) if reduce else o.free_dims for o in full]
        outer_extents, outer_steps = self._agree(
            [*full, *kept], [*outer, *(o.free_dims for o in kept)], keep if reduce else None
        )
        inner_extents: tuple[int, ...] = ()
        inner_steps: list[tuple[int, ...]] = [()] * len(full)
        if reduce:
            inner = [self._half(o, keep, 1) for o in full]
            inner_extents, inner_steps = self._agree(list(full), inner, None)
            # A dimension of one element still is one to reduce over.
            if not inner_extents:
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

    def _half(self, operand: Operand, keep: int, which: int) -> Dims:
        """The dimensions that are kept (0) or reduced (1)."""
        halves = split(self._real(operand).free_dims, keep)
        if halves is None:
            halves = split(self._pack(operand).free_dims, keep)
            assert halves is not None
        return halves[which]

    def _agree(
        self, operands: Sequence[Operand], dims: list[Dims], keep: int | None
    ) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        while True:
            found = refine(dims)
            if not isinstance(found, int):
                return found
            packed = self._pack(operands[found])
            dims[found] = packed.free_dims
            if keep is not None and packed.free > keep:
                halves = split(packed.free_dims, keep)
                assert halves is not None
                dims[found] = halves[0]

    # --- values ----------------------------------------------------------------------------------

    def _place(self, operand: Operand) -> tuple[Pointer, tuple[int, ...], int]:
        """Pointer, strides and bytes from chunk to chunk."""
        if operand in self._plans:
            real, strides = self._plans[operand]
        else:
            assert operand.free == 1, f"{operand.name} has no element per point"
            real = operand
            step = operand.strides[0] if operand.partitions == self.partitions else 0
            strides = (step, *[0] * (len(self.extents) - 1))
        if self.rows == self.partitions:
            return real.pointer, strides, 0
        return real.pointer, strides, strides[0] * self.rows * real.itemsize

    def steps(self, operand: Operand) -> tuple[int, ...]:
        """Return the strides of an operand per dimension of the kernel."""
        return self._place(operand)[1]

    def advance(self, operand: Operand) -> int:
        """Return the bytes from one chunk of an operand to the next."""
        return self._place(operand)[2]

    def load(self, which: str | Operand) -> Scalar:
        """Return the item of a tensor operand as it is stored."""
        operand = self.work.operand(which) if isinstance(which, str) else which
        pointer, strides, advance = self._place(operand)
        return self.get(pointer, values.stored_type(operand.dtype), strides, advance=advance)

    def bits(self, which: str | Operand) -> Scalar:
        """Return the item's bit pattern, an unsigned integer of its size."""
        return values.to_bits(self.load(which))

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
        item = self.register(name) if isinstance(form, RegisterForm) else self.whole(form)
        return build.convert(item, DType.S64)

    def register(self, name: str) -> Scalar:
        """Return the s32 value of a register."""
        return self.get(self.work.leaf(name), DType.S32)

    def partition(self) -> Scalar:
        """Return the number of the partition among those of the operands, s32."""
        step = (1, *[0] * (len(self.extents) - 1))
        advance = 4 * self.rows if self.rows != self.partitions else 0
        return self.get(_LANES, DType.S32, step, advance=advance)

    def position(self, dtype: DType = DType.S64) -> Scalar:
        """Return the number of the element in its partition."""
        steps = row_major(self.extents[1:])
        total: Scalar | None = None
        for dim, step in enumerate(steps, 1):
            part = build.op(Op.MULTIPLY, build.index(dim, dtype), step)
            total = part if total is None else build.op(Op.ADD, total, part)
        return build.const(0, dtype) if total is None else total

    def lane_state(self, state: State, dtype: DType) -> tuple[State, tuple[int, ...], int]:
        """Return pointer, strides and advance of an item per partition of a state."""
        strides = (1, *[0] * (len(self.extents) - 1))
        return state, strides, dtype.itemsize * self.rows if self.rows != self.partitions else 0

    # --- results ---------------------------------------------------------------------------------

    def store(self, which: str | Operand, item: Scalar, *, mask: Scalar | None = None) -> None:
        """Store an item of the stored type."""
        operand = self.work.operand(which) if isinstance(which, str) else which
        pointer, strides, advance = self._place(operand)
        self.put(pointer, item, strides, advance=advance, mask=mask)

    def write(self, name: str, value: Scalar) -> None:
        """Cast what was computed as `nki.isa.cast.write` does, and store it."""
        self.store(name, values.cast(value, self.work.dtype(name)))

    def finish(self) -> None:
        """Note the action, and copy results from dense memory to where they belong."""
        pointers = [pointer for pointer, _, _ in self._slots]
        advance = tuple(by for _, _, by in self._slots)
        function = TapeLoop(self._made(), lanes=True, advance=advance)
        self.work.add(function, pointers, self._reaches, self.chunks)
        for dense, operand in self._back:
            self.work.copy_bits(dense, operand)


def split(dims: Dims, keep: int) -> tuple[Dims, Dims] | None:
    """Divide dimensions into those of the first `keep` and the others; None if one straddles."""
    if keep == 1:
        return (), dims
    total = 1
    for at, (extent, stride) in enumerate(dims):
        if total == keep:
            return dims[:at], dims[at:]
        if keep % (total * extent):
            first, rest = divmod(keep, total)
            if rest or extent % first:
                return None
            inner = extent // first
            return (*dims[:at], (first, stride * inner)), ((inner, stride), *dims[at + 1 :])
        total *= extent
    return (dims, ()) if total == keep else None
