"""Kernels made again with some of their parts replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from neuronxcc.codegen.loop import Access, Kernel, Scalar, Store, scalars


def rebuilt(
    scalar: Scalar,
    new: Mapping[Scalar, Scalar],
    place: Callable[[Access, Access], Access] = lambda _old, new: new,
) -> Scalar:
    """The expression over new operands, its access where `place` says, see `relocated`."""
    old = scalar.access
    return Scalar.make(
        scalar.what,
        scalar.dtype,
        tuple(new[src] for src in scalar.srcs),
        op=scalar.op,
        access=None if old is None else place(old, moved(old, new)),
        value=scalar.value,
        dim=scalar.dim,
        direction=scalar.direction,
    )


def moved(access: Access, new: Mapping[Scalar, Scalar]) -> Access:
    """The access with new expressions for what is read from tensors."""
    return replace(access, indices=tuple((new[index], step) for index, step in access.indices))


def restored(kernel: Kernel, new: Mapping[Scalar, Scalar]) -> Kernel:
    """The kernel whose stores take new expressions: `new` has one for every one of the kernel's."""
    stores = tuple(
        Store(
            moved(store.access, new),
            new[store.value],
            store.combine,
            None if store.mask is None else new[store.mask],
        )
        for store in kernel.stores
    )
    return replace(kernel, stores=stores)


def relocated(kernel: Kernel, place: Callable[[Access, Access], Access]) -> Kernel:
    """The kernel with its accesses made elsewhere, loads and stores alike.

    Args:
        kernel: Is not changed.
        place: Gives the new access from the kernel's own one and the same over new expressions: an
            index may itself have been read elsewhere.
    """
    new: dict[Scalar, Scalar] = {}
    for scalar in scalars(kernel):
        new[scalar] = rebuilt(scalar, new, place)
    stores = tuple(
        replace(made, access=place(store.access, made.access))
        for store, made in zip(kernel.stores, restored(kernel, new).stores, strict=True)
    )
    return replace(kernel, stores=stores)
