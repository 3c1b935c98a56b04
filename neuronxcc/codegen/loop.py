"""Loop kernels: the second IR. An iteration space, a scalar expression per point, stores.

A kernel says what is computed for every point of a space of dimensions; how the points are visited
(vectors, threads, order of the partial sums) is the code generator's choice. One builder, three
clients: fused regions of the tensor IR, fused eager operators, and NKI instructions.

The reference meaning of a kernel is `codegen/reference.py`, the fast one `codegen/llvm`.
"""

from __future__ import annotations

import enum
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op


class Kind(enum.Enum):
    """The relation between the iterations along a dimension."""

    PARALLEL = "parallel"
    REDUCE = "reduce"


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension of the space; dimensions are listed from the outermost to the innermost."""

    extent: int
    kind: Kind = Kind.PARALLEL


@dataclass(frozen=True, slots=True)
class Slot:
    """A buffer the kernel is given: `slots[i]` describes the i-th pointer of the call."""

    dtype: DType
    # A part of a matrix whose row stride is known only when the kernel is called: a GEMM's float32
    # sums, or elements of an operand that the kernel makes for it.
    tile: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """The element of a slot at a point: offset + sum(strides[d] * d) + sum(stride * index).

    Strides and offset count elements. `indices` are scalar expressions of an integer type (from
    an index tensor, say), each with its stride; the client has already clamped or wrapped them.
    """

    slot: int
    strides: tuple[int, ...]  # one per dimension of the kernel
    offset: int = 0
    indices: tuple[tuple[Scalar, int], ...] = ()


class Scalar:
    """A node of the expression of one point: hash-consed, so equality is identity.

    `what` is one of
      "load"    access, optionally (mask, other) in srcs: where mask is false, `other` and no read
      "const"   value (bool, int, float or complex; exactly representable in dtype)
      "index"   dim: the position along that dimension, of an integer type
      "op"      op on srcs, an elementwise operator of the tensor IR, with its meaning there
      "reduce"  op in {ADD, MULTIPLY, MINIMUM, MAXIMUM, AND, OR, XOR} over all REDUCE dims of
                srcs[0]. The accumulation type is `dtype`. Its value is the same at all points that
                differ in REDUCE dims only; later expressions may use it together with
                values that vary there (softmax: x - reduce(max, x)).
      "check"   srcs[0], an integer; if it is outside of srcs[1]..srcs[2], the element of `access`,
                which the executor sets to 0 before the kernel, becomes another number
      "arg"     op MINIMUM or MAXIMUM: the position along the one REDUCE dim, first one, NaN wins
    """

    __slots__ = (
        "__weakref__",
        "access",
        "dim",
        "direction",
        "dtype",
        "op",
        "srcs",
        "value",
        "what",
    )

    what: str
    dtype: DType
    srcs: tuple[Scalar, ...]
    op: Op | None
    access: Access | None
    value: bool | int | float | complex | None
    dim: int
    direction: str  # of Op.COMPARE

    _table: ClassVar[weakref.WeakValueDictionary[tuple[object, ...], Scalar]] = (
        weakref.WeakValueDictionary()
    )
    _lock = threading.Lock()

    @classmethod
    def make(
        cls,
        what: str,
        dtype: DType,
        srcs: tuple[Scalar, ...] = (),
        *,
        op: Op | None = None,
        access: Access | None = None,
        value: bool | complex | None = None,
        dim: int = -1,
        direction: str = "",
    ) -> Scalar:
        """Return the node of these parts."""
        # repr tells 0.0 from -0.0, 1 from True, and makes NaN equal to itself.
        key = (what, dtype, srcs, op, access, repr(value), dim, direction)
        with cls._lock:
            node = cls._table.get(key)
            if node is None:
                node = object.__new__(cls)
                node.what, node.dtype, node.srcs, node.op = what, dtype, srcs, op
                node.access, node.value, node.dim, node.direction = access, value, dim, direction
                cls._table[key] = node
            return node

    def __repr__(self) -> str:
        return f"<{self.what} {self.op.value if self.op else ''} {self.dtype.value}>"


@dataclass(frozen=True, slots=True)
class Store:
    """Writes `value`, cast to nothing: its dtype is that of the slot.

    A value that does not vary along REDUCE dims is stored once per point of the others, and its
    access has stride 0 along REDUCE dims.
    """

    access: Access
    value: Scalar
    # None: plain. Else read-modify-write (scatter-add); iterations that meet at one element are
    # done one after another, in the order of the space.
    combine: Op | None = None
    mask: Scalar | None = None  # no write where it is false


@dataclass(frozen=True, slots=True)
class Kernel:
    """One loop kernel.

    Forms that the code generator takes: no REDUCE dims; REDUCE dims innermost (rows); REDUCE dims
    outside the innermost PARALLEL dims (columns). A client permutes its dims to one of these.
    A slot that is stored to may be loaded from only at the same access (in-place update).
    """

    name: str
    dims: tuple[Dim, ...]
    slots: tuple[Slot, ...]
    stores: tuple[Store, ...]


def scalars(kernel: Kernel) -> Iterator[Scalar]:
    """Every distinct expression of the kernel, operands first."""
    seen: set[Scalar] = set()
    for store in kernel.stores:
        roots = [index for index, _ in store.access.indices] + [store.value]
        roots += [] if store.mask is None else [store.mask]
        stack = [(root, False) for root in reversed(roots)]
        while stack:
            scalar, expanded = stack.pop()
            if scalar in seen:
                continue
            if expanded:
                seen.add(scalar)
                yield scalar
            else:
                stack.append((scalar, True))
                stack.extend((src, False) for src in reversed(operands(scalar)))


def noted(kernel: Kernel) -> tuple[Access, ...]:
    """Where "check" makes its notes."""
    found = [s.access for s in scalars(kernel) if s.what == "check" and s.access is not None]
    return tuple(dict.fromkeys(found))


def operands(scalar: Scalar) -> tuple[Scalar, ...]:
    """The operands of the expression, the indices of a load included."""
    if scalar.access is None:
        return scalar.srcs
    return scalar.srcs + tuple(index for index, _ in scalar.access.indices)
