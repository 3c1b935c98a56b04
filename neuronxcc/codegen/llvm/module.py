"""Kernels to machine code in this process."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm

from neuronxcc.codegen.llvm import libm
from neuronxcc.codegen.llvm.host import Host, target_machine
from neuronxcc.codegen.loop import Kernel
from neuronxcc.codegen.objects import ObjectCache, code_version, default_cache
from neuronxcc.codegen.text import to_text
from neuronxcc.ir.arithmetic import Array


@dataclass(frozen=True, slots=True)
class Function:
    """A compiled kernel.

    Attributes:
        address: Of void (void* const* bufs, int64_t begin, int64_t end, void* scratch), or of an
            epilogue: void (void* const* bufs, int64_t batch, int64_t row0, int64_t rows,
            int64_t col0, int64_t cols, const float* tile, int64_t tile_stride).
        items: Work items in all; a call does those of [begin, end). Calls on disjoint ranges may
            run at once. 0 for epilogues, and for kernels that have nothing to do.
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

    def run(self, number: int, buffers: Sequence[Array]) -> None:
        """Calls loop function `number` on this thread, chunk by chunk.

        Args:
            number: Position of the kernel.
            buffers: One array per slot, its first element being element 0 of the slot.
        """
        function = self.functions[number]
        table = (ctypes.c_void_p * max(1, len(buffers)))(*(b.ctypes.data for b in buffers))
        scratch = ctypes.create_string_buffer(function.scratch_bytes + 64)
        aligned = (ctypes.addressof(scratch) + 63) & ~63
        call = _LOOP(function.address)
        for begin in range(0, function.items, function.grain):
            call(table, begin, min(begin + function.grain, function.items), aligned)


_LOOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_serial = itertools.count()
_log = logging.getLogger(__name__)


def compile_kernels(
    kernels: Sequence[Kernel],
    host: Host | None = None,
    cache: ObjectCache | None = None,
    far: Sequence[frozenset[int]] = (),
) -> CompiledModule:
    """Compiles kernels, equal ones once, or loads them from the user's cache of machine code.

    Args:
        kernels: Loop kernels and epilogues (those whose first slot is a tile).
        host: Compile for this one; this computer by default, and it must be able to run the code.
        cache: Where machine code is kept; the user's by default.
        far: For every kernel the slots that lie in something larger than the cache, which is
            written piece by piece: stores to them go past the caches. None of any by default.

    Returns:
        A module whose functions[i] is kernels[i].

    Raises:
        CodegenUnsupported: There is no schedule or instruction for one of them.
        CodegenError: One of them breaks a rule.
    """
    host = host or Host.detect()
    cache = cache or default_cache()
    wanted = list(zip(kernels, far or [frozenset[int]()] * len(kernels), strict=True))
    texts = [
        to_text(kernel, name=False) + (f"\nfar {sorted(slots)}" if slots else "")
        for kernel, slots in wanted
    ]
    distinct = dict(zip(texts, wanted, strict=True))
    if not distinct:
        return CompiledModule((), None)
    key = _key(list(distinct), host)
    stored = cache.get(key)
    loaded = None
    if stored is not None:
        try:
            loaded = _load(stored, len(distinct), host)
        except (ValueError, TypeError, RuntimeError) as error:  # LLVM's are the last
            _log.warning("stored machine code is not used but compiled anew: %s", error)
    if loaded is None:
        from neuronxcc.codegen.llvm.emission import compile_object  # noqa: PLC0415 - often stored

        stored = compile_object(list(distinct.values()), host)
        cache.put(key, stored)
        loaded = _load(stored, len(distinct), host)
    found, owner = loaded
    functions = dict(zip(distinct, found, strict=True))
    return CompiledModule(tuple(functions[text] for text in texts), owner)


def _load(stored: bytes, count: int, host: Host) -> tuple[list[Function], llvm.ResourceTracker]:
    """The functions of an object and what keeps them in the process.

    Raises:
        ValueError: It has not this many functions, or what it says of them cannot be.
        RuntimeError: It is no object that LLVM can link.
    """
    head, _, image = stored.partition(b"\n")
    shapes = json.loads(head)
    if not isinstance(shapes, list) or len(shapes) != count:
        raise ValueError(f"it does not have {count} functions")
    for shape in shapes:
        items, grain, scratch = shape
        if any(type(n) is not int or n < 0 for n in (items, grain, scratch)) or items > 0 == grain:
            raise ValueError(f"{shape} cannot be a function's items, grain and scratch memory")
    tracker = link(image, [f"k{i}" for i in range(count)], host)
    return [Function(tracker[f"k{i}"], *shape) for i, shape in enumerate(shapes)], tracker


def _key(texts: Sequence[str], host: Host) -> str:
    parts = [code_version(), repr(host), *texts]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


_jits: dict[Host, llvm.LLJIT] = {}
_jits_lock = threading.Lock()


def link(image: bytes, names: Sequence[str], host: Host) -> llvm.ResourceTracker:
    """Loads an object into the process; it stays until the tracker is dropped."""
    with _jits_lock:
        jit = _jits.get(host)
        if jit is None:
            jit = _jits[host] = llvm.create_lljit_compiler(target_machine(host), use_jit_link=True)
    builder = llvm.JITLibraryBuilder().add_object_img(image)
    for symbol, address in libm.symbols().items():
        builder.import_symbol(symbol, address)
    for name in names:
        builder.export_symbol(name)
    return builder.link(jit, f"kernels{next(_serial)}")
