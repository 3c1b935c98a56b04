"""Elementwise operators that the code generator lacks for a type: they become calls of ATen's."""

from __future__ import annotations

import functools

from neuronxcc.codegen.errors import CodegenUnsupported
from neuronxcc.codegen.loop import Access, Dim, Kernel, Scalar, Slot, Store
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, Operand
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.lowering.errors import LoweringUnsupportedError

# The types that kernels compute everything in.
_USUAL = frozenset(
    {DType.F32, DType.BF16, DType.F16, DType.F64, DType.PRED, DType.S64, DType.S32, DType.U8}
)


def is_supported(node: Node) -> bool:
    """Return whether a loop kernel can compute an elementwise node."""
    dtypes = tuple(src.dtype for src in node.srcs)
    return _USUAL.issuperset((*dtypes, node.dtype)) or _supported(node.op, dtypes, node.dtype)


@functools.cache
def _supported(op: Op, srcs: tuple[DType, ...], dtype: DType) -> bool:
    """Asks the code generator, by a kernel of this one operator."""
    loads = tuple(
        Scalar.make("load", source, access=Access(i, (1,))) for i, source in enumerate(srcs)
    )
    if op is Op.REDUCE_PRECISION:
        loads += (Scalar.make("const", DType.S32, value=8),) * 2
    value = Scalar.make("op", dtype, loads, op=op, direction="EQ" if op is Op.COMPARE else "")
    slots = (*map(Slot, srcs), Slot(dtype))
    store = Store(Access(len(srcs), (1,)), value)
    # Few programs ask, and only they wait for the import.
    from neuronxcc.codegen.llvm.emission import emit_kernel  # noqa: PLC0415
    from neuronxcc.codegen.llvm.host import Host  # noqa: PLC0415

    try:
        emit_kernel(Kernel("probe", (Dim(64),), slots, (store,)), Host.detect(), "probe")
    except CodegenUnsupported:
        return False
    return True


def call_elementwise(node: Node) -> Node:
    """The same value, computed by ATen.

    Raises:
        LoweringUnsupportedError: ATen has no such operator.
    """
    if node.op not in Group.UNARY:
        raise LoweringUnsupportedError(
            node, "no kernel and no operator of ATen computes it", "Convert the operands first"
        )
    name = "sigmoid" if node.op is Op.LOGISTIC else node.op.name.lower()
    return build.custom_call(f"aten::{name}", node.types, node.srcs, args=(Operand(0),))
