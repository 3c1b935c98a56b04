"""Symbolic positions: where in a tensor a point of an iteration space looks.

An `Index` is affine: offset + sum(coefficient * term). A term is an axis of the space (an integer),
a number read from a tensor (`Value`), or the quotient or remainder of another index, which is what
a reshape needs that does not follow the axes. An `At` has an index per dimension, and conditions
under which it is inside the tensor at all (padding, concatenation).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from neuronxcc.ir.node import Node


class Value(NamedTuple):
    """The element of an integer tensor at a position, clamped into [low, high].

    `low` > `high` means that nothing is clamped (the client checks by a condition).
    """

    node: Node
    at: At
    low: int
    high: int


class Quotient(NamedTuple):
    """Rounded down: of // by, for a non-negative index."""

    of: Index
    by: int
    tag: str = "//"  # tuples of equal parts are equal, whatever their class


class Remainder(NamedTuple):
    """The remainder: of % by, for a non-negative index."""

    of: Index
    by: int
    tag: str = "%"


Term = int | Value | Quotient | Remainder


class Index(NamedTuple):
    """offset + sum(coefficient * term); terms are distinct, coefficients not 0, axes first."""

    offset: int
    terms: tuple[tuple[Term, int], ...]


class Cond(NamedTuple):
    """That low <= of < high."""

    of: Index
    low: int
    high: int


class At(NamedTuple):
    """A position of a tensor: an index per dimension, valid where all conditions hold."""

    coords: tuple[Index, ...]
    mask: tuple[Cond, ...] = ()


ZERO = Index(0, ())


class SplitNeeded(Exception):  # noqa: N818 - a request, caught by the cluster
    """To stay affine, an axis of extent e should become two of extents e / inner and inner."""

    def __init__(self, axis: int, inner: int) -> None:
        super().__init__(axis, inner)
        self.axis, self.inner = axis, inner


class Space(NamedTuple):
    """A space, for index arithmetic: the extents, and which axes may split."""

    extents: Mapping[int, int]
    splittable: bool = True
    whole: Collection[int] = ()  # axes that may not


def of_axis(axis: int) -> Index:
    """The position along an axis."""
    return Index(0, ((axis, 1),))


def constant(offset: int) -> Index:
    """A fixed position."""
    return Index(offset, ())


def of_term(term: Term) -> Index:
    """A term alone."""
    return Index(0, ((term, 1),))


def shift(index: Index, by: int) -> Index:
    """An index plus a number."""
    return Index(index.offset + by, index.terms) if by else index


def scale(index: Index, by: int) -> Index:
    """An index times a number."""
    if by == 1:
        return index
    if by == 0:
        return ZERO
    return Index(index.offset * by, tuple((t, a * by) for t, a in index.terms))


def add(lhs: Index, rhs: Index) -> Index:
    """The sum of two."""
    if not rhs.terms:
        return shift(lhs, rhs.offset)
    if not lhs.terms:
        return shift(rhs, lhs.offset)
    return weighted(((lhs, 1), (rhs, 1)))


def weighted(parts: Iterable[tuple[Index, int]]) -> Index:
    """The sum of index * coefficient."""
    offset = 0
    sums: dict[Term, int] = {}
    plain = True
    for index, factor in parts:
        if not factor:
            continue
        offset += index.offset * factor
        for term, coefficient in index.terms:
            plain = plain and isinstance(term, int)
            sums[term] = sums.get(term, 0) + coefficient * factor
    if plain:
        return Index(offset, tuple(sorted((t, a) for t, a in sums.items() if a)))
    return _recombined(offset, sums)


def _recombined(offset: int, sums: dict[Term, int]) -> Index:
    """Put (c // k) * k * a + (c % k) * a back together as c * a."""
    for term, coefficient in sums.items():
        if isinstance(term, Remainder) and coefficient:
            partner = Quotient(term.of, term.by)
            if sums.get(partner) == coefficient * term.by:
                rest = {t: a for t, a in sums.items() if t not in (term, partner)}
                return weighted(((Index(offset, tuple(rest.items())), 1), (term.of, coefficient)))
    axes = sorted((t, a) for t, a in sums.items() if a and isinstance(t, int))
    others = [(t, a) for t, a in sums.items() if a and not isinstance(t, int)]
    return Index(offset, (*axes, *others))


def bounds(index: Index, extents: Mapping[int, int]) -> tuple[int, int] | None:
    """Least and greatest value; None if a term's are not known."""
    low = high = index.offset
    for term, coefficient in index.terms:
        if isinstance(term, int):
            least, most = 0, extents[term] - 1
        elif isinstance(term, Value):
            least, most = term.low, term.high
            if least > most:
                return None
        else:
            inner = bounds(term.of, extents)
            if inner is None or inner[0] < 0:
                return None
            least, most = inner[0] // term.by, inner[1] // term.by
            if isinstance(term, Remainder):
                least, most = 0, min(term.by - 1, inner[1])
        if coefficient > 0:
            low, high = low + coefficient * least, high + coefficient * most
        else:
            low, high = low + coefficient * most, high + coefficient * least
    return low, high


def divide(index: Index, by: int, space: Space) -> tuple[Index, Index]:
    """Quotient and remainder; affine if the axes allow it.

    Raises:
        SplitNeeded: they would after that axis is split, and the space lets its axes be split.
    """
    if by == 1:
        return index, ZERO
    outer: list[tuple[Term, int]] = []
    inner: list[tuple[Term, int]] = []
    for term, coefficient in index.terms:
        if coefficient % by == 0:
            outer.append((term, coefficient // by))
        else:
            inner.append((term, coefficient))
    quotient = Index(index.offset // by, tuple(outer))
    rest = Index(index.offset % by, tuple(inner))
    limits = bounds(rest, space.extents)
    if limits is not None and limits[0] >= 0 and limits[1] < by:
        return quotient, rest
    if space.splittable:
        _ask_for_split(inner, by, space)
    if limits is not None and limits[0] >= 0:
        # Whole multiples come out, so that what a reshape put together falls apart again.
        return add(quotient, of_term(Quotient(rest, by))), of_term(Remainder(rest, by))
    return of_term(Quotient(index, by)), of_term(Remainder(index, by))


def _ask_for_split(terms: Iterable[tuple[Term, int]], by: int, space: Space) -> None:
    for term, coefficient in terms:
        if not isinstance(term, int) or term in space.whole:
            continue
        if coefficient > 0 and by % coefficient == 0:
            part = by // coefficient
            extent = space.extents[term]
            if extent > part and extent % part == 0:
                raise SplitNeeded(term, part)


def unflatten(index: Index, extents: Sequence[int], space: Space) -> tuple[Index, ...]:
    """The coordinates of a row-major position in a shape."""
    coords: list[Index] = []
    significant = [d for d, n in enumerate(extents) if n != 1]
    for position in reversed(range(len(extents))):
        extent = extents[position]
        if extent == 1:
            coords.append(ZERO)
        elif position == significant[0]:
            coords.append(index)
        else:
            index, inner = divide(index, extent, space)
            coords.append(inner)
    return tuple(reversed(coords))


def flatten(coords: Sequence[Index], extents: Sequence[int]) -> Index:
    """The row-major position of coordinates in a shape."""
    parts = []
    stride = 1
    for coordinate, extent in zip(reversed(coords), reversed(extents), strict=True):
        if extent != 1:
            parts.append((coordinate, stride))
        stride *= extent
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    return weighted(parts)


def reshape_groups(
    old: Sequence[int], new: Sequence[int]
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of ranges of dimensions, as short as can be, of as many elements; no extent is 0."""
    i = j = 0
    while i < len(old) or j < len(new):
        i0, j0 = i, j
        left = right = 1
        if i < len(old):
            left, i = old[i], i + 1
        if j < len(new):
            right, j = new[j], j + 1
        while left != right:
            if left < right:
                left, i = left * old[i], i + 1
            else:
                right, j = right * new[j], j + 1
        yield (i0, i), (j0, j)


def reshape(
    coords: Sequence[Index], old: Sequence[int], new: Sequence[int], space: Space
) -> tuple[Index, ...]:
    """Coordinates in a tensor of shape `old`, taken to those of the same element in `new`.

    Raises:
        SplitNeeded: see `divide`.
    """
    if 0 in new:  # no element, so nobody reads at these coordinates
        return (ZERO,) * len(new)
    result: list[Index] = []
    for (i0, i1), (j0, j1) in reshape_groups(old, new):
        if i1 - i0 == 1 and j1 - j0 == 1:
            result.append(coords[i0])
        else:
            flat = flatten(coords[i0:i1], old[i0:i1])
            result.extend(unflatten(flat, new[j0:j1], space))
    return tuple(result)


def axes_of(index: Index) -> set[int]:
    """The axes on which an index depends."""
    found: set[int] = set()
    for term, _ in index.terms:
        if isinstance(term, int):
            found.add(term)
        else:
            found |= axes_of_at(term.at) if isinstance(term, Value) else axes_of(term.of)
    return found


def axes_of_at(at: At) -> set[int]:
    """The axes on which a position depends, those of its conditions included."""
    found: set[int] = set()
    for coordinate in at.coords:
        found |= axes_of(coordinate)
    for cond in at.mask:
        found |= axes_of(cond.of)
    return found


def is_affine(index: Index) -> bool:
    """Return whether there is no quotient or remainder in it."""
    return not any(isinstance(t, Quotient | Remainder) for t, _ in index.terms)


class Substitution:
    """Replaces an axis by an index, everywhere in a position. Remembers what it has seen."""

    def __init__(self, axis: int, by: Index) -> None:
        self.axis, self.by = axis, by
        self._memo: dict[At, At] = {}

    def index(self, index: Index) -> Index:
        """The index over the new axes."""
        if not index.terms:
            return index
        parts = [(Index(index.offset, ()), 1)]
        parts += [(self._term(term), coefficient) for term, coefficient in index.terms]
        return weighted(parts)

    def _term(self, term: Term) -> Index:
        if isinstance(term, int):
            return self.by if term == self.axis else of_axis(term)
        if isinstance(term, Value):
            return of_term(term._replace(at=self.at(term.at)))
        return of_term(type(term)(self.index(term.of), term.by))

    def at(self, at: At) -> At:
        """The position over the new axes."""
        found = self._memo.get(at)
        if found is None:
            mask = tuple(cond._replace(of=self.index(cond.of)) for cond in at.mask)
            found = self._memo[at] = At(tuple(map(self.index, at.coords)), mask)
        return found


class Joining:
    """Replaces two neighbouring axes by one, where every index walks through them as one.

    What is read from tensors stays as it is: it has been computed by other indices.
    """

    def __init__(self, outer: int, inner: int, extent: int, axis: int) -> None:
        self.outer, self.inner, self.extent, self.axis = outer, inner, extent, axis

    def fits(self, index: Index) -> bool:
        """Return whether an index can be expressed by the one axis."""
        a = b = 0
        for term, coefficient in index.terms:
            if isinstance(term, int):
                a += coefficient * (term == self.outer)
                b += coefficient * (term == self.inner)
            elif not isinstance(term, Value) and not self.fits(term.of):
                return False
        return a == b * self.extent

    def index(self, index: Index) -> Index:
        """The index over the new axis."""
        terms: list[tuple[Term, int]] = []
        for term, coefficient in index.terms:
            if isinstance(term, int):
                if term != self.outer:
                    terms.append((self.axis if term == self.inner else term, coefficient))
            elif isinstance(term, Value):
                terms.append((term, coefficient))
            else:
                terms.append((term._replace(of=self.index(term.of)), coefficient))
        return Index(index.offset, tuple(terms))


def values_of(at: At, visit: Callable[[Value], None]) -> None:
    """Call `visit` for every number read from a tensor that a position uses directly."""
    indices = [*at.coords, *(cond.of for cond in at.mask)]
    while indices:
        for term, _ in indices.pop().terms:
            if isinstance(term, Value):
                visit(term)
            elif not isinstance(term, int):
                indices.append(term.of)
