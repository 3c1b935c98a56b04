"""The node of the tensor IR: one class, hash-consed, so that equality is identity.

A node is a pure function of its operands. Effects (random numbers, host operators that must not be
merged) are told apart by an attribute of their own, `sequence`, that makes every occurrence unique.
"""

from __future__ import annotations

import itertools
import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from neuronxcc.ir.dtypes import DType, from_numpy
from neuronxcc.ir.op import Op


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and static shape of a tensor."""

    dtype: DType
    shape: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def nbytes(self) -> int:
        """Bytes of a dense tensor of this type."""
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Operand:
    """In the `args` and `kwargs` of a call: the operand of that number stands here."""

    index: int


_GLANCE = 64  # elements


class Literal:
    """An immutable array, compared by type, shape and bits (so NaN equals itself, 0.0 not -0.0)."""

    __slots__ = ("_bytes", "_hash", "_kind", "array")

    def __init__(self, array: np.ndarray, *, owned: bool = False) -> None:
        """Keep an array.

        Args:
            array: The elements.
            owned: Nobody will write to the array's memory again, so it need not be copied.
        """
        array = np.asarray(array)
        # NumPy asks for huge pages, so a copy costs much less than one in a bytes object.
        fits = array.flags.c_contiguous and array.flags.aligned
        kept = array.view() if owned and fits else np.array(array, order="C")
        kept.flags.writeable = False
        self.array = kept
        self._bytes = kept.reshape(-1).view(np.uint8)
        self._kind = (array.dtype.name, array.shape)
        self._hash = hash((self._kind, zlib.crc32(self._bytes.data)))

    @property
    def content(self) -> memoryview:
        """The elements in C order."""
        return self._bytes.data

    @property
    def type(self) -> TensorType:
        """Element type and shape."""
        return TensorType(from_numpy(self.array.dtype), self.array.shape)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Literal)
            and self._hash == other._hash
            and self._kind == other._kind
            and bool((self._bytes == other._bytes).all())
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Literal({self.type})"


def is_uniform(array: np.ndarray) -> bool:
    """Return whether all elements of an array have the same bits, as none or one have."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    octets = flat.reshape(array.size, array.itemsize)
    # Noise is found out by its beginning: arrays may be large.
    start = octets[:_GLANCE]
    return bool((start == start[:1]).all() and (octets == octets[:1]).all())


class Node:
    """One operation on whole tensors. `Node.make` creates it or returns the existing one."""

    __slots__ = ("__weakref__", "_attrs", "op", "serial", "srcs", "types")

    op: Op
    types: tuple[TensorType, ...]
    srcs: tuple[Node, ...]
    serial: int  # order of creation, for stable printing and sorting

    _attrs: tuple[tuple[str, Any], ...]

    _table: ClassVar[weakref.WeakValueDictionary[tuple[Any, ...], Node]] = (
        weakref.WeakValueDictionary()
    )
    _lock = threading.Lock()
    _serials = itertools.count()

    @classmethod
    def make(
        cls,
        op: Op,
        types: TensorType | tuple[TensorType, ...],
        srcs: Iterable[Node] = (),
        attrs: Mapping[str, Any] | None = None,
    ) -> Node:
        """Return the node of these parts.

        Args:
            op: The operator.
            types: The type of the result, or of each result for operators of several.
            srcs: Operands. Each must have one result; take a part of a tuple with Op.GET.
            attrs: Attributes by name. Values must be hashable; lists are taken as tuples.
        """
        type_tuple = types if isinstance(types, tuple) else (types,)
        items = tuple(sorted((k, _freeze(v)) for k, v in attrs.items())) if attrs else ()
        return cls._intern(op, type_tuple, tuple(srcs), items)

    @classmethod
    def _intern(
        cls,
        op: Op,
        type_tuple: tuple[TensorType, ...],
        src_tuple: tuple[Node, ...],
        attr_items: tuple[tuple[str, Any], ...],
    ) -> Node:
        # Types of equal value (1 and True, 1.0 and 1) must not share a node.
        kinds = tuple([_kinds(value) for _, value in attr_items])
        key = (op, type_tuple, tuple(map(id, src_tuple)), attr_items, kinds)
        with cls._lock:
            node = cls._table.get(key)
            if node is None:
                node = object.__new__(cls)
                node.op = op
                node.types = type_tuple
                node.srcs = src_tuple
                node._attrs = attr_items
                node.serial = next(cls._serials)
                cls._table[key] = node
            return node

    @property
    def type(self) -> TensorType:
        """The type of the only result."""
        if len(self.types) != 1:
            raise TypeError(f"{self.op.value} has {len(self.types)} results")
        return self.types[0]

    @property
    def dtype(self) -> DType:
        """Element type of the only result."""
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the only result."""
        return self.type.shape

    @property
    def attrs(self) -> dict[str, Any]:
        """A copy of the attributes."""
        return dict(self._attrs)

    def __getitem__(self, name: str) -> Any:
        for key, value in self._attrs:
            if key == name:
                return value
        raise KeyError(f"{self.op.value} has no attribute {name!r}")

    def get(self, name: str, default: Any = None) -> Any:
        """The attribute, or `default`."""
        for key, value in self._attrs:
            if key == name:
                return value
        return default

    def replace(self, srcs: Iterable[Node]) -> Node:
        """The same operation on other operands of the same types."""
        src_tuple = tuple(srcs)
        if all(a is b for a, b in zip(src_tuple, self.srcs, strict=True)):
            return self
        return Node._intern(self.op, self.types, src_tuple, self._attrs)

    def __repr__(self) -> str:
        types = ", ".join(map(str, self.types))
        return f"<{self.op.value} {types} #{self.serial}>"


def _freeze(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_freeze, value))
    if isinstance(value, np.generic):
        return value.item()
    return value


def _kinds(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple([_kinds(part) for part in value])
    # repr tells 0.0 from -0.0 and makes NaN equal to itself.
    return (type(value), repr(value)) if isinstance(value, float | complex) else type(value)


def topological(roots: Iterable[Node]) -> Iterator[Node]:
    """All nodes that the roots need, operands before users, without recursion."""
    done: set[int] = set()
    stack: list[Node | None] = []
    for root in roots:
        stack.append(root)
        while stack:
            node = stack.pop()
            if node is None:  # under the mark lies a node whose operands have been given
                node = stack.pop()
                assert node is not None
                if id(node) not in done:
                    done.add(id(node))
                    yield node
            elif id(node) not in done:
                stack += (node, None)
                stack += [src for src in reversed(node.srcs) if id(src) not in done]
