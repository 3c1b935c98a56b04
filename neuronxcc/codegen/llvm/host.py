"""The machine that kernels are compiled for, and its LLVM target machine."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
from dataclasses import dataclass

import llvmlite.binding as llvm

from neuronxcc.environment.arithmetic import TORCH_NEURONX_ISA

_CACHE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Host:
    """A processor, and the number of float32 lanes that kernels use on it.

    Attributes:
        triple: LLVM target triple.
        cpu: LLVM's name of the processor.
        features: LLVM feature string, as "+avx2,-avx512f".
        lanes: Elements of 4 bytes in the widest register.
        cache_bytes: Of the last level of cache.
    """

    triple: str
    cpu: str
    features: str
    lanes: int
    cache_bytes: int = _CACHE_BYTES

    def has(self, feature: str) -> bool:
        """Return whether the instruction set extension `feature` (LLVM's name) may be used."""
        return feature in _implied(self.cpu) or f"+{feature}" in self.features.split(",")

    @property
    def fma(self) -> bool:
        """Fused multiply-add is one instruction."""
        return self.has("fma") or not self.triple.startswith("x86_64")

    @property
    def masked(self) -> bool:
        """Masked loads and stores of any element size take one instruction."""
        return self.has("avx512bw") and self.has("avx512vl")

    @property
    def avx512(self) -> bool:
        """Kernels use registers of 512 bits."""
        return self.lanes >= 16 and self.has("avx512f")

    @staticmethod
    @functools.cache
    def detect() -> Host:
        """This computer, with no more instructions than `TORCH_NEURONX_ISA` allows."""
        allowed = TORCH_NEURONX_ISA.get()
        features = llvm.get_host_cpu_features()
        lanes = 4
        if features.get("avx512bw") and features.get("avx512vl") and features.get("avx512dq"):
            lanes = 16
        elif features.get("avx2") and features.get("fma"):
            lanes = 8
        if allowed != "auto":
            held = Host.avx2() if allowed == "avx2" and lanes > 4 else Host.portable()
            return dataclasses.replace(held, cache_bytes=_cache_bytes())
        return Host(
            llvm.get_process_triple(),
            llvm.get_host_cpu_name(),
            features.flatten(),
            lanes,
            _cache_bytes(),
        )

    @staticmethod
    def avx2() -> Host:
        """Any x86-64 processor with AVX2 and FMA."""
        return Host(llvm.get_process_triple(), "x86-64-v3", "", 8)

    @staticmethod
    def portable() -> Host:
        """Any processor of this computer's architecture: no extensions, 4 lanes."""
        cpu = "x86-64" if platform.machine() == "x86_64" else "generic"
        return Host(llvm.get_process_triple(), cpu, "", 4)

    def runs_here(self) -> bool:
        """Return whether this computer can execute what is compiled for this host."""
        if self.triple != llvm.get_process_triple():
            return False
        here = llvm.get_host_cpu_features()
        needed = _implied(self.cpu) | {f[1:] for f in self.features.split(",") if f[:1] == "+"}
        return all(here.get(feature, False) for feature in needed)


def _implied(cpu: str) -> frozenset[str]:
    if cpu == "x86-64-v3":
        return frozenset({"avx", "avx2", "fma", "f16c", "bmi", "bmi2", "popcnt"})
    return frozenset()


def _cache_bytes() -> int:
    """The last level of this computer's cache; the default if the system does not say."""
    if "SC_LEVEL3_CACHE_SIZE" not in os.sysconf_names:
        return _CACHE_BYTES
    size = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    return size if size > 0 else _CACHE_BYTES


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@functools.cache
def target_machine(host: Host) -> llvm.TargetMachine:
    """The code generator of LLVM for `host`.

    Position independent code of the small model: constants are addressed relative to the
    instruction, and the linker adds stubs for far calls.
    """
    _initialize()
    return llvm.Target.from_triple(host.triple).create_target_machine(
        cpu=host.cpu, features=host.features, opt=2, reloc="pic", codemodel="small"
    )
