"""Loop kernels to machine code: explicit-vector LLVM IR, no compiler passes, LLVM's back end."""

from neuronxcc.codegen.llvm.host import Host
from neuronxcc.codegen.llvm.module import CompiledModule, Function, compile_kernels

__all__ = ["CompiledModule", "Function", "Host", "compile_kernels"]
