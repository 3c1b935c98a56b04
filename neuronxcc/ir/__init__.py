"""Tensor IR: SSA on whole tensors with static shapes, operators aligned with XLA's."""

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, Loc, parameter
from neuronxcc.ir.node import Literal, Node, Operand, TensorType, topological
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group

__all__ = [
    "DType",
    "Graph",
    "Group",
    "Literal",
    "Loc",
    "Node",
    "Op",
    "Operand",
    "TensorType",
    "parameter",
    "topological",
]
