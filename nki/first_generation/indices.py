"""Index expressions: affine arithmetic on ``nl.arange``, and masks that compare them.

An expression is an array of integers that is known when the kernel is built, kept as its offset and
its steps along each axis. Arithmetic that leaves the affine expressions keeps the integers
themselves, and indexing finds out whether an access pattern can show them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from nki.arguments import as_range
from nki.errors import NkiError, NkiIndexError, NkiTypeError

__all__ = ["Index", "Mask", "MeshGrid", "Run", "arange", "as_index", "common_shape", "mgrid"]

_new = object.__new__  # without `__init__`, for what is known to be right

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]


class Index:
    """An array of integers: ``offset + sum(steps[k] * i[k])`` for ``i[k]`` below ``shape[k]``.

    Attributes:
        shape: sizes of its axes.
        offset: value at index 0.
        steps: what one step along each axis adds; 0 along axes of size 1.
    """

    __slots__ = ("_integers", "offset", "shape", "steps")

    # NumPy's arrays and scalars leave operators with an Index to the methods below.
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        shape: tuple[int, ...],
        offset: int,
        steps: tuple[int, ...],
        integers: Integers | None = None,
    ) -> None:
        self.shape = shape
        self.offset = offset
        if 1 in shape:
            steps = tuple([0 if n == 1 else s for n, s in zip(shape, steps, strict=True)])
        self.steps = steps
        self._integers = integers

    @classmethod
    def of(cls, integers: Integers) -> Index:
        """Return the expression of an array: affine if its values are."""
        shape = integers.shape
        first = (0,) * integers.ndim
        offset = int(integers[first])
        steps = tuple(
            int(integers[(*first[:k], 1, *first[k + 1 :])]) - offset if n > 1 else 0
            for k, n in enumerate(shape)
        )
        found = cls(shape, offset, steps)
        if np.array_equal(found.integers(), integers):
            return found
        return cls(shape, offset, steps, np.ascontiguousarray(integers))

    @property
    def affine(self) -> bool:
        """Return whether offset and steps say all of it."""
        return self._integers is None

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def integers(self) -> Integers:
        """Return the values, in the full shape."""
        if self._integers is not None:
            return self._integers
        total: Any = np.int64(self.offset)
        for axis, (n, step) in enumerate(zip(self.shape, self.steps, strict=True)):
            if step:
                total = total + (np.arange(n) * step).reshape(-1, *[1] * (self.ndim - axis - 1))
        return np.broadcast_to(total, self.shape)

    def bounds(self) -> tuple[int, int]:
        """Return the smallest and the largest value."""
        if self._integers is not None:
            return int(self._integers.min()), int(self._integers.max())
        low = high = self.offset
        for n, step in zip(self.shape, self.steps, strict=True):
            if step > 0:
                high += step * (n - 1)
            else:
                low += step * (n - 1)
        return low, high

    def raised(self, shape: tuple[int, ...]) -> Index:
        """Return the same broadcast to a shape."""
        if self.shape == shape:
            return self
        if self._integers is not None:
            return Index.of(np.broadcast_to(self._integers, shape))
        missing = len(shape) - len(self.shape)
        _check_broadcast(self.shape, shape)
        return Index(shape, self.offset, (0,) * missing + self.steps)

    def part(self, box: tuple[tuple[int, int], ...]) -> Index:
        """Return the values within a box: (first, end) for each axis."""
        if self._integers is not None:
            return Index.of(self._integers[tuple(slice(*pair) for pair in box)])
        offset = self.offset
        for (low, _), step in zip(box, self.steps, strict=True):
            offset += low * step
        return Index(tuple([high - low for low, high in box]), offset, self.steps)

    # --- arithmetic ----------------------------------------------------------------------------

    def _binary(self, other: Any, function: Callable[[Any, Any], Any], *, linear: bool) -> Any:
        right = as_index(other)
        if right is None:
            return NotImplemented
        if linear and not right.shape and self._integers is None:
            return Index(self.shape, function(self.offset, right.offset), self.steps)
        shape = common_shape(self.shape, right.shape)
        a, b = self.raised(shape), right.raised(shape)
        if linear and a.affine and b.affine:
            steps = tuple([function(s, t) for s, t in zip(a.steps, b.steps, strict=True)])
            return Index(shape, function(a.offset, b.offset), steps)
        return Index.of(function(a.integers(), b.integers()))

    def _further(self, distance: int) -> Index:
        """Return an affine expression with an integer added, which most of a kernel's are."""
        made = _new(Index)
        made.shape, made.steps = self.shape, self.steps
        made._integers = None  # noqa: SLF001 (its own class)
        made.offset = self.offset + distance
        return made

    def __add__(self, other: Any) -> Any:
        if type(other) is int and self._integers is None:
            return self._further(other)
        return self._binary(other, operator.add, linear=True)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if type(other) is int and self._integers is None:
            return self._further(-other)
        return self._binary(other, operator.sub, linear=True)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> Any:
        return self * -1

    def __mul__(self, other: Any) -> Any:
        factor = _integer(other)
        if factor is None:
            return self._binary(other, operator.mul, linear=False)
        if self._integers is not None:
            return Index.of(self._integers * factor)
        return Index(self.shape, self.offset * factor, tuple(s * factor for s in self.steps))

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return self._binary(other, operator.floordiv, linear=False)

    def __mod__(self, other: Any) -> Any:
        return self._binary(other, operator.mod, linear=False)

    # --- comparisons ---------------------------------------------------------------------------

    def _compare(self, other: Any, op: str) -> Any:
        right = as_index(other)
        return NotImplemented if right is None else Mask(((self - right, op),))

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, "less")

    def __le__(self, other: Any) -> Any:
        return self._compare(other, "less_equal")

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, "greater")

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, "greater_equal")

    def __eq__(self, other: object) -> Any:
        return self._compare(other, "equal")

    def __ne__(self, other: object) -> Any:
        return self._compare(other, "not_equal")

    def __getitem__(self, key: Any) -> Index:
        """Return the same values with axes of size 1 inserted, as ``[:, None]`` does.

        Raises:
            NkiTypeError: another index (NKI260).
        """
        parts = key if isinstance(key, tuple) else (key,)
        shape: list[int] = []
        steps: list[int] = []
        old = iter(zip(self.shape, self.steps, strict=True))
        taken = 0
        for part in parts:
            if part is None:
                shape.append(1)
                steps.append(0)
            elif isinstance(part, slice) and part == slice(None) and taken < self.ndim:
                taken += 1
                n, step = next(old)
                shape.append(n)
                steps.append(step)
            else:
                raise NkiTypeError(
                    "NKI260",
                    f"an index expression of shape {self.shape} was indexed with {key!r}",
                    "use None for a new axis and : for an old one: nl.arange(128)[:, None]",
                )
        for n, step in old:
            shape.append(n)
            steps.append(step)
        if self._integers is not None:
            return Index.of(self._integers.reshape(shape))
        return Index(tuple(shape), self.offset, tuple(steps))

    def __bool__(self) -> bool:
        raise NkiTypeError(
            "NKI261",
            "an index expression was used as a condition of Python",
            "it stands for many integers: compare it in a mask, or use the loop's own index",
        )

    def __repr__(self) -> str:
        terms = [f"{s}*i{k}" for k, s in enumerate(self.steps) if s]
        text = " + ".join([str(self.offset), *terms]) if self.affine else "integers"
        return f"Index{list(self.shape)}({text})"


def _integer(value: Any) -> int | None:
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def as_index(value: Any) -> Index | None:
    """Return an expression or an integer as an expression, None of anything else."""
    if isinstance(value, Index):
        return value
    number = _integer(value)
    return None if number is None else Index((), number, ())


def _check_broadcast(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    for have, want in zip(reversed(old), reversed(new), strict=False):
        if have not in (1, want):
            raise _shapes(old, new)
    if len(old) > len(new):
        raise _shapes(old, new)


def _shapes(a: tuple[int, ...], b: tuple[int, ...]) -> NkiError:
    return NkiError(
        "NKI260",
        f"index expressions of shapes {a} and {b} do not broadcast together",
        "give both the same sizes, or size 1, along every axis",
    )


def common_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that two shapes broadcast to.

    Raises:
        NkiError: there is none (NKI260).
    """
    if a == b or not b:
        return a
    if not a:
        return b
    missing = len(a) - len(b)
    long, short = ((a, (1,) * missing + b)) if missing >= 0 else (b, (1,) * -missing + a)
    sizes = []
    for m, n in zip(long, short, strict=True):
        if m not in (n, 1) and n != 1:
            raise _shapes(a, b)
        sizes.append(n if m == 1 else m)
    return tuple(sizes)


def arange(*args: Any) -> Index:
    """Return the integers ``arange(stop)``, ``arange(start, stop)`` for indexing.

    Raises:
        NkiIndexError: there are none (NKI260).
    """
    values = as_range(args, "nl.arange")
    if not values:
        raise NkiIndexError(
            "NKI260",
            f"arange{args} has no elements",
            "give a stop beyond the start",
        )
    return Index((len(values),), values.start, (values.step,))


class MeshGrid(tuple[Index, ...]):
    """The result of ``nl.mgrid[...]``: an expression for each axis, all of one shape.

    ``p`` is the first axis, the partition; ``x``, ``y``, ``z`` and ``w`` are those after it.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Index:
        axis = "pxyzw".find(name)
        if len(name) == 1 and 0 <= axis < len(self):
            return self[axis]
        raise AttributeError(
            f"a grid of {len(self)} axes has no {name!r}; its axes are "
            f"{', '.join('pxyzw'[: len(self)])}"
        )


class _Mgrid:
    """``nl.mgrid[0:128, 0:512]``."""

    def __getitem__(self, key: Any) -> MeshGrid:
        """Return an expression for each slice, all of the common shape.

        Raises:
            NkiIndexError: an empty slice (NKI260).
        """
        parts = key if isinstance(key, tuple) else (key,)
        axes = [arange(part.start or 0, part.stop, part.step or 1) for part in parts]
        shape = tuple(axis.shape[0] for axis in axes)
        none = (0,) * len(axes)
        return MeshGrid(
            Index(shape, axis.offset, (*none[:k], axis.steps[0], *none[k + 1 :]))
            for k, axis in enumerate(axes)
        )

    def __repr__(self) -> str:
        return "nl.mgrid"


mgrid: Final = _Mgrid()

_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
}


class Run(NamedTuple):
    """A condition that holds for some neighbouring indices of one axis, from `first` below `end`.

    Attributes:
        axis: which one; None if the condition does not depend on any.
        first: the first index where it holds.
        end: the index after the last one; at most `first` if it holds nowhere.
    """

    axis: int | None
    first: int
    end: int

    def values(self, shape: tuple[int, ...]) -> Booleans:
        """Return the truth values, as small as they broadcast."""
        if self.axis is None:
            return np.full((1,) * len(shape), self.first < self.end)
        line = np.arange(shape[self.axis])
        after = len(shape) - self.axis - 1
        return ((line >= self.first) & (line < self.end)).reshape(-1, *[1] * after)


def _run(index: Index, op: str) -> Run | None:
    """Return where an affine expression compares so with 0, if that is one run of one axis."""
    moving = [axis for axis, step in enumerate(index.steps) if step]
    if len(moving) > 1 or op == "not_equal":
        return None
    if not moving:
        holds = bool(_COMPARE[op](index.offset, 0))
        return Run(None, 0, int(holds))
    axis = moving[0]
    step, offset, n = index.steps[axis], index.offset, index.shape[axis]
    if op in ("greater", "greater_equal"):
        step, offset, op = -step, -offset, "less" if op == "greater" else "less_equal"
    if op == "equal":
        first = -offset // step
        found = first * step + offset == 0
        return Run(axis, max(first, 0), min(first + 1, n) if found else 0)
    if op == "less_equal":
        offset -= 1
    # step * i + offset < 0
    if step > 0:
        return Run(axis, 0, min(n, -(offset // step)))
    return Run(axis, max(0, offset // -step + 1), n)


class Mask:
    """Where an instruction takes part: comparisons of index expressions that must all hold.

    ``&`` joins comparisons; ``|`` and ``~`` are taken too, and keep the truth values themselves.

    Attributes:
        terms: (expression, operator): where the expression compares so with 0.
        others: further conditions, as truth values.
    """

    __slots__ = ("others", "regions", "terms")

    __array_ufunc__ = None

    def __init__(
        self, terms: tuple[tuple[Index, str], ...], others: tuple[Booleans, ...] = ()
    ) -> None:
        self.terms = terms
        self.others = others
        # What `boxes` found it to leave, by shape: one mask serves many instructions.
        self.regions: dict[tuple[int, ...], Any] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that all conditions broadcast to."""
        shape: tuple[int, ...] = ()
        for index, _ in self.terms:
            shape = common_shape(shape, index.shape)
        for values in self.others:
            shape = common_shape(shape, values.shape)
        return shape

    def conditions(self, shape: tuple[int, ...]) -> Iterator[Booleans | Run]:
        """Iterate over all conditions: runs along one axis, or truth values as they broadcast.

        Raises:
            NkiError: a condition does not broadcast to ``shape`` (NKI260).
        """
        for index, op in self.terms:
            raised = index.raised(shape)
            if not raised.affine:
                yield _COMPARE[op](raised.integers(), 0)
                continue
            run = _run(raised, op)
            if run is not None:
                yield run
                continue
            small = raised.part(
                tuple([(0, n if s else 1) for n, s in zip(shape, raised.steps, strict=True)])
            )
            yield _COMPARE[op](small.integers(), 0)
        for values in self.others:
            _check_broadcast(values.shape, shape)
            yield values.reshape((1,) * (len(shape) - values.ndim) + values.shape)

    def values(self, shape: tuple[int, ...]) -> Booleans:
        """Return the truth values in a shape."""
        total = np.ones(shape, bool)
        for condition in self.conditions(shape):
            total &= condition.values(shape) if isinstance(condition, Run) else condition
        return total

    def __and__(self, other: Any) -> Any:
        if isinstance(other, (bool, np.bool_)):
            return self if other else Mask(self.terms, (*self.others, np.zeros((), bool)))
        if not isinstance(other, Mask):
            return NotImplemented
        return Mask(self.terms + other.terms, self.others + other.others)

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        if isinstance(other, (bool, np.bool_)):
            return self if not other else Mask((), (np.ones((), bool),))
        if not isinstance(other, Mask):
            return NotImplemented
        shape = common_shape(self.shape, other.shape)
        return Mask((), (self.values(shape) | other.values(shape),))

    __ror__ = __or__

    def __invert__(self) -> Mask:
        return Mask((), (~self.values(self.shape),))

    def __bool__(self) -> bool:
        raise NkiTypeError(
            "NKI261",
            "a mask was used as a condition of Python",
            "join comparisons with &, each in parentheses; `and` is understood in mask=... only",
        )

    def __repr__(self) -> str:
        return " & ".join([f"({index!r} {op} 0)" for index, op in self.terms] + ["..."] * len(self.others))  # fmt: skip  # noqa: E501
