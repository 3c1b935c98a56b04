"""The results of a kernel, however it is run: tensors as views of results and arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nki.dtypes import info
from nki.recording import Recording, Result
from nki.trees import leaves, mapped

__all__ = [
    "Returned",
    "array_view",
    "assemble",
    "from_data",
    "is_plain",
    "outputs_of",
    "returned",
    "to_data",
]

Array = npt.NDArray[Any]


class Returned(NamedTuple):
    """A tensor among the results.

    Attributes:
        kind: "output", or "input" for (part of) an array argument.
        number: which output (distinct memories that are returned and are no arguments, in the order
            in which they are met) or which array argument.
        dtype: NKI's name; offset and strides count its elements.
        shape: sizes.
        strides: distances between neighbours of each dimension.
        offset: the first element.
        whole: it is all of that memory, in order and of its type.
    """

    kind: str
    number: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    whole: bool


def outputs_of(recording: Recording) -> list[int]:
    """Return the storages that become outputs, in order."""
    storages = (result.storage for result in leaves(recording.results, Result))
    return list(dict.fromkeys(s for s in storages if s not in recording.inputs))


def returned(recording: Recording) -> Any:
    """Return the structure of the results, with a :class:`Returned` for every tensor."""
    outputs = outputs_of(recording)

    def one(tree: Result) -> Returned:
        storage = recording.storages[tree.storage]
        pattern = tree.form.pattern
        itemsize = info(pattern.dtype).itemsize
        is_input = tree.storage in recording.inputs
        whole = pattern.shape == storage.shape and pattern.dtype == storage.dtype
        return Returned(
            "input" if is_input else "output",
            (recording.inputs if is_input else outputs).index(tree.storage),
            pattern.dtype,
            pattern.shape,
            pattern.strides,
            tree.offset // itemsize,
            whole and tree.offset == 0,
        )

    return mapped(recording.results, Result, one)


def assemble(
    tree: Any,
    outputs: Sequence[Any],
    inputs: Sequence[Any],
    view: Callable[[Any, Returned], Any],
) -> Any:
    """Return what the kernel returns.

    Args:
        tree: as :func:`returned` makes it.
        outputs: the outputs, whole.
        inputs: the array arguments.
        view: returns a part of an array, which is a copy or a view.
    """

    def one(item: Returned) -> Any:
        source = (inputs if item.kind == "input" else outputs)[item.number]
        return source if item.whole else view(source, item)

    return mapped(tree, Returned, one)


def array_view(array: Array, item: Returned) -> Array:
    """Return a part of a contiguous NumPy array."""
    kind = info(item.dtype).numpy
    strides = [s * kind.itemsize for s in item.strides]
    return np.ndarray(item.shape, kind, array, item.offset * kind.itemsize, strides)


def is_plain(tree: Any) -> bool:
    """Return whether :func:`to_data` can say all of a structure: it has no named tuples."""
    if tree is None or isinstance(tree, Returned):
        return True
    if type(tree) is dict:
        return all(isinstance(key, str) and is_plain(item) for key, item in tree.items())
    return type(tree) in (tuple, list) and all(map(is_plain, tree))


def to_data(tree: Any) -> Any:
    """Return a structure of results as data that JSON holds."""
    if isinstance(tree, Returned):
        return ["tensor", *tree]
    if isinstance(tree, dict):
        return ["dict", *([key, to_data(item)] for key, item in tree.items())]
    if isinstance(tree, (tuple, list)):
        return ["list" if isinstance(tree, list) else "tuple", *map(to_data, tree)]
    return tree


def from_data(data: Any) -> Any:
    """Return the structure that :func:`to_data` wrote.

    Raises:
        ValueError: it is something else.
    """
    match data:
        case None:
            return None
        case ["tensor", str(kind), int(number), str(dtype), shape, strides, int(offset), whole]:
            sizes, steps = tuple(map(int, shape)), tuple(map(int, strides))
            if kind not in ("input", "output") or number < 0 or offset < 0:
                raise ValueError(f"no tensor: {data}")
            return Returned(kind, number, info(dtype).name, sizes, steps, offset, bool(whole))
        case ["dict", *items]:
            return {key: from_data(item) for key, item in items}
        case ["list", *items]:
            return [from_data(item) for item in items]
        case ["tuple", *items]:
            return tuple(from_data(item) for item in items)
    raise ValueError(f"no structure of results: {data!r}")
