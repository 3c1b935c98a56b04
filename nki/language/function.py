"""Functions of `nl` that are operators too.

``nl.add`` is called, ``nl.add(x, y)``, and given, ``nisa.tensor_tensor(..., op=nl.add)``. So it is
an object with the name that instructions look at, hashable and equal to itself only; it prints as
``nl.add``, and copies and pickles are itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from nki.access import read
from nki.context import current_run
from nki.dtypes import canonical
from nki.errors import NkiTypeError
from nki.isa.functions import FUNCTIONS
from nki.language.constants import Operator
from nki.language.tiles import Number, in_parts, is_number, new, promote, same_shape, tile
from nki.tensor import NkiTensor

__all__ = ["Binary", "Comparison", "Function", "Truth", "Unary", "kind_of"]

Emit = Callable[[NkiTensor, NkiTensor], None]
EmitTwo = Callable[[NkiTensor | Number, NkiTensor | Number, NkiTensor], None]


class Comparison(NkiTensor):
    """A tile of ones and zeros that ``assert`` understands: all of it must be 1.

    Only results of comparisons are such tiles: other tensors are true whatever they hold, so that
    ``if bias:`` asks whether there is one. Views of it are tensors like others.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        """Look at the values that the kernel has computed so far: whether none is 0."""
        recorder = current_run()
        values = read(self) if recorder is None else recorder.peek(self)
        return bool((values != 0).all())


class Function(Operator):
    """A function on tiles.

    Attributes:
        emit: issues the instructions that write a result.
    """

    emit: Any

    def __init__(self, name: str, text: str, emit: Any) -> None:
        """Make a function.

        Args:
            name: as documented.
            text: what it computes, for help.
            emit: see the subclasses.
        """
        super().__init__(name)
        self.__module__ = "nki.language"
        self.__qualname__ = name
        self.__doc__ = text
        self.__signature__ = inspect.signature(self.__call__)
        self.emit = emit

    def __call__(self, *args: Any, **kwargs: Any) -> NkiTensor:
        """Issue instructions and return the tile that they write."""
        raise NotImplementedError


class Unary(Function):
    """A function of one tile: ``f(x, dtype=None)``.

    The result is a new tile in SBUF in the shape of `x`, and of its type unless `dtype` is given.
    ``emit(x, out)`` issues.
    """

    def __call__(self, x: NkiTensor, dtype: Any = None) -> NkiTensor:
        """Return a tile of the function's values.

        Args:
            x: a tile in SBUF or PSUM.
            dtype: the type of the result, by default that of `x`.

        Raises:
            NkiTypeError: `x` is no tile (NKI240).
            NkiValidationError: an instruction does not take it.
        """
        data = tile(self.__name__, "x", x)
        out = new(data.shape, data.dtype if dtype is None else dtype)
        in_parts(self.emit, out, data)
        return out


class Binary(Function):
    """A function of two tiles of one shape, or a tile and a number: ``f(x, y, dtype=None)``.

    The result is a new tile in SBUF. Without `dtype` its type is that of the tile, or of two tiles
    the one that :func:`nki.language.tiles.promote` gives. ``emit(x, y, out)`` issues.

    Attributes:
        vectors: one of the tiles may have one element per partition.
    """

    vectors: bool

    def __init__(
        self, name: str, text: str, emit: EmitTwo | None = None, *, vectors: bool = False
    ) -> None:
        """Make a function; without `emit` the operator of its name does the work."""
        super().__init__(name, text, emit or self._operate)
        self.vectors = vectors

    def __call__(
        self, x: NkiTensor | Number, y: NkiTensor | Number, dtype: Any = None
    ) -> NkiTensor:
        """Return a tile of the function's values.

        Args:
            x: a tile in SBUF or PSUM, or a number.
            y: likewise; one of the two is a tile.
            dtype: the type of the result.

        Raises:
            NkiTypeError: an argument is neither (NKI240).
            NkiError: two tiles differ in shape (NKI241).
            NkiValidationError: an instruction does not take them.
        """
        name = self.__name__
        tiles = [tile(name, which, v) for which, v in (("x", x), ("y", y)) if not is_number(v)]
        if not tiles:
            raise NkiTypeError(
                "NKI240",
                f"nl.{name} was given two numbers",
                "one of x and y must be a tile: compute with numbers in Python",
            )
        shape, kind = tiles[0].shape, tiles[0].dtype
        if len(tiles) == 2:
            if self._one_is_vector(*tiles):
                shape = max(shape, tiles[1].shape, key=lambda s: s[1])
            else:
                same_shape(name, *tiles)
            kind = promote(kind, tiles[1].dtype)
        out = new(shape, kind if dtype is None else dtype)
        in_parts(self.emit, out, x, y)
        return out

    def _one_is_vector(self, x: NkiTensor, y: NkiTensor) -> bool:
        flat = x.ndim == y.ndim == 2 and x.shape[0] == y.shape[0]
        return self.vectors and flat and x.shape != y.shape and 1 in (x.shape[1], y.shape[1])

    def _operate(self, x: NkiTensor | Number, y: NkiTensor | Number, out: NkiTensor) -> None:
        name = self.__name__
        if isinstance(x, NkiTensor) and isinstance(y, NkiTensor) and x.shape == y.shape:
            FUNCTIONS["tensor_tensor"](out, x, y, self)
            return
        # The operand is the number, or the tile of one element per partition.
        reverse = not isinstance(x, NkiTensor) or x.shape != out.shape
        data, operand = (y, x) if reverse else (x, y)
        FUNCTIONS["tensor_scalar"](out, data, name, operand, reverse0=reverse)


class Truth(Binary):
    """A function whose result holds ones and zeros, which ``assert`` understands."""

    def __call__(
        self, x: NkiTensor | Number, y: NkiTensor | Number, dtype: Any = None
    ) -> Comparison:
        """As other functions of two tiles, or of a tile and a number."""
        out = super().__call__(x, y, dtype)
        result = object.__new__(Comparison)
        result.storage, result.pattern, result.layout = out.storage, out.pattern, None
        return result


def kind_of(x: NkiTensor, dtype: Any) -> str:
    """Return the type of a result that is by default that of an argument."""
    return x.dtype if dtype is None else canonical(dtype)
