"""Which elements a loop kernel may touch: interval arithmetic over its expressions.

Machine code has no bounds checks, so what a kernel touches is worked out before it is compiled, and
compared with the memory it is given. Places that depend on data count with the whole range of what
the data can be; clamps, remainders and masks narrow it. A kernel whose places cannot be bounded is
refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from neuronxcc.codegen.check import check_kernel
from neuronxcc.codegen.loop import Access, Kernel, Scalar, noted, scalars
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op

Range = tuple[int, int]  # least and greatest value; empty if the first is the larger

_FARTHEST = 1 << 46  # elements; nothing that is bounded by anything reaches so far
_ROUNDS = 4  # of conclusions from some conditions of a mask to others
_WIDEST: Range = (-(1 << 63), (1 << 64) - 1)


@dataclass(frozen=True, slots=True)
class Reach:
    """The reach of a kernel into one slot: elements [low, high), relative to the slot's pointer.

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
    low = [0] * len(kernel.slots)
    high = [0] * len(kernel.slots)
    written = [False] * len(kernel.slots)
    for access, _, (first, last) in places(kernel):
        at = access.slot
        if first > last or kernel.slots[at].tile:
            continue
        if low[at] == high[at]:
            low[at], high[at] = first, last + 1
        else:
            low[at], high[at] = min(low[at], first), max(high[at], last + 1)
    for store in kernel.stores:
        written[store.access.slot] = True
    for access in noted(kernel):
        written[access.slot] = True
    return tuple(map(Reach, low, high, written))


def places(kernel: Kernel) -> Iterator[tuple[Access, Scalar | None, Range]]:
    """Every access with its condition, and the first and last element that it may reach."""
    bounds = _Bounds(kernel)
    made: list[tuple[Access, Scalar | None]] = []
    for scalar in scalars(kernel):
        if scalar.access is not None:
            condition = scalar.srcs[0] if scalar.what == "load" and scalar.srcs else None
            made.append((scalar.access, condition))
    made += [(store.access, store.mask) for store in kernel.stores]
    empty = any(dim.extent == 0 for dim in kernel.dims)
    for access, mask in made:
        yield access, mask, (0, -1) if empty else bounds.places(access, mask)


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


# What a sum is made of: the position along a dimension, or an expression that is no sum.
_Term = int | Scalar


@dataclass(frozen=True, slots=True)
class _Linear:
    """constant + sum(factors[t] * t); no factor is 0."""

    factors: Mapping[_Term, int]
    constant: int

    def plus(self, other: _Linear, sign: int = 1) -> _Linear:
        factors = dict(self.factors)
        for term, factor in other.factors.items():
            factors[term] = factors.get(term, 0) + sign * factor
        kept = {term: factor for term, factor in factors.items() if factor}
        return _Linear(kept, self.constant + sign * other.constant)

    def times(self, other: _Linear) -> _Linear | None:
        if other.factors:
            return None if self.factors else other.times(self)
        by = other.constant
        return _Linear({t: f * by for t, f in self.factors.items() if by}, self.constant * by)


_LINEAR_OPS: dict[Op | None, Callable[..., _Linear | None]] = {
    Op.ADD: lambda a, b: a.plus(b),
    Op.SUBTRACT: lambda a, b: a.plus(b, -1),
    Op.MULTIPLY: lambda a, b: a.times(b),
    Op.CONVERT: lambda a: a,
}


def _multiple(strides: Mapping[_Term, int], factors: Mapping[_Term, int]) -> int:
    """F with strides[t] == f * factors[t] for all t of factors; 0 if there is none."""
    quotients = {divmod(strides.get(t, 0), factor) for t, factor in factors.items()}
    if len(quotients) != 1:
        return 0
    quotient, remainder = quotients.pop()
    return 0 if remainder else quotient


def _shares(of: Range, by: int) -> Range:
    """The integers whose product with a number, not 0, lies in a range."""
    least, most = of if by > 0 else of[::-1]
    return -(-least // by), most // by


class _Bounds:
    """The ranges of one kernel's integer expressions, also where a mask is known to hold."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.plain: dict[Scalar, Range] = {}
        self.under: dict[Scalar, _Assumption] = {}
        self.forms: dict[Scalar, _Linear | None] = {}
        self.indices = {s.dim: s for s in scalars(kernel) if s.what == "index"}

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
        given: dict[_Term, int] = {dim: s for dim, s in enumerate(access.strides) if s}
        low, high = self._sum(_Linear(given, access.offset), known, memo)
        if not access.indices:
            return low, high
        # Once with every index by itself, and once with what the indices are sums of.
        whole = _Linear(given, access.offset)
        for index, stride in access.indices:
            first, last = self.range(index, known, memo)
            low, high = (
                low + min(first * stride, last * stride),
                high + max(first * stride, last * stride),
            )
            form = self.linear(index) or _Linear({index: 1}, 0)
            whole = whole.plus(form.times(_Linear({}, stride)) or form)
        return _meet((low, high), self._sum(whole, known, memo))

    def _sum(
        self, form: _Linear, known: Mapping[Scalar, Range], memo: dict[Scalar, Range]
    ) -> Range:
        """The values of a sum where something is known of its parts, and of sums of them."""
        # Sums that the mask bounds (2 * row + tap - 1 >= 0) say more than their parts. Those that
        # share positions exclude each other, so each gets its turn to come first.
        sums = []
        for scalar, bounds in known.items():
            part = self.linear(scalar)
            if part is not None and len(part.factors) > 1 and _multiple(form.factors, part.factors):
                # The parts may be bounded more closely, by other conditions of the mask.
                sums.append((part, _meet(bounds, self.total(part, known))))
        found = self._parts(form, sums, known, memo)
        for first in sums[1:]:
            found = _meet(found, self._parts(form, [first, *sums], known, memo))
        return found

    def _parts(
        self,
        form: _Linear,
        sums: list[tuple[_Linear, Range]],
        known: Mapping[Scalar, Range],
        memo: dict[Scalar, Range],
    ) -> Range:
        """The values of a sum as that of some sums, the first that fit, and of what is left."""
        low = high = form.constant
        rest = dict(form.factors)
        for part, close in sums:
            factor = _multiple(rest, part.factors)
            if factor:
                rest = {term: s for term, s in rest.items() if term not in part.factors}
                ends = [factor * (end - part.constant) for end in close]
                low, high = low + min(ends), high + max(ends)
        for term, stride in rest.items():
            found = (
                self.position(term, known)
                if isinstance(term, int)
                else self.range(term, known, memo)
            )
            ends = [stride * end for end in found]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def linear(self, scalar: Scalar) -> _Linear | None:
        """The expression as a sum of multiples of terms, None if it is no integer.

        What may wrap around is a term by itself.
        """
        if scalar not in self.forms:
            self.forms[scalar] = self._linear(scalar)
        return self.forms[scalar]

    def _linear(self, scalar: Scalar) -> _Linear | None:
        if not scalar.dtype.is_integer:
            return None
        if scalar.what == "const" and isinstance(scalar.value, int):
            return _Linear({}, int(scalar.value))
        if scalar.what == "index":
            found: _Linear | None = _Linear({scalar.dim: 1}, 0)
        else:
            found = self._composed(scalar)
        full = _full(scalar.dtype)
        if found is not None:
            low, high = self.total(found, {})
            if full[0] <= low and high <= full[1]:
                return found
        return _Linear({scalar: 1}, 0)

    def _composed(self, scalar: Scalar) -> _Linear | None:
        """The sum that an operator makes of the sums of its operands, None if it makes none."""
        if scalar.op not in _LINEAR_OPS:
            return None
        parts = [self.linear(src) for src in scalar.srcs]
        return None if any(part is None for part in parts) else _LINEAR_OPS[scalar.op](*parts)

    def total(
        self, form: _Linear, known: Mapping[Scalar, Range], without: _Term | None = None
    ) -> Range:
        """The values of a sum, or of what is left of it without one term."""
        low = high = form.constant
        for term, factor in form.factors.items():
            if term != without:
                ends = [factor * end for end in self._term(term, known)]
                low, high = low + min(ends), high + max(ends)
        return low, high

    def _term(self, term: _Term, known: Mapping[Scalar, Range]) -> Range:
        if isinstance(term, int):
            return self.position(term, known)
        return _meet(self.range(term, {}, self.plain), known.get(term, _WIDEST))

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
    """The bounds of a kernel's expressions where a mask is true."""

    def __init__(self, bounds: _Bounds, mask: Scalar) -> None:
        self.bounds = bounds
        self.known: dict[Scalar, Range] = {}
        self.memo: dict[Scalar, Range] = {}
        self.impossible = False
        self._assume(mask, holds=True)
        self._propagate()

    def _propagate(self) -> None:
        """Let every sum that is known narrow its positions, given what is known of the others."""
        indices = self.bounds.indices
        forms = [(s, self.bounds.linear(s)) for s in self.known]
        sums = [(s, form) for s, form in forms if form is not None and len(form.factors) > 1]
        for _ in range(_ROUNDS):
            before = dict(self.known)
            for scalar, form in sums:
                low, high = self.known[scalar]
                for term, factor in form.factors.items():
                    least, most = self.bounds.total(form, self.known, without=term)
                    ends = low - most, high - least
                    part = indices.get(term) if isinstance(term, int) else term
                    if part is not None and not self.impossible:
                        self._narrow(part, _shares(ends, factor))
            if self.impossible or self.known == before:
                return

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
            self._narrow(src, _shares(now, factor[0]))
