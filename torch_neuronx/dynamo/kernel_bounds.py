"""Which elements a loop kernel may touch: interval arithmetic over its expressions.

Machine code has no bounds checks, so what a kernel touches is worked out before it is compiled, and
compared with the memory it is given. Places that depend on data count with the whole range of what
the data can be; clamps, remainders and masks narrow it. A kernel whose places cannot be bounded is
refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from neuronxcc.codegen.loop import Access, Kernel, Scalar, scalars
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.neff.check import check_kernel

Range = tuple[int, int]  # least and greatest value; empty if the first is the larger

_FARTHEST = 1 << 46  # elements; nothing that is bounded by anything reaches so far
_WIDEST: Range = (-(1 << 63), (1 << 64) - 1)


@dataclass(frozen=True, slots=True)
class Reach:
    """What a kernel does to one slot: elements [low, high), relative to the slot's pointer.

    `low == high`: nothing.
    """

    low: int
    high: int
    written: bool


@functools.lru_cache(maxsize=4096)
def reaches(kernel: Kernel) -> tuple[Reach, ...]:
    """The reach of every slot; for a tile slot one that is empty.

    An access whose place depends on data in a way that is not understood reaches everything its
    index type can express.

    Raises:
        ValueError: The parts of the kernel do not fit each other.
    """
    check_kernel(kernel)
    bounds = _Bounds(kernel)
    low = [0] * len(kernel.slots)
    high = [0] * len(kernel.slots)
    written = [False] * len(kernel.slots)
    empty = any(dim.extent == 0 for dim in kernel.dims)

    def note(access: Access, mask: Scalar | None) -> None:
        first, last = (0, -1) if empty else bounds.places(access, mask)
        if first > last or kernel.slots[access.slot].tile:
            return
        at = access.slot
        if low[at] == high[at]:
            low[at], high[at] = first, last + 1
        else:
            low[at], high[at] = min(low[at], first), max(high[at], last + 1)

    for scalar in scalars(kernel):
        if scalar.access is not None:
            note(scalar.access, scalar.srcs[0] if scalar.srcs else None)
    for store in kernel.stores:
        note(store.access, store.mask)
        written[store.access.slot] = True
    return tuple(map(Reach, low, high, written))


def bounded(kernel: Kernel) -> tuple[Reach, ...]:
    """The reach of every slot, see `reaches`.

    Raises:
        ValueError: Nothing bounds what it reads or writes, or its parts do not fit each other.
    """
    found = reaches(kernel)
    for number, reach in enumerate(found):
        if max(-reach.low, reach.high) > _FARTHEST:
            raise ValueError(
                f"kernel {kernel.name}: nothing keeps its index into slot {number} inside memory"
            )
    return found


def _full(dtype: DType) -> Range:
    if dtype is DType.PRED:
        return 0, 1
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return int(info.min), int(info.max)
    return _WIDEST


def _meet(a: Range, b: Range) -> Range:
    return max(a[0], b[0]), min(a[1], b[1])


def _hull(values: list[int]) -> Range:
    return min(values), max(values)


def _products(a: Range, b: Range) -> Range:
    return _hull([x * y for x in a for y in b])


def _quotients(a: Range, b: Range) -> Range | None:
    if b[0] <= 0 <= b[1]:
        return None
    # Rounds toward zero; the extremes lie at the ends of both ranges.
    return _hull([abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x in a for y in b])


def _remainders(a: Range, b: Range) -> Range | None:
    most = max(abs(b[0]), abs(b[1])) - 1
    if b[0] <= 0 <= b[1]:
        return None
    if a[0] >= 0:
        return 0, min(a[1], most)
    return max(a[0], -most), min(max(a[1], 0), most)


def _ands(a: Range, b: Range) -> Range | None:
    # x & y with a y that is not negative lies between 0 and y.
    tops = [r[1] for r in (a, b) if r[0] >= 0]
    return (0, min(tops)) if tops else None


def _sizes(a: Range) -> Range:
    spans = a[0] <= 0 <= a[1]
    return (0 if spans else min(abs(a[0]), abs(a[1]))), max(abs(a[0]), abs(a[1]))


def _clamped(least: Range, x: Range, most: Range) -> Range:
    return min(max(least[0], x[0]), most[0]), min(max(least[1], x[1]), most[1])


# The exact values of an operator from those of its operands; None: nothing can be said.
_RULES: dict[Op, Callable[..., Range | None]] = {
    Op.ADD: lambda a, b: (a[0] + b[0], a[1] + b[1]),
    Op.SUBTRACT: lambda a, b: (a[0] - b[1], a[1] - b[0]),
    Op.MULTIPLY: _products,
    Op.DIVIDE: _quotients,
    Op.REMAINDER: _remainders,
    Op.MAXIMUM: lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    Op.MINIMUM: lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    Op.AND: _ands,
    Op.NEGATE: lambda a: (-a[1], -a[0]),
    Op.ABS: _sizes,
    Op.SELECT: lambda _, a, b: _hull([*a, *b]),
    Op.CLAMP: _clamped,
    Op.CONVERT: lambda a: a,
}

# x <direction> y: the same said of y.
_MIRROR = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "EQ": "EQ", "NE": "NE"}
_NEGATION = {"LT": "GE", "GE": "LT", "LE": "GT", "GT": "LE", "EQ": "NE", "NE": "EQ"}


@dataclass(frozen=True, slots=True)
class _Linear:
    """constant + sum(factors[d] * position along d); no factor is 0."""

    factors: Mapping[int, int]
    constant: int

    def plus(self, other: _Linear, sign: int = 1) -> _Linear:
        factors = dict(self.factors)
        for dim, factor in other.factors.items():
            factors[dim] = factors.get(dim, 0) + sign * factor
        kept = {dim: factor for dim, factor in factors.items() if factor}
        return _Linear(kept, self.constant + sign * other.constant)

    def times(self, other: _Linear) -> _Linear | None:
        if other.factors:
            return None if self.factors else other.times(self)
        by = other.constant
        return _Linear({d: f * by for d, f in self.factors.items() if by}, self.constant * by)


_LINEAR_OPS: dict[Op | None, Callable[..., _Linear | None]] = {
    Op.ADD: lambda a, b: a.plus(b),
    Op.SUBTRACT: lambda a, b: a.plus(b, -1),
    Op.MULTIPLY: lambda a, b: a.times(b),
    Op.CONVERT: lambda a: a,
}


def _multiple(strides: Mapping[int, int], factors: Mapping[int, int]) -> int:
    """F with strides[d] == f * factors[d] for all d of factors; 0 if there is none."""
    quotients = {divmod(strides.get(d, 0), factor) for d, factor in factors.items()}
    if len(quotients) != 1:
        return 0
    quotient, remainder = quotients.pop()
    return 0 if remainder else quotient


class _Bounds:
    """The ranges of one kernel's integer expressions, also where a mask is known to hold."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.plain: dict[Scalar, Range] = {}
        self.under: dict[Scalar, _Assumption] = {}
        self.forms: dict[Scalar, _Linear | None] = {}

    def places(self, access: Access, mask: Scalar | None) -> Range:
        """First and last element of an access."""
        if mask is None:
            known: Mapping[Scalar, Range] = {}
            memo = self.plain
        else:
            assumption = self.under.get(mask)
            if assumption is None:
                assumption = self.under[mask] = _Assumption(self, mask)
            if assumption.impossible:
                return 0, -1
            known, memo = assumption.known, assumption.memo
        low = high = access.offset
        rest = {dim: stride for dim, stride in enumerate(access.strides) if stride}
        # Sums that the mask bounds (2 * row + tap - 1 >= 0) say more than their parts.
        for scalar, bounds in known.items():
            form = self.linear(scalar)
            if form is None or len(form.factors) < 2:
                continue
            factor = _multiple(rest, form.factors)
            if factor:
                rest = {dim: s for dim, s in rest.items() if dim not in form.factors}
                ends = [factor * (end - form.constant) for end in bounds]
                low, high = low + min(ends), high + max(ends)
        for dim, stride in rest.items():
            first, last = self.position(dim, known)
            low, high = (
                low + min(first * stride, last * stride),
                high + max(first * stride, last * stride),
            )
        for index, stride in access.indices:
            first, last = self.range(index, known, memo)
            low, high = (
                low + min(first * stride, last * stride),
                high + max(first * stride, last * stride),
            )
        return low, high

    def linear(self, scalar: Scalar) -> _Linear | None:
        """The expression as a sum of multiples of positions, None if it is none or may wrap."""
        if scalar not in self.forms:
            self.forms[scalar] = self._linear(scalar)
        return self.forms[scalar]

    def _linear(self, scalar: Scalar) -> _Linear | None:
        if not scalar.dtype.is_integer:
            return None
        if scalar.what == "const" and isinstance(scalar.value, int):
            return _Linear({}, int(scalar.value))
        if scalar.what == "index":
            found = _Linear({scalar.dim: 1}, 0)
        elif scalar.op in _LINEAR_OPS:
            parts = [self.linear(src) for src in scalar.srcs]
            if any(part is None for part in parts):
                return None
            made = _LINEAR_OPS[scalar.op](*parts)
            if made is None:
                return None
            found = made
        else:
            return None
        low = high = found.constant
        for dim, factor in found.factors.items():
            most = factor * (self.kernel.dims[dim].extent - 1)
            low, high = low + min(0, most), high + max(0, most)
        full = _full(scalar.dtype)
        return found if full[0] <= low and high <= full[1] else None

    def position(self, dim: int, known: Mapping[Scalar, Range]) -> Range:
        """The positions along a dimension."""
        result = (0, self.kernel.dims[dim].extent - 1)
        for scalar, found in known.items():
            if scalar.what == "index" and scalar.dim == dim:
                result = _meet(result, found)
        return result

    def range(
        self, scalar: Scalar, known: Mapping[Scalar, Range], memo: dict[Scalar, Range]
    ) -> Range:
        """The values of an expression."""
        stack = [scalar]
        while stack:
            top = stack[-1]
            if top in memo:
                stack.pop()
                continue
            missing = [src for src in self._inputs(top) if src not in memo]
            if missing:
                stack += missing
                continue
            memo[top] = _meet(self._compute(top, known, memo), known.get(top, _WIDEST))
            stack.pop()
        return memo[scalar]

    @staticmethod
    def _inputs(scalar: Scalar) -> tuple[Scalar, ...]:
        if scalar.what != "op" or not (scalar.dtype.is_integer or scalar.dtype is DType.PRED):
            return ()
        return scalar.srcs

    def _compute(
        self, scalar: Scalar, known: Mapping[Scalar, Range], memo: dict[Scalar, Range]
    ) -> Range:
        full = _full(scalar.dtype)
        if scalar.what == "const" and isinstance(scalar.value, int):
            return int(scalar.value), int(scalar.value)
        if scalar.what == "index":
            return self.position(scalar.dim, known)
        if scalar.what == "arg":
            extents = [d.extent for d in self.kernel.dims]
            return 0, max(max(extents) - 1, 0)
        if not self._inputs(scalar):
            return full
        rule = None if scalar.op is None else _RULES.get(scalar.op)
        found = None if rule is None else rule(*(memo[src] for src in scalar.srcs))
        # Arithmetic that leaves the type wraps around.
        inside = found is not None and full[0] <= found[0] and found[1] <= full[1]
        return found if found is not None and inside else full


class _Assumption:
    """What is known of a kernel's expressions where a mask is true."""

    def __init__(self, bounds: _Bounds, mask: Scalar) -> None:
        self.bounds = bounds
        self.known: dict[Scalar, Range] = {}
        self.memo: dict[Scalar, Range] = {}
        self.impossible = False
        self._assume(mask, holds=True)

    def _assume(self, mask: Scalar, *, holds: bool) -> None:
        if mask.what == "const":
            self.impossible |= bool(mask.value) is not holds
        elif mask.op is Op.NOT and mask.dtype is DType.PRED:
            self._assume(mask.srcs[0], holds=not holds)
        elif (mask.op is Op.AND and holds) or (mask.op is Op.OR and not holds):
            for src in mask.srcs:
                self._assume(src, holds=holds)
        elif mask.op is Op.COMPARE and mask.srcs[0].dtype.is_integer:
            direction = mask.direction if holds else _NEGATION[mask.direction]
            left, right = mask.srcs
            self._compare(left, direction, right)
            self._compare(right, _MIRROR[direction], left)

    def _compare(self, scalar: Scalar, direction: str, other: Scalar) -> None:
        low, high = self.bounds.range(other, {}, self.bounds.plain)
        limits = {
            "LT": (_WIDEST[0], high - 1),
            "LE": (_WIDEST[0], high),
            "GT": (low + 1, _WIDEST[1]),
            "GE": (low, _WIDEST[1]),
            "EQ": (low, high),
            "NE": _WIDEST,
        }
        self._narrow(scalar, limits[direction])

    def _narrow(self, scalar: Scalar, to: Range) -> None:
        """Notes a range, and what follows from it for what the expression is computed from."""
        before = self.bounds.range(scalar, {}, self.bounds.plain)
        now = _meet(self.known.get(scalar, before), to)
        self.known[scalar] = now
        if now[0] > now[1]:
            self.impossible = True
            return
        if scalar.what != "op":
            return
        if scalar.op is Op.CONVERT and scalar.srcs[0].dtype.is_integer:
            inner = self.bounds.range(scalar.srcs[0], {}, self.bounds.plain)
            if before == inner:  # nothing wrapped around
                self._narrow(scalar.srcs[0], now)
        elif scalar.op in (Op.ADD, Op.SUBTRACT):
            self._narrow_sum(scalar, now)
        elif scalar.op is Op.MULTIPLY:
            self._narrow_product(scalar, now)

    def _narrow_sum(self, scalar: Scalar, now: Range) -> None:
        left, right = scalar.srcs
        a, b = (self.bounds.range(s, {}, self.bounds.plain) for s in scalar.srcs)
        exact = _RULES[Op.ADD if scalar.op is Op.ADD else Op.SUBTRACT](a, b)
        if exact != self.bounds.range(scalar, {}, self.bounds.plain):
            return  # it may wrap around
        if scalar.op is Op.ADD:
            self._narrow(left, (now[0] - b[1], now[1] - b[0]))
            self._narrow(right, (now[0] - a[1], now[1] - a[0]))
        else:
            self._narrow(left, (now[0] + b[0], now[1] + b[1]))
            self._narrow(right, (a[0] - now[1], a[1] - now[0]))

    def _narrow_product(self, scalar: Scalar, now: Range) -> None:
        a, b = (self.bounds.range(s, {}, self.bounds.plain) for s in scalar.srcs)
        if _products(a, b) != self.bounds.range(scalar, {}, self.bounds.plain):
            return
        for src, factor in ((scalar.srcs[0], b), (scalar.srcs[1], a)):
            if factor[0] != factor[1] or factor[0] == 0:
                continue
            by = factor[0]
            least, most = now if by > 0 else now[::-1]
            self._narrow(src, (-(-least // by), most // by))
