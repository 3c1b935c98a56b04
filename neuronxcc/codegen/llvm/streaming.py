"""Stores past the caches, for results that are larger than the cache.

An ordinary store first reads the line that it changes, and drives others out of the caches. A
result as large as the last level cannot still be there when it is read anyway, so its lines are
written whole, straight to memory. That wants addresses that are multiples of a line's size: the
shapes are known here, the pointers when the function is called. So a kernel with such a store
becomes two functions, and a third that looks at the pointers and takes one of them.
"""

from __future__ import annotations

import math

from neuronxcc.codegen.llvm.function import LOOP_PARAMETERS, Emitted
from neuronxcc.codegen.llvm.host import Host
from neuronxcc.codegen.loop import Access, Store
from neuronxcc.codegen.space import Space

LINE = 64
# The part of the last level from which on a result is written past it: what a result of that size
# is computed from has been there as well.
_SHARE = 0.5


def streamed(space: Space, host: Host, far: frozenset[int] = frozenset()) -> frozenset[Access]:
    """The accesses of stores that are worth it and, given aligned pointers, can be done.

    Args:
        space: Of the kernel.
        host: That it is compiled for.
        far: Slots that are parts of something that is worth it, however small they are.
    """
    kernel = space.kernel
    loaded = {s.access.slot for s in space.order if s.access is not None}
    slots = [store.access.slot for store in kernel.stores]
    return frozenset(
        store.access
        for store in kernel.stores
        if store.access.slot not in loaded
        if slots.count(store.access.slot) == 1
        if _whole_lines(space, store)
        if store.access.slot in far or is_large(_bytes(space, store.access), host)
    )


def is_large(nbytes: int, host: Host) -> bool:
    """Return whether a result of so many bytes is worth it."""
    return nbytes >= _SHARE * host.cache_bytes


def _bytes(space: Space, access: Access) -> int:
    size = space.kernel.slots[access.slot].dtype.itemsize
    return size * math.prod(space.extent(d) for d in range(space.rank) if space.stride(access, d))


def _whole_lines(space: Space, store: Store) -> bool:
    """Return whether rows of neighbours begin at multiples of a line."""
    access = store.access
    dtype = space.kernel.slots[access.slot].dtype
    if store.combine is not None or store.mask is not None or access.indices or dtype.is_complex:
        return False
    strides = [space.stride(access, d) for d in range(space.rank)]
    steps = [access.offset, *(stride for stride in strides if stride != 1)]
    return 1 in strides and all(step * dtype.itemsize % LINE == 0 for step in steps)


def choosing(accesses: frozenset[Access], name: str, plain: Emitted, streaming: Emitted) -> Emitted:
    """The function `name`, which calls one of two others.

    Args:
        accesses: Of the stores that `streaming` does past the caches.
        name: Of the function.
        plain: Function `name`.plain, for any pointers.
        streaming: Function `name`.stream, for pointers that are multiples of LINE.
    """
    slots = sorted({access.slot for access in accesses})
    lines = [f"define void @{name}({LOOP_PARAMETERS}) #0 {{", "  %bits0 = add i64 0, 0"]
    for number, slot in enumerate(slots):
        lines += [
            f"  %entry{number} = getelementptr ptr, ptr %bufs, i64 {slot}",
            f"  %pointer{number} = load ptr, ptr %entry{number}, align 8",
            f"  %address{number} = ptrtoint ptr %pointer{number} to i64",
            f"  %bits{number + 1} = or i64 %bits{number}, %address{number}",
        ]
    arguments = "ptr %bufs, i64 %begin, i64 %end, ptr %scratch"
    lines += [
        f"  %low = and i64 %bits{len(slots)}, {LINE - 1}",
        "  %aligned = icmp eq i64 %low, 0",
        "  br i1 %aligned, label %stream, label %plain",
        "stream:",
        f"  call void @{name}.stream({arguments})",
        "  ret void",
        "plain:",
        f"  call void @{name}.plain({arguments})",
        "  ret void",
        "}\n",
    ]
    texts = [e.text.replace("define void", "define internal void", 1) for e in (plain, streaming)]
    return Emitted(
        "\n".join([*texts, *lines]),
        {**plain.declarations, **streaming.declarations},
        plain.items,
        plain.grain,
        plain.scratch_bytes,
    )
