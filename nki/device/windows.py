"""Windows: pooling and its gradient. Images lie in SBUF, one per partition, and are shifted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import nki.isa as nisa
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from nki.device.emitter import Emitter, NoLoweringError, Value, chunks, require_form
from nki.device.groups import Group, Use, is_number
from nki.device.rows import blocks_of
from nki.device.transfers import pattern
from nki.device.types import HELD
from nki.device.views import View, boxes, collapsed, contiguous
from nki.tensor import NkiTensor

__all__ = ["Plane", "load_plane", "run_reduce_window", "run_select_and_scatter", "store_plane"]

Tensors = Mapping[Node, NkiTensor]

_ROOM = 128 * 1024  # bytes of a partition for planes
_COMBINES = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
_NEUTRAL = {"add": 0.0, "mul": 1.0, "max": -math.inf, "min": math.inf}


class Plane(NamedTuple):
    """Padded images, one per partition.

    Attributes:
        tile: of (partitions, elements).
        shape: sizes of an image with its padding.
    """

    tile: NkiTensor
    shape: tuple[int, ...]

    def part(
        self, first: tuple[int, ...], steps: tuple[int, ...], sizes: tuple[int, ...]
    ) -> NkiTensor:
        """Return elements of all images: those at ``first + steps * i``."""
        strides = contiguous(self.shape).strides
        offset = sum(a * s for a, s in zip(first, strides, strict=True))
        pairs = [[self.tile.shape[1], self.tile.shape[0]]]
        pairs += [
            [step * stride, size] for step, stride, size in zip(steps, strides, sizes, strict=True)
        ]
        return self.tile.ap(pairs, offset=offset)


def load_plane(
    e: Emitter,
    tensor: NkiTensor,
    dims: tuple[View, View],
    row: int,
    partitions: int,
    padded: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    fill: float,
    dtype: DType,
) -> Plane:
    """Load images with padding around their elements and gaps between them.

    Args:
        e: the emitter.
        tensor: in HBM.
        dims: views of the dimensions that are rows, and of those of an image; offsets add up.
        row: first image.
        partitions: how many.
        padded: sizes with padding, where the first element comes to lie (may be negative), and the
            distances of elements.
        fill: what is in between.
        dtype: of the elements.
    """
    shape, low, steps = padded
    kind = HELD[dtype]
    plane = Plane(e.tile(math.prod(shape), kind, partitions), shape)
    rows, image = dims
    begin, sizes, places = [], [], []
    for d, size in enumerate(image.shape):
        first = max(0, -(low[d] // steps[d])) if low[d] < 0 else 0
        end = min(size, -(-(shape[d] - low[d]) // steps[d]))
        begin.append(first)
        sizes.append(max(0, end - first))
        places.append(low[d] + first * steps[d])
    if math.prod(sizes) != math.prod(shape):
        nisa.memset(plane.tile, fill)
    if not math.prod(sizes):
        return plane
    inside = plane.part(tuple(places), steps, tuple(sizes))
    offset = rows.offset + image.offset
    offset += sum(a * s for a, s in zip(begin, image.strides, strict=True))
    inner = tuple(zip(sizes, image.strides, strict=True))
    for at, more, outer in boxes(collapsed(rows.dims), row, partitions):
        height = math.prod(size for size, _ in outer)
        part = inside[at : at + height]
        # Where an image is no run of rows, DMA takes it row by row: three dimensions at most.
        nisa.dma_copy(dst=part, src=pattern(tensor, (*outer, *inner), offset + more))
    return plane


def store_plane(
    e: Emitter,
    tensor: NkiTensor,
    dims: tuple[View, View],
    row: int,
    partitions: int,
    tile: NkiTensor,
) -> None:
    """Write images to HBM: `tile` has (partitions, elements of an image)."""
    rows, image = dims
    del e
    for at, more, outer in boxes(collapsed(rows.dims), row, partitions):
        height = math.prod(size for size, _ in outer)
        where = pattern(tensor, (*outer, *collapsed(image.dims)), rows.offset + image.offset + more)
        nisa.dma_copy(dst=where, src=tile[at : at + height])


class _Geometry(NamedTuple):
    """Which dimensions are windowed, and how.

    Attributes:
        rows: dimensions that are not.
        image: those that are; at least one.
        sizes: of the result along them.
        window: likewise.
        strides: likewise.
        low: likewise.
        base: distances of elements.
        holes: distances of elements in a window.
        padded: sizes with padding.
    """

    rows: tuple[int, ...]
    image: tuple[int, ...]
    sizes: tuple[int, ...]
    window: tuple[int, ...]
    strides: tuple[int, ...]
    low: tuple[int, ...]
    base: tuple[int, ...]
    holes: tuple[int, ...]
    padded: tuple[int, ...]

    def places(self) -> Iterator[tuple[int, ...]]:
        """Iterate over where windows begin for each of their elements, in order."""
        for place in itertools.product(*map(range, self.window)):
            yield tuple(p * h for p, h in zip(place, self.holes, strict=True))


def _geometry(node: Node, shape: tuple[int, ...], result: tuple[int, ...]) -> _Geometry:
    rank = len(shape)
    ones = (1,) * rank
    base, holes = node.get("base_dilation", ones), node.get("window_dilation", ones)
    plain = [
        node["window"][d] == 1 and node["strides"][d] == 1 and not node["low"][d]
        and not node["high"][d] and base[d] == 1
        for d in range(rank)
    ]  # fmt: skip
    image = [d for d in range(rank) if not plain[d]] or [rank - 1]
    rows = tuple(d for d in range(rank) if d not in image)
    padded = tuple(
        max(0, node["low"][d] + (shape[d] - 1) * base[d] + 1 + node["high"][d]) for d in image
    )

    def of(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(values[d] for d in image)

    return _Geometry(
        rows, tuple(image), of(result), of(node["window"]), of(node["strides"]), of(node["low"]),
        of(base), of(holes), padded,
    )  # fmt: skip


def _dims(view: View, g: _Geometry) -> tuple[View, View]:
    rows = view.permuted(g.rows)
    return rows, view.permuted(g.image)._replace(offset=0)


def _tensor(inputs: Tensors, use: Use) -> NkiTensor:
    require_form(use.source.dtype)
    if is_number(use.source):
        raise NoLoweringError("windows of one number everywhere")
    if use.source.dtype.itemsize > 4:
        raise NoLoweringError("windows of 64-bit integers")
    return inputs[use.source]


def _check_room(*sizes: int) -> None:
    total = 4 * sum(sizes)
    if total > _ROOM:
        raise NoLoweringError(
            f"images of {total} bytes, of which a partition holds {_ROOM}: their windows are not "
            "divided yet"
        )


def run_reduce_window(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Combine the elements of each window, one shifted plane after the other."""
    (node,) = group.nodes
    e.at(node)
    (use,) = group.uses[node]
    tensor = _tensor(inputs, use)
    g = _geometry(node, use.view.shape, node.shape)
    op, fill = _COMBINES.get(node["kind"], ""), _NEUTRAL.get(node["kind"], 0.0)
    if not op:
        raise NoLoweringError(f"windows are not combined by {node['kind']}")
    rows = math.prod(node.shape[d] for d in g.rows)
    lines, image = _dims(contiguous(node.shape), g)
    for row, partitions in e.share(blocks_of(rows)):
        for begin, band in _bands(g):
            e.partitions = partitions
            plane = load_plane(
                e, tensor, _dims(use.view, g), row, partitions, (band.padded, band.low, band.base),
                fill, node.dtype,
            )  # fmt: skip
            tile = _folded(e, plane, band, op)
            e.columns = math.prod(band.sizes)
            value = Value(tile, DType.F32)
            if tile.dtype != HELD[node.dtype]:
                value = e.copied(value, node.dtype)
            at = lines._replace(offset=begin * image.strides[0])
            where = at, image._replace(shape=band.sizes)
            store_plane(e, outputs[node], where, row, partitions, value.tile)


def _bands(g: _Geometry) -> list[tuple[int, _Geometry]]:
    """Return parts of a result that fit, along its first windowed dimension, and their begins."""
    reach = (g.window[0] - 1) * g.holes[0] + 1
    line, result = math.prod(g.padded[1:]), 2 * math.prod(g.sizes[1:])
    count = g.sizes[0]
    while count > 1 and 4 * (((count - 1) * g.strides[0] + reach) * line + count * result) > _ROOM:
        count = -(-count // 2)
    _check_room(((count - 1) * g.strides[0] + reach) * line, count * result)
    if count == g.sizes[0]:
        return [(0, g)]
    return [
        (
            begin,
            g._replace(
                sizes=(size, *g.sizes[1:]),
                low=(g.low[0] - begin * g.strides[0], *g.low[1:]),
                padded=((size - 1) * g.strides[0] + reach, *g.padded[1:]),
            ),
        )
        for begin, size in chunks(g.sizes[0], count)
    ]


def _folded(e: Emitter, plane: Plane, g: _Geometry, op: str) -> NkiTensor:
    """Return all windows' elements combined, in float32."""
    size = math.prod(g.sizes)
    shape = [[size, plane.tile.shape[0]]]
    shape += [[s, n] for n, s in contiguous(g.sizes).dims]
    total: NkiTensor | None = None
    for place in g.places():
        part = plane.part(place, g.strides, g.sizes)
        made = e.tile(size, "float32", plane.tile.shape[0])
        if total is None:
            nisa.tensor_copy(made.ap(shape), part)
        else:
            nisa.tensor_tensor(made.ap(shape), total.ap(shape), part, op=op)
        total = made
    assert total is not None
    return total


def run_select_and_scatter(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Add each element of the source to the place that its window selects, the first of equals."""
    (node,) = group.nodes
    e.at(node)
    operand, given = group.uses[node]
    if node["kind"] != "add":
        raise NoLoweringError(f"selected elements are not combined by {node['kind']}")
    g = _geometry(node, operand.view.shape, given.view.shape)
    _check_room(3 * math.prod(g.padded), 5 * math.prod(g.sizes))
    op = _COMBINES[node["select"]]
    rows = math.prod(node.shape[d] for d in g.rows)
    size = math.prod(g.sizes)
    shape = contiguous(g.sizes)
    still = (g.sizes, (0,) * len(g.sizes), (1,) * len(g.sizes))
    for row, partitions in e.share(blocks_of(rows)):
        e.partitions = partitions
        plane = load_plane(
            e, _tensor(inputs, operand), _dims(operand.view, g), row, partitions,
            (g.padded, g.low, g.base), _NEUTRAL[node["select"]], node.dtype,
        )  # fmt: skip
        source = load_plane(
            e, _tensor(inputs, given), _dims(given.view, g), row, partitions, still, 0.0, node.dtype
        )
        best = _folded(e, plane, g, op)
        total = Plane(e.tile(math.prod(g.padded), "float32"), g.padded)
        nisa.memset(total.tile, 0.0)
        pairs = [[size, partitions], *[[s, n] for n, s in shape.dims]]
        left = e.tile(size, "float32")  # 1 where nothing is selected yet
        nisa.memset(left, 1.0)
        for place in g.places():
            same, chosen, part, rest = (e.tile(size, "float32") for _ in range(4))
            here = plane.part(place, g.strides, g.sizes)
            nisa.tensor_tensor(same.ap(pairs), here, best.ap(pairs), op="equal")
            nisa.tensor_tensor(chosen, same, left, op="multiply")
            nisa.tensor_tensor(part, chosen, source.tile, op="multiply")
            nisa.tensor_tensor(rest, left, chosen, op="subtract")
            left = rest
            where = total.part(place, g.strides, g.sizes)
            nisa.tensor_tensor(where, where, part.ap(pairs), op="add")
        image = tuple(node.shape[d] for d in g.image)
        e.columns = math.prod(image)
        made = e.tile(e.columns, HELD[node.dtype])
        target = [[e.columns, partitions], *[[s, n] for n, s in contiguous(image).dims]]
        if any(low < 0 for low in g.low):
            raise NoLoweringError("windows with negative padding")
        nisa.tensor_copy(made.ap(target), total.part(g.low, g.base, image))
        store_plane(e, outputs[node], _dims(contiguous(node.shape), g), row, partitions, made)
