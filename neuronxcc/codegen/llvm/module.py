"""Kernels to machine code in this process."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np

from neuronxcc.codegen.llvm import libm, pointwise, reduction
from neuronxcc.codegen.llvm.function import Emitted, attributes
from neuronxcc.codegen.llvm.host import Host, target_machine
from neuronxcc.codegen.loop import Kernel, Kind
from neuronxcc.codegen.space import simplify


@dataclass(frozen=True, slots=True)
class Function:
    """A compiled kernel.

    Attributes:
        address: Of void (void* const* bufs, int64_t begin, int64_t end, void* scratch), or of an
            epilogue: void (void* const* bufs, int64_t batch, int64_t row0, int64_t rows,
            int64_t col0, int64_t cols, const float* tile, int64_t tile_stride).
        items: Work items in all; a call does those of [begin, end). Calls on disjoint ranges may
            run at once. 0 for epilogues.
        grain: Items that make a chunk worth handing to a thread.
        scratch_bytes: Memory that every concurrent call needs for itself, aligned to 64.
    """

    address: int
    items: int
    grain: int
    scratch_bytes: int


class CompiledModule:
    """Machine code of several kernels; it lives as long as this object."""

    def __init__(self, functions: tuple[Function, ...], owner: object) -> None:
        self.functions = functions
        self._owner = owner

    def run(self, number: int, buffers: Sequence[np.ndarray]) -> None:
        """Calls loop function `number` on this thread, chunk by chunk.

        Args:
            number: Position of the kernel.
            buffers: One array per slot, its first element being element 0 of the slot.
        """
        function = self.functions[number]
        table = (ctypes.c_void_p * max(1, len(buffers)))(*(b.ctypes.data for b in buffers))
        scratch = np.empty(function.scratch_bytes + 64, np.uint8)
        aligned = (scratch.ctypes.data + 63) & ~63
        call = _LOOP(function.address)
        for begin in range(0, function.items, function.grain):
            call(table, begin, min(begin + function.grain, function.items), aligned)


_LOOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_serial = itertools.count()


def emit_kernel(kernel: Kernel, host: Host, name: str) -> Emitted:
    """LLVM IR of one kernel."""
    space = simplify(kernel)
    if any(dim.kind is Kind.REDUCE for dim in kernel.dims):
        return reduction.emit(space, host, name)
    return pointwise.emit(space, host, name)


def module_text(emitted: Sequence[Emitted], host: Host) -> str:
    """LLVM IR of a module."""
    declarations: dict[str, str] = {}
    for one in emitted:
        declarations.update(one.declarations)
    parts = [f'target triple = "{host.triple}"\n', *(e.text for e in emitted)]
    parts += [declarations[key] for key in sorted(declarations)]
    parts.append(f"attributes #0 = {{ {attributes(host)} }}\n")
    return "\n".join(parts)


def compile_kernels(kernels: Sequence[Kernel], host: Host | None = None) -> CompiledModule:
    """Compiles kernels for this computer, or for a `host` whose code it can run.

    Raises:
        CodegenUnsupported: There is no schedule or instruction for one of them.
    """
    host = host or Host.detect()
    emitted = [emit_kernel(kernel, host, f"k{i}") for i, kernel in enumerate(kernels)]
    machine = target_machine(host)
    image = machine.emit_object(llvm.parse_assembly(module_text(emitted, host)))
    tracker = link(image, [f"k{i}" for i in range(len(kernels))], host)
    functions = tuple(
        Function(tracker[f"k{i}"], e.items, e.grain, e.scratch_bytes) for i, e in enumerate(emitted)
    )
    return CompiledModule(functions, tracker)


_jits: dict[Host, llvm.LLJIT] = {}


def link(image: bytes, names: Sequence[str], host: Host) -> llvm.ResourceTracker:
    """Loads an object into the process; it stays until the tracker is dropped."""
    jit = _jits.get(host)
    if jit is None:
        jit = _jits[host] = llvm.create_lljit_compiler(target_machine(host), use_jit_link=True)
    builder = llvm.JITLibraryBuilder().add_object_img(image)
    for symbol, address in libm.symbols().items():
        builder.import_symbol(symbol, address)
    for name in names:
        builder.export_symbol(name)
    return builder.link(jit, f"kernels{next(_serial)}")
