"""The check of a loop kernel: its parts fit each other, and it has the slots that it names.

A kernel may come from a file that anyone wrote, and its machine code has no checks.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuronxcc.codegen.loop import Access, Kernel, Kind, Scalar, scalars
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.program.errors import NeffError

MOST_RANK = 64
MOST_BYTES = 1 << 48  # of one buffer: the address space of a process is not larger

_REDUCTIONS = frozenset({Op.ADD, Op.MULTIPLY, Op.MINIMUM, Op.MAXIMUM, Op.AND, Op.OR, Op.XOR})
_DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")
_ARITY: dict[Op, int] = {
    **dict.fromkeys(Group.ELEMENTWISE, 2),
    **dict.fromkeys(Group.UNARY | Group.CONVERSION, 1),
    # The numbers of bits of a reduced precision are constant operands.
    **dict.fromkeys({Op.SELECT, Op.CLAMP, Op.REDUCE_PRECISION}, 3),
}


def extents_size(shape: tuple[int, ...]) -> int:
    """Number of elements; NeffError for a shape that no tensor has."""
    if len(shape) > MOST_RANK:
        raise NeffError(f"{len(shape)} dimensions, more than {MOST_RANK}")
    size = 1
    for extent in shape:
        if extent < 0:
            raise NeffError(f"negative extent {extent}")
        size *= extent
        if size > MOST_BYTES:
            raise NeffError(f"shape {list(shape)} is larger than any memory")
    return size


def check_scalar(scalar: Scalar) -> None:
    """Return whether the parts of an expression fit each other; its operands have been checked."""
    rule = _SCALARS.get(scalar.what)
    if rule is None:
        raise NeffError(f"unknown kind of scalar {scalar.what!r}")
    access, op, value = scalar.access is not None, scalar.op is not None, scalar.value is not None
    placed = scalar.what in ("load", "check")
    if (access, op, value) != (placed, rule.op, scalar.what == "const"):
        raise NeffError(f"a {scalar.what!r} with parts that it cannot have")
    rule(scalar)


class _Rule:
    """The operands that one kind of scalar takes."""

    def __init__(self, *counts: int, op: bool = False) -> None:
        self.counts = counts
        self.op = op

    def __call__(self, scalar: Scalar) -> None:
        if len(scalar.srcs) not in self.counts:
            raise NeffError(f"a {scalar.what!r} with {len(scalar.srcs)} operands")


class _OpRule(_Rule):
    def __call__(self, scalar: Scalar) -> None:
        assert scalar.op is not None
        if len(scalar.srcs) != _ARITY.get(scalar.op, -1):
            raise NeffError(f"{scalar.op.value} of {len(scalar.srcs)} operands in a loop kernel")
        if scalar.op is Op.REDUCE_PRECISION and any(s.what != "const" for s in scalar.srcs[1:]):
            raise NeffError("a reduced precision that is not constant")
        if (scalar.op is Op.COMPARE) != (scalar.direction in _DIRECTIONS):
            raise NeffError(f"{scalar.op.value} with direction {scalar.direction!r}")


class _ReduceRule(_Rule):
    def __init__(self, *ops: Op) -> None:
        super().__init__(1, op=True)
        self.ops = ops

    def __call__(self, scalar: Scalar) -> None:
        super().__call__(scalar)
        assert scalar.op is not None
        if scalar.op not in self.ops:
            raise NeffError(f"a {scalar.what!r} by {scalar.op.value}")


class _ConstRule(_Rule):
    def __call__(self, scalar: Scalar) -> None:
        super().__call__(scalar)
        if type(scalar.value) not in {bool, int, float, complex}:
            raise NeffError(f"a constant of type {type(scalar.value).__name__}")


class _IndexRule(_Rule):
    def __call__(self, scalar: Scalar) -> None:
        super().__call__(scalar)
        if scalar.dim < 0 or not scalar.dtype.is_integer:
            raise NeffError(f"the position along dimension {scalar.dim} as {scalar.dtype.value}")


class _LoadRule(_Rule):
    def __call__(self, scalar: Scalar) -> None:
        super().__call__(scalar)
        if scalar.srcs and (scalar.srcs[0].dtype, scalar.srcs[1].dtype) != (
            DType.PRED,
            scalar.dtype,
        ):
            raise NeffError("a masked load needs a truth value and a value of its own type")


class _CheckRule(_Rule):
    def __call__(self, scalar: Scalar) -> None:
        super().__call__(scalar)
        assert scalar.access is not None
        if not scalar.dtype.is_integer or any(s.dtype is not scalar.dtype for s in scalar.srcs):
            raise NeffError("a check of numbers of several types, or that are no integers")
        if any(scalar.access.strides) or scalar.access.indices:
            raise NeffError("a check that makes its note at more than one place")


_SCALARS: dict[str, _Rule] = {
    "load": _LoadRule(0, 2),
    "check": _CheckRule(3),
    "const": _ConstRule(0),
    "index": _IndexRule(0),
    "op": _OpRule(op=True),
    "reduce": _ReduceRule(*_REDUCTIONS),
    "arg": _ReduceRule(Op.MINIMUM, Op.MAXIMUM),
}


def check_kernel(kernel: Kernel) -> dict[int, tuple[int, int]]:
    """Check one loop kernel.

    Returns:
        For every slot that is accessed at places known beforehand, the first and the last of them
        (elements from the slot's pointer).
    """
    size = extents_size(tuple(dim.extent for dim in kernel.dims))
    touched: dict[int, tuple[int, int]] = {}
    for access, dtype, free in _accesses(kernel):
        if not 0 <= access.slot < len(kernel.slots):
            raise NeffError(f"slot {access.slot} of {len(kernel.slots)}")
        slot = kernel.slots[access.slot]
        if slot.dtype is not dtype:
            raise NeffError(f"slot {access.slot} is {slot.dtype.value}, accessed as {dtype.value}")
        if len(access.strides) != len(kernel.dims):
            raise NeffError(
                f"an access with {len(access.strides)} strides in {len(kernel.dims)} dims"
            )
        for index, _ in access.indices:
            if not index.dtype.is_integer:
                raise NeffError(f"an index of type {index.dtype.value}")
        if size and not free and not slot.tile:
            extents = tuple(dim.extent for dim in kernel.dims)
            low, high = span(extents, access.strides, access.offset)
            before = touched.get(access.slot, (low, high))
            touched[access.slot] = min(before[0], low), max(before[1], high)
    return touched


def _accesses(kernel: Kernel) -> Iterator[tuple[Access, DType, bool]]:
    """Every access with the type it is made as, and whether data decides where it goes or if."""
    reductions = sum(dim.kind is Kind.REDUCE for dim in kernel.dims)
    for scalar in scalars(kernel):
        if scalar.access is not None:
            free = bool(scalar.access.indices) or (scalar.what == "load" and bool(scalar.srcs))
            yield scalar.access, scalar.dtype, free
        if scalar.what == "index" and scalar.dim >= len(kernel.dims):
            raise NeffError(f"dimension {scalar.dim} of {len(kernel.dims)}")
        if scalar.what == "reduce" and not reductions:
            raise NeffError("a reduction in a kernel without dimensions to reduce")
        if scalar.what == "arg" and reductions != 1:
            raise NeffError(f"a position along {reductions} dimensions to reduce")
    for store in kernel.stores:
        if store.mask is not None and store.mask.dtype is not DType.PRED:
            raise NeffError(f"a mask of type {store.mask.dtype.value}")
        free = bool(store.access.indices) or store.mask is not None
        yield store.access, store.value.dtype, free


def span(shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> tuple[int, int]:
    """First and last element that a strided window touches; its shape has no 0."""
    low = high = offset
    for extent, stride in zip(shape, strides, strict=True):
        reach = (extent - 1) * stride
        low, high = (low + reach, high) if reach < 0 else (low, high + reach)
    return low, high


def stores_to(kernel: Kernel, slot: int) -> bool:
    """Return whether a kernel writes to a slot."""
    return any(store.access.slot == slot for store in kernel.stores)
