"""Hypothesis strategies of random loop kernels with buffers, whose results are exact.

Values are small whole numbers, so sums do not depend on their order and results can be compared bit
by bit; rounding to narrow types is done at the same places by everybody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Access, Dim, Kernel, Kind, Scalar, Slot, Store
from neuronxcc.ir import DType, Op

Array = np.ndarray[Any, np.dtype[Any]]

FLOATS = (DType.F32, DType.BF16, DType.F16, DType.F64)
DTYPES = (*FLOATS, DType.S32, DType.S64, DType.U8, DType.S16, DType.PRED, DType.C64)
EXTENTS = st.one_of(
    st.integers(1, 9), st.sampled_from([15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 70, 100, 129])
)
MOST_POINTS = 6000


@dataclass
class Case:
    """A kernel and the buffers it is run on."""

    kernel: Kernel
    buffers: list[Array]

    def copies(self) -> list[Array]:
        """Fresh buffers of equal content."""
        return [b.copy() for b in self.buffers]


@dataclass
class Maker:
    """A case under construction."""

    draw: st.DrawFn
    dims: tuple[Dim, ...]
    rng: np.random.Generator
    slots: list[Slot] = field(default_factory=list)
    buffers: list[Array] = field(default_factory=list)

    def strides(self, over: list[int]) -> tuple[tuple[int, ...], int, int]:
        """Strides of an array over these dimensions in any order, offset and size of its buffer."""
        order = self.draw(st.permutations(over)) if self.draw(st.booleans()) else over
        strides, step, offset = [0] * len(self.dims), 1, self.draw(st.integers(0, 3))
        for dim in reversed(order):
            extent = self.dims[dim].extent
            strides[dim] = step
            if self.draw(st.sampled_from([False] * 5 + [True])):
                strides[dim] = -step
                offset += (extent - 1) * step
            step *= extent
            if self.draw(st.sampled_from([False] * 5 + [True])):
                step += self.draw(st.integers(1, 3))
        size = offset + 1 + sum((self.dims[d].extent - 1) * max(strides[d], 0) for d in over)
        return tuple(strides), offset, size

    def add(self, dtype: DType, size: int, low: int = -3, high: int = 4) -> int:
        """A slot with a buffer of small numbers."""
        if dtype in (DType.PRED, DType.U8):
            low = 0
        numbers = self.rng.integers(low, 2 if dtype is DType.PRED else high, size)
        self.slots.append(Slot(dtype))
        self.buffers.append(numbers.astype(dtype.numpy))
        return len(self.slots) - 1

    def some_dims(self) -> list[int]:
        return [d for d in range(len(self.dims)) if self.draw(st.sampled_from([True, True, False]))]

    def load(self, dtype: DType) -> Scalar:
        """A load; sometimes masked, sometimes through an index tensor."""
        strides, offset, size = self.strides(self.some_dims())
        kind = self.draw(st.sampled_from(["plain"] * 4 + ["mask", "index"]))
        if kind == "index":
            table = self.draw(st.integers(1, 8))
            index_strides, index_offset, index_size = self.strides(self.some_dims())
            index_type = self.draw(st.sampled_from([DType.S32, DType.S64]))
            indices = self.add(index_type, index_size, 0, table)
            index = build.load(index_type, indices, index_strides, index_offset)
            slot = self.add(dtype, size * table)
            return build.load(dtype, slot, strides, offset, indices=[(index, size)])
        slot = self.add(dtype, size)
        if kind == "plain" or not self.dims:
            return build.load(dtype, slot, strides, offset)
        dim = self.draw(st.integers(0, len(self.dims) - 1))
        bound = self.draw(st.integers(0, self.dims[dim].extent))
        mask = build.compare("LT", build.index(dim), bound)
        return build.load(dtype, slot, strides, offset, mask=mask, other=1)

    def convert(self, value: Scalar, dtype: DType) -> Scalar:
        return build.convert(value, dtype)

    def combine(self, a: Scalar, b: Scalar) -> Scalar:
        """Two values of one type by an operator that stays exact."""
        if a.dtype is DType.PRED:
            return build.op(self.draw(st.sampled_from([Op.AND, Op.OR, Op.XOR])), a, b)
        ops = [Op.ADD, Op.SUBTRACT]
        if not a.dtype.is_complex:
            ops += [Op.MAXIMUM, Op.MINIMUM]
            if self.draw(st.sampled_from([False, False, True])):
                return build.select(build.compare("LT", a, b), a, b)
        return build.op(self.draw(st.sampled_from(ops)), a, b)


@st.composite
def kernels(draw: st.DrawFn, form: str = "any") -> Case:
    """A kernel of a form: "pointwise", "rows", "columns", or any of them."""
    if form == "any":
        form = draw(st.sampled_from(["pointwise", "rows", "columns"]))
    dims = _dims(draw, form)
    maker = Maker(draw, dims, np.random.default_rng(draw(st.integers(0, 2**32 - 1))))
    reduced = [d for d, dim in enumerate(dims) if dim.kind is Kind.REDUCE]
    dtype = draw(st.sampled_from(DTYPES))
    values = [maker.load(dtype)]
    for _ in range(draw(st.integers(0, 5))):
        values += _grown(maker, values, reduced)
    if reduced and all(v.what not in ("reduce", "arg") for v in values):
        values.append(_reduction(draw, values[-1], reduced))
    stored = [*draw(st.lists(st.sampled_from(values), max_size=2)), values[-1]]
    stores = [_store(maker, value, reduced) for value in stored]
    kernel = Kernel("random", dims, tuple(maker.slots), tuple(stores))
    return Case(kernel, maker.buffers)


def _grown(maker: Maker, values: list[Scalar], reduced: list[int]) -> list[Scalar]:
    """Another value made of those there are; none if the step that is drawn does not fit."""
    draw, dims, last = maker.draw, maker.dims, values[-1]
    step = draw(st.sampled_from(["load", "combine", "convert", "index", "reduce"]))
    if step == "load":
        return [maker.combine(last, maker.load(last.dtype))]
    if step == "combine":
        other = draw(st.sampled_from(values))
        return [maker.combine(last, other)] if other.dtype is last.dtype else []
    if step == "convert" and not last.dtype.is_complex:
        return [build.convert(last, draw(st.sampled_from(DTYPES[:-1])))]
    if step == "index" and dims and last.dtype not in (DType.PRED, DType.C64):
        dim = draw(st.integers(0, len(dims) - 1))
        position = build.convert(build.index(dim, DType.S32), last.dtype)
        return [maker.combine(last, position)]
    if step == "reduce" and reduced:
        return [_reduction(draw, last, reduced)]
    return []


def _dims(draw: st.DrawFn, form: str) -> tuple[Dim, ...]:
    parallel = draw(st.lists(EXTENTS, max_size=3 if form == "pointwise" else 2))
    reduced = [] if form == "pointwise" else draw(st.lists(EXTENTS, min_size=1, max_size=2))
    while _product(parallel) * _product(reduced) > MOST_POINTS:
        longest = max(parallel + reduced)
        parallel, reduced = (
            [5 if e == longest else e for e in part] for part in (parallel, reduced)
        )
    outer = [Dim(e) for e in parallel]
    inner = [Dim(e, Kind.REDUCE) for e in reduced]
    if form == "columns" and outer:
        return (*outer[:-1], *inner, outer[-1])
    return (*outer, *inner)


def _product(extents: list[int]) -> int:
    total = 1
    for extent in extents:
        total *= extent
    return total


def _reduction(draw: st.DrawFn, value: Scalar, reduced: list[int]) -> Scalar:
    if len(reduced) == 1 and not value.dtype.is_complex and draw(st.booleans()):
        return build.arg(draw(st.sampled_from([Op.MINIMUM, Op.MAXIMUM])), value, DType.S32)
    if value.dtype is DType.PRED:
        return build.reduce(draw(st.sampled_from([Op.AND, Op.OR])), value)
    ops = [Op.ADD]
    if not value.dtype.is_complex:
        ops += [Op.MINIMUM, Op.MAXIMUM]
    return build.reduce(draw(st.sampled_from(ops)), value)


def varies(value: Scalar, reduced: list[int]) -> bool:
    """Whether the value depends on the position along reduced dimensions."""
    if value.what in ("reduce", "arg"):
        return False
    if value.what == "index":
        return value.dim in reduced
    found = any(varies(s, reduced) for s in value.srcs)
    if value.access is not None:
        found |= any(value.access.strides[d] for d in reduced)
        found |= any(varies(i, reduced) for i, _ in value.access.indices)
    return found


def _store(maker: Maker, value: Scalar, reduced: list[int]) -> Store:
    over = list(range(len(maker.dims)))
    if not varies(value, reduced):
        over = [d for d in over if d not in reduced]
    strides, offset, size = maker.strides(over)
    slot = maker.add(value.dtype, size)
    mask = None
    if over and maker.draw(st.sampled_from([False] * 5 + [True])):
        dim = maker.draw(st.sampled_from(over))
        bound = maker.draw(st.integers(0, maker.dims[dim].extent))
        mask = build.compare("GE", build.index(dim), bound)
    return Store(Access(slot, strides, offset), value, mask=mask)
