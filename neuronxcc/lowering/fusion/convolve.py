"""Convolutions as regions: a product whose epilogue runs over images, channels and pixels.

`calls.convolution` has put a convolution in PyTorch's order (images, channels, rows, columns). Its
results are handed out in tiles of channels times neighbouring pixels, or of pixels times
neighbouring channels where channels lie last in memory, so what follows it is computed as what
follows a matrix product is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.lowering.fusion.order import Region
from neuronxcc.program.memory import View
from neuronxcc.program.steps.conv import ConvStep

if TYPE_CHECKING:
    from neuronxcc.lowering.fusion.cluster import Cluster

TARGET = "aten::convolution"
TYPES = frozenset({DType.F32, DType.BF16, DType.F16})
PLANES = ((0,), (1,), (2, 3))  # dimensions of the result along the axes of the epilogue
LAST = ((0,), (2, 3), (1,))


class Geometry(NamedTuple):
    """How the window of a convolution moves, rows and columns."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def geometry(node: Node) -> Geometry:
    """Of a node that `is_convolution`."""
    _, _, _, stride, padding, dilation, _, _, groups = node["args"]
    return Geometry(stride, padding, dilation, groups)


def is_convolution(node: Node) -> bool:
    """Return whether a node is a call that ConvStep takes the place of."""
    if node.op is not Op.CUSTOM_CALL or node["target"] != TARGET or len(node.srcs) != 2:
        return False
    x, w = node.srcs
    _, _, _, _, _, _, transposed, *_ = node["args"]
    return (
        not transposed
        and x.type.rank == 4
        and x.dtype is w.dtype
        and x.dtype in TYPES
        and node.dtype in (x.dtype, DType.F32)
    )


class ConvRegion(Region):
    """A convolution and the pointwise nodes that are computed with it.

    Attributes:
        last: Whether the tiles are pixels times channels.
    """

    def __init__(self, call: Node, *, last: bool) -> None:
        super().__init__(call, LAST if last else PLANES)
        self.last = last


def region_of(node: Node, *, last: bool) -> Region | None:
    """The region that begins with a node; None if none does.

    Args:
        node: Any.
        last: Whether the result of a convolution should have its channels last in memory.
    """
    if node.op is Op.DOT_GENERAL:
        return Region(node)
    return ConvRegion(node, last=last) if is_convolution(node) else None


def multiplications(region: Region) -> int:
    """Of the product or convolution that a region begins with."""
    dot = region.dot
    count = dot.type.size
    if isinstance(region, ConvRegion):
        _, *kernel = dot.srcs[1].shape
        for extent in kernel:
            count *= extent
    else:
        for dim in dot["lhs_contract"]:
            count *= dot.srcs[0].shape[dim]
    return count


def is_narrow(region: ConvRegion, cluster: Cluster) -> bool:
    """Return whether everybody rounds the sums to the operands' type before anything else."""
    dot = region.dot
    dtype = dot.srcs[0].dtype
    if dot.dtype is dtype:
        return dtype is not DType.F32
    users = [node for node in cluster.inside if dot in node.srcs]
    stored = any(write.node is dot for write in cluster.writes)
    return not stored and all(n.op is Op.CONVERT and n.dtype is dtype for n in users)


def step_of(
    region: ConvRegion,
    x: View,
    w: View,
    out: View | None,
    *,
    constant: bool,
    narrow: bool,
    loc: str,
) -> ConvStep:
    """The step without an epilogue."""
    moves = geometry(region.dot)
    return ConvStep(
        x, w, out, *moves, last=region.last, constant_w=constant, narrow=narrow, loc=loc
    )
