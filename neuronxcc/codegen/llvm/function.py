"""One loop function: its frame, and the chunk of work items that a call is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from neuronxcc.codegen.llvm.emitter import Emitter, Val
from neuronxcc.codegen.llvm.host import Host
from neuronxcc.codegen.loop import Access
from neuronxcc.codegen.space import Space, accesses

# Traffic of a chunk: large enough to hide the cost of handing it out, and larger in long loops,
# where memory is faster if a thread stays in one place; yet so many chunks that threads that are
# held up leave others to do.
_CHUNK_BYTES, _LONGEST_BYTES = 32 << 10, 512 << 10
_CHUNKS = 64


@dataclass(frozen=True, slots=True)
class Emitted:
    """The text of a function and how it wants to be called."""

    text: str
    declarations: dict[str, str]
    items: int
    grain: int
    scratch_bytes: int


def pointers(em: Emitter, count: int, first: int = 0) -> list[Val]:
    """The buffers of the call, from number `first` of the table on."""
    table = Val("ptr", 0, "%bufs", 0)
    result = []
    for i in range(first, count):
        entry = em.gep("ptr", table, em.const("i64", i - first))
        result.append(em.pure("ptr", 0, em.load_rhs("ptr", 0, entry), entry))
    return result


def attributes(host: Host) -> str:
    """Attributes of all functions: vectors of the host's full width are legal."""
    bits = host.lanes * 32
    return f'nounwind "prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'


def wrap(em: Emitter, name: str, parameters: str) -> str:
    """The finished function."""
    lines = em.body()
    if any("%nowhere" in line for line in lines):
        lines[1:1] = ["  %nowhere = alloca [16 x i8], align 16"]
    body = "\n".join(lines)
    return f"define void @{name}({parameters}) #0 {{\n{body}\n}}\n"


LOOP_PARAMETERS = "ptr %bufs, i64 %begin, i64 %end, ptr %scratch"


@contextmanager
def each_item(em: Emitter) -> Iterator[Val]:
    """The body is run for every item of the chunk."""
    begin, end = Val("i64", 0, "%begin", 0), Val("i64", 0, "%end", 0)
    with em.loop(begin, end, may_be_empty=True) as loop:
        yield loop.index


def decode(em: Emitter, linear: Val, extents: Sequence[int]) -> list[Val]:
    """The indices of a linear position, outermost first."""
    result: list[Val] = []
    for axis, extent in enumerate(reversed(extents)):
        if axis == len(extents) - 1:
            result.append(linear)
        elif extent == 1:
            result.append(em.const("i64", 0))
        else:
            size = em.const("i64", extent)
            result.append(em.binary("urem", linear, size))
            linear = em.binary("udiv", linear, size)
    return result[::-1]


def traffic(space: Space, dims: Sequence[int]) -> int:
    """Bytes that the accesses touch while the dimensions `dims` run through, others standing."""
    total = 0
    seen: set[Access] = set()
    for access in accesses(space.kernel):
        if access in seen:
            continue
        seen.add(access)
        size = space.kernel.slots[access.slot].dtype.itemsize
        for dim in dims:
            if space.stride(access, dim) or access.indices:
                size *= space.extent(dim)
        total += size
    return max(total, 1)


def grain(item_bytes: int, items: int) -> int:
    """Items per chunk."""
    chunk = min(max(_CHUNK_BYTES, items * item_bytes // _CHUNKS), _LONGEST_BYTES)
    return max(1, min(items, chunk // item_bytes))
