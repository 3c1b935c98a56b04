"""The functions that a tape's instructions call: loop kernels, products, native functions.

Each of them says how many slots it has, what it touches of them, how it reads, and what runs it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from neuronxcc.codegen.bounds import bounded
from neuronxcc.codegen.check import stores_to
from neuronxcc.codegen.loop import Kernel, scalars
from neuronxcc.ir.arithmetic import Array, cast
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.program.errors import NeffError
from neuronxcc.program.memory import as_elements
from neuronxcc.program.step import Code, Maker, Spec
from neuronxcc.program.words import dims_text, numbers

if TYPE_CHECKING:
    from neuronxcc.program.checker import Checker
    from neuronxcc.program.natives.table import Native

MOST_EXTENT = 1 << 24  # of a product of a tape

_OPERANDS = (DType.F32, DType.BF16, DType.F16)
_RESULTS = (DType.F32, DType.BF16)

# Of an operator on one element, and how many others an exponential or a gathered element is worth.
_NANOSECONDS, _FUNCTION, _GATHERED = 0.025, 20, 20
_FUNCTIONS = frozenset(op for op in Group.UNARY | {Op.POWER, Op.ATAN2, Op.DIVIDE} if op not in {
    Op.ABS, Op.NEGATE, Op.SIGN, Op.CEIL, Op.FLOOR, Op.ROUND_EVEN, Op.TRUNC, Op.NOT,
})  # fmt: skip


class SlotReach(NamedTuple):
    """The bytes [low, high) from a slot's pointer that a function touches; none if equal."""

    low: int
    high: int
    written: bool


@dataclass(frozen=True, slots=True)
class TapeLoop:
    """Runs a loop kernel.

    Attributes:
        kernel: Over one chunk if `lanes`, else over everything.
        lanes: It works lane by lane: it is called once per chunk of the group, and the pointer of
            slot i moves on by `advance[i]` bytes from chunk to chunk. What it does to one chunk
            and what other instructions of the group do to another one do not touch.
        advance: One number per slot, none if not `lanes`.
    """

    kernel: Kernel
    lanes: bool = False
    advance: tuple[int, ...] = ()

    def slot_count(self) -> int:
        """How many slots it has."""
        return len(self.kernel.slots)

    def reach(self, checker: Checker) -> tuple[SlotReach, ...]:
        """The bytes that it touches of its slots; NeffError if its parts do not fit each other."""
        touched = checker.kernel(self.kernel)
        if any(slot.tile for slot in self.kernel.slots):
            raise NeffError(f"kernel {self.kernel.name!r} has a tile")
        found = []
        for number, slot in enumerate(self.kernel.slots):
            low, high = touched.get(number, (0, -1))
            size = slot.dtype.itemsize
            written = stores_to(self.kernel, number)
            found.append(SlotReach(low * size, (high + 1) * size, written))
        return tuple(found)

    def text(self) -> str:
        """How it reads."""
        kernel = self.kernel
        return f"loop {kernel.name} {dims_text(kernel)}{_lanes_text(self.lanes, self.advance)}"

    def run(self, slots: Sequence[Array]) -> None:
        """Do it in NumPy, on the bytes from each slot's pointer on."""
        # Who loads a program to run it natively does not wait for the reference.
        from neuronxcc.codegen.reference import run_kernel  # noqa: PLC0415

        pairs = zip(self.kernel.slots, slots, strict=True)
        run_kernel(self.kernel, [as_elements(data, slot.dtype.numpy) for slot, data in pairs])

    def spec(self, maker: Maker, code: Code | None) -> Spec:
        """It for the native executor; `code` is what was compiled for it."""
        kernel = self.kernel
        if any(slot.tile for slot in kernel.slots):
            raise ValueError(f"kernel {kernel.name} has a tile, but is run alone")
        assert code is not None
        function = maker.function(code)
        sizes = [slot.dtype.itemsize for slot in kernel.slots]
        return {
            "kind": "loop",
            "name": kernel.name,
            "address": function.address,
            "items": function.items,
            "grain": function.grain,
            "scratch_bytes": function.scratch_bytes,
            "nanoseconds": _nanoseconds(kernel),
            "reach": [
                (reach.low * size, reach.high * size, reach.written)
                for reach, size in zip(bounded(kernel), sizes, strict=True)
            ],
            "lanes": self.lanes,
            "advance": self.advance,
        }


@dataclass(frozen=True, slots=True)
class TapeProduct:
    """out[M, N] = a[K, M]^T b[K, N], or += if `accumulate`; slots: out, a, b.

    Sums are float32. They are added to the float32 value of `out` before they are rounded to it.

    Attributes:
        m, n, k: Extents.
        dtype: Of a and b: float32, bfloat16 or float16.
        out_dtype: Of out: float32 or bfloat16.
        out_strides: Elements from one of M, and from one of N, to the next.
        a_strides: The same of K and M.
        b_strides: The same of K and N.
        accumulate: Add to what is there.
    """

    m: int
    n: int
    k: int
    dtype: DType
    out_dtype: DType
    out_strides: tuple[int, int]
    a_strides: tuple[int, int]
    b_strides: tuple[int, int]
    accumulate: bool = False

    @property
    def lanes(self) -> bool:
        """It never works lane by lane."""
        return False

    @property
    def advance(self) -> tuple[int, ...]:
        """So no slot moves on."""
        return ()

    def slot_count(self) -> int:
        """How many slots it has."""
        return 3

    def reach(self, checker: Checker | None = None) -> tuple[SlotReach, ...]:
        """The bytes that it touches of its slots; NeffError if its parts do not fit each other."""
        del checker
        f = self
        if not all(1 <= extent <= MOST_EXTENT for extent in (f.m, f.n, f.k)):
            raise NeffError(f"a product of {f.m} x {f.n} x {f.k}")
        if f.dtype not in _OPERANDS or f.out_dtype not in _RESULTS:
            raise NeffError(f"a product of {f.dtype.value} to {f.out_dtype.value}")
        found = []
        for dtype, shape, strides, written in (
            (f.out_dtype, (f.m, f.n), f.out_strides, True),
            (f.dtype, (f.k, f.m), f.a_strides, False),
            (f.dtype, (f.k, f.n), f.b_strides, False),
        ):
            if not all(0 <= stride <= MOST_EXTENT for stride in strides):
                raise NeffError(f"a product with strides of {list(strides)}")
            if written and any(s == 0 and n > 1 for s, n in zip(strides, shape, strict=True)):
                raise NeffError("a product that writes several elements to one place")
            last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
            found.append(SlotReach(0, (last + 1) * dtype.itemsize, written))
        return tuple(found)

    def text(self) -> str:
        """How it reads."""
        sign = "+=" if self.accumulate else "="
        out, a, b = (
            f"{dtype.value}[{','.join(map(str, shape))}]{{{','.join(map(str, strides))}}}"
            for dtype, shape, strides in (
                (self.out_dtype, (self.m, self.n), self.out_strides),
                (self.dtype, (self.k, self.m), self.a_strides),
                (self.dtype, (self.k, self.n), self.b_strides),
            )
        )
        return f"product {out} {sign} {a}^T @ {b}"

    def run(self, slots: Sequence[Array]) -> None:
        """Do it in NumPy, on the bytes from each slot's pointer on."""
        f = self
        out, a, b = slots

        def window(
            data: Array, dtype: np.dtype, shape: tuple[int, int], strides: tuple[int, int]
        ) -> Array:
            steps = tuple(stride * dtype.itemsize for stride in strides)
            return np.ndarray(shape, dtype, data, 0, steps)

        left = window(a, f.dtype.numpy, (f.k, f.m), f.a_strides).astype(np.float64)
        right = window(b, f.dtype.numpy, (f.k, f.n), f.b_strides).astype(np.float64)
        target = window(out, f.out_dtype.numpy, (f.m, f.n), f.out_strides)
        sums = left.T @ right
        if f.accumulate:
            sums = target.astype(np.float64) + sums
        target[...] = cast(sums.astype(np.float32), f.out_dtype)

    def spec(self, maker: Maker, code: Code | None) -> Spec:
        """It for the native executor."""
        del code
        self.reach()  # the executor has its types
        return {
            "kind": "product",
            "name": f"product {self.m}x{self.n}x{self.k}",
            "shape": (self.m, self.n, self.k),
            "strides": (*self.out_strides, *self.a_strides, *self.b_strides),
            "dtype": maker.dtype(self.dtype),
            "out_dtype": maker.dtype(self.out_dtype),
            "accumulate": self.accumulate,
            "lanes": self.lanes,
            "advance": self.advance,
        }


@dataclass(frozen=True, slots=True)
class TapeNative:
    """Calls a function of the fixed table `neuronxcc.program.natives.NATIVES`.

    Attributes:
        name: Of the function; it says how many slots there are and what it touches of each.
        params: Integers that it takes.
        lanes, advance: As of `TapeLoop`.
    """

    name: str
    params: tuple[int, ...] = ()
    lanes: bool = False
    advance: tuple[int, ...] = ()

    def slot_count(self) -> int:
        """How many slots it has; NeffError if there is no such function."""
        return len(self._native().declare(self.params))

    def _native(self) -> Native:
        from neuronxcc.program.natives import native  # noqa: PLC0415 - few programs have any

        return native(self.name)

    def reach(self, checker: Checker | None = None) -> tuple[SlotReach, ...]:
        """The bytes that it touches of its slots; NeffError if its parts do not fit each other."""
        del checker
        declared = self._native().declare(self.params)
        return tuple(SlotReach(slot.low, slot.high, slot.written) for slot in declared)

    def text(self) -> str:
        """How it reads."""
        lanes = _lanes_text(self.lanes, self.advance)
        return f"native {self.name}({numbers(self.params)}){lanes}"

    def run(self, slots: Sequence[Array]) -> None:
        """Do it in NumPy, on the bytes from each slot's pointer on."""
        self._native().run(self.params, slots)

    def spec(self, maker: Maker, code: Code | None) -> Spec:
        """It for the native executor."""
        del maker, code
        return {
            "kind": "native",
            "name": self.name,
            "native": self.name,
            "params": self.params,
            "lanes": self.lanes,
            "advance": self.advance,
        }


TapeFunction = TapeLoop | TapeProduct | TapeNative


def _lanes_text(lanes: bool, advance: tuple[int, ...]) -> str:
    return f" lanes, advance {numbers(advance)}" if lanes else ""


def _nanoseconds(kernel: Kernel) -> float:
    """Roughly what a kernel takes on one thread, in the cache: is it worth several?"""
    work = len(kernel.stores)
    for scalar in scalars(kernel):
        if scalar.access is not None and scalar.access.indices:
            work += _GATHERED
        elif scalar.op in _FUNCTIONS:
            work += _FUNCTION
        elif scalar.what not in ("const", "index"):
            work += 1
    return math.prod(dim.extent for dim in kernel.dims) * work * _NANOSECONDS
