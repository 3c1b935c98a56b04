"""Kernels to LLVM IR, and that to an object file."""

from __future__ import annotations

import json
from collections.abc import Sequence

import llvmlite.binding as llvm

from neuronxcc.codegen.errors import CodegenUnsupported
from neuronxcc.codegen.llvm import epilogue, pointwise, reduction, scatter, streaming
from neuronxcc.codegen.llvm.function import Emitted, attributes
from neuronxcc.codegen.llvm.host import Host, target_machine
from neuronxcc.codegen.loop import Kernel, Kind
from neuronxcc.codegen.space import simplify
from neuronxcc.codegen.verify import verify


def emit_kernel(
    kernel: Kernel, host: Host, name: str, far: frozenset[int] = frozenset()
) -> Emitted:
    """LLVM IR of one kernel; `far` as for `compile_kernels`."""
    reduced = any(dim.kind is Kind.REDUCE for dim in kernel.dims)
    if any(dim.extent == 0 for dim in kernel.dims):
        if any(dim.extent == 0 and dim.kind is Kind.REDUCE for dim in kernel.dims):
            raise CodegenUnsupported("a reduction over nothing: its value is a constant")
        return Emitted(_nothing(name), {}, 0, 1, 0)
    if kernel.slots and kernel.slots[0].tile:
        return epilogue.emit(kernel, host, name)
    space = simplify(kernel)
    if any(scatter.meets(store) for store in kernel.stores):
        return scatter.emit(space, host, name)
    emit = reduction.emit if reduced else pointwise.emit
    streams = streaming.streamed(space, host, far)
    if not streams:
        return emit(space, host, name, streams)
    plain = emit(space, host, f"{name}.plain", frozenset())
    return streaming.choosing(streams, name, plain, emit(space, host, f"{name}.stream", streams))


def _nothing(name: str) -> str:
    return f"define void @{name}(ptr %b, i64 %i, i64 %j, ptr %s) #0 {{\n  ret void\n}}\n"


def module_text(emitted: Sequence[Emitted], host: Host) -> str:
    """LLVM IR of a module."""
    declarations: dict[str, str] = {}
    for one in emitted:
        declarations.update(one.declarations)
    parts = [f'target triple = "{host.triple}"\n', *(e.text for e in emitted)]
    parts += [declarations[key] for key in sorted(declarations)]
    parts.append(f"attributes #0 = {{ {attributes(host)} }}\n")
    return "\n".join(parts)


def compile_object(wanted: Sequence[tuple[Kernel, frozenset[int]]], host: Host) -> bytes:
    """How each function wants to be called, as a line of JSON, and the object file."""
    for kernel, _ in wanted:
        verify(kernel)
    emitted = [emit_kernel(kernel, host, f"k{i}", far) for i, (kernel, far) in enumerate(wanted)]
    machine = target_machine(host)
    image: bytes = machine.emit_object(llvm.parse_assembly(module_text(emitted, host)))
    shapes = [(e.items, e.grain, e.scratch_bytes) for e in emitted]
    return json.dumps(shapes).encode() + b"\n" + image
