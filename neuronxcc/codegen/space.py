"""The iteration space of a kernel in its simplest form: fewer, longer dimensions.

Dimensions of extent 1 vanish, parallel ones are put in the order of memory, and neighbours that
every access walks through as one are joined. Nothing is rebuilt: a `Space` translates the strides
of the kernel's accesses when asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from neuronxcc.codegen.loop import Access, Kernel, Kind, Scalar, operands, scalars


@dataclass(eq=False)
class Space:
    """Dimensions made of the kernel's: `groups[d]` lists those that became dimension d.

    Attributes:
        kernel: The kernel.
        groups: For each dimension of this space the kernel's dimensions that it joins, outermost
            first.
    """

    kernel: Kernel
    groups: tuple[tuple[int, ...], ...]
    order: tuple[Scalar, ...] = field(init=False)
    _vary: dict[Scalar, frozenset[int]] = field(init=False, default_factory=dict)
    _stage: dict[Scalar, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.order = tuple(scalars(self.kernel))
        for scalar in self.order:
            self._vary[scalar] = self._vary_of(scalar)
            above = max((self._stage[s] for s in operands(scalar)), default=0)
            self._stage[scalar] = above + (scalar.what in ("reduce", "arg"))

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.groups)

    def extent(self, dim: int) -> int:
        """Points along a dimension."""
        total = 1
        for original in self.groups[dim]:
            total *= self.kernel.dims[original].extent
        return total

    def kind(self, dim: int) -> Kind:
        """The kind of the dimension."""
        return self.kernel.dims[self.groups[dim][0]].kind

    @property
    def parallel(self) -> tuple[int, ...]:
        """The PARALLEL dimensions, outermost first."""
        return tuple(d for d in range(self.rank) if self.kind(d) is Kind.PARALLEL)

    @property
    def reduced(self) -> tuple[int, ...]:
        """The REDUCE dimensions, outermost first."""
        return tuple(d for d in range(self.rank) if self.kind(d) is Kind.REDUCE)

    def stride(self, access: Access, dim: int) -> int:
        """Elements between neighbours along a dimension of this space."""
        return access.strides[self.groups[dim][-1]]

    def dim_of(self, original: int) -> int | None:
        """The dimension that is exactly this one of the kernel; None if it has one point."""
        for dim, group in enumerate(self.groups):
            if original in group:
                assert group == (original,)
                return dim
        return None

    def vary(self, scalar: Scalar) -> frozenset[int]:
        """The dimensions that the expression's value depends on."""
        return self._vary[scalar]

    def stage(self, scalar: Scalar) -> int:
        """How many reductions, one after the other, must be complete before it is known."""
        return self._stage[scalar]

    def _vary_of(self, scalar: Scalar) -> frozenset[int]:
        dims: set[int] = set()
        for operand in operands(scalar):
            dims |= self._vary[operand]
        if scalar.access is not None:
            dims |= {d for d in range(self.rank) if self.stride(scalar.access, d)}
        if scalar.what == "index":
            dim = self.dim_of(scalar.dim)
            dims |= set() if dim is None else {dim}
        if scalar.what in ("reduce", "arg"):
            dims -= set(self.reduced)
        return frozenset(dims)


def accesses(kernel: Kernel) -> list[Access]:
    """Every access of the kernel: its stores first, then its loads."""
    loads = [s.access for s in scalars(kernel) if s.access is not None]
    return [store.access for store in kernel.stores] + loads


def simplify(kernel: Kernel) -> Space:
    """The simplest space that visits the same points."""
    dims = [d for d, dim in enumerate(kernel.dims) if dim.extent != 1]
    found = accesses(kernel)
    # Dimensions whose position is asked for stay on their own.
    alone = {s.dim for s in scalars(kernel) if s.what == "index"}
    if any(s.what == "arg" for s in scalars(kernel)):
        alone |= {d for d in dims if kernel.dims[d].kind is Kind.REDUCE}
    ordered = _in_memory_order(kernel, dims, found)
    groups: list[tuple[int, ...]] = []
    for dim in ordered:
        last = groups[-1] if groups else ()
        if last and not alone & {last[-1], dim} and _joins(kernel, last[-1], dim, found):
            groups[-1] = (*last, dim)
        else:
            groups.append((dim,))
    return Space(kernel, tuple(groups))


def _joins(kernel: Kernel, outer: int, inner: int, found: list[Access]) -> bool:
    if kernel.dims[outer].kind is not kernel.dims[inner].kind:
        return False
    extent = kernel.dims[inner].extent
    return all(a.strides[outer] == a.strides[inner] * extent for a in found)


def _in_memory_order(kernel: Kernel, dims: list[int], found: list[Access]) -> list[int]:
    """Sorts neighbouring dimensions of one kind by the strides of the first access that differs.

    Values do not depend on the order of parallel dimensions; sums do on that of reduced ones, but
    that order is the code generator's choice. A store that combines keeps the order of the space.
    """
    if any(store.combine is not None or store.access.indices for store in kernel.stores):
        return dims
    result: list[int] = []
    start = 0
    while start < len(dims):
        end = start
        while end < len(dims) and kernel.dims[dims[end]].kind is kernel.dims[dims[start]].kind:
            end += 1
        result += sorted(dims[start:end], key=_stride_key(found))
        start = end
    return result


def _stride_key(found: list[Access]) -> Callable[[int], tuple[int, ...]]:
    # Descending strides of stores, then of loads; a stride of 0 says nothing about the order.
    return lambda dim: tuple(-abs(a.strides[dim]) for a in found)
