"""Convolutions as products over the places of a window: no matrix of windows is made.

Images lie in SBUF with their padding, a channel per partition. For each place in the window the
weights of that place stand still while the shifted image moves through the Tensor Engine, and all
places and channels add up in PSUM. Convolutions of single channels are sums of shifted images on
the Vector Engine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from nki.device.emitter import PARTITIONS, Emitter, NoLoweringError, Value, chunks, require_form
from nki.device.groups import Group, Space, is_number
from nki.device.products import BANK
from nki.device.rows import Rows
from nki.device.transfers import pattern, turn
from nki.device.types import HELD
from nki.device.views import View, collapsed, contiguous
from nki.device.windows import Plane, load_plane
from nki.dtypes import info
from nki.tensor import NkiTensor

__all__ = ["run_convolution", "space_of_convolution"]

Tensors = Mapping[Node, NkiTensor]

_PLANES = 40 * 1024  # bytes of a partition for the images that are multiplied at once
_ROOM = 128 * 1024  # bytes of a partition for the planes and weights of a group
_ALLOWED = frozenset({DType.F32, DType.BF16, DType.F16, DType.F8E4M3, DType.F8E4M3FN, DType.F8E5M2})


def space_of_convolution(node: Node) -> Space | None:
    """Return the rows and columns of a result that lies image by image, channel by channel."""
    if tuple(node["out_spec"]) != tuple(range(len(node.shape))):
        return None
    rows = math.prod(node.shape[:2])
    return Space(rows, node.type.size // max(1, rows))


class _Convolution(NamedTuple):
    """Sizes of a convolution, with features of one group."""

    images: int
    groups: int
    batch_groups: int
    inputs: int
    outputs: int
    window: tuple[int, ...]
    strides: tuple[int, ...]
    holes: tuple[int, ...]
    base: tuple[int, ...]
    low: tuple[int, ...]
    padded: tuple[int, ...]
    sizes: tuple[int, ...]


def _of(node: Node, x: View, w: View) -> _Convolution:
    groups, batch_groups = node["feature_group_count"], node["batch_group_count"]
    out = tuple(node.shape[d] for d in node["out_spec"])
    base = node["lhs_dilation"]
    padded = tuple(
        max(0, low + (n - 1) * b + 1 + high)
        for low, n, b, high in zip(node["low"], x.shape[2:], base, node["high"], strict=True)
    )
    return _Convolution(
        out[0], groups, batch_groups, w.shape[1], w.shape[0] // (groups * batch_groups),
        w.shape[2:], node["strides"], node["rhs_dilation"], base, node["low"], padded, out[2:],
    )  # fmt: skip


class _Runner:
    def __init__(self, e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
        self.e = e
        self.node = node = group.nodes[0]
        lhs, rhs = group.uses[node]
        for use in (lhs, rhs):
            require_form(use.source.dtype)
            if use.source.dtype not in _ALLOWED:
                raise NoLoweringError(
                    f"the Tensor Engine does not multiply {use.source.dtype.value}", "NCC_EVRF035"
                )
            if is_number(use.source):
                raise NoLoweringError("a convolution with one number everywhere")
        self.x, self.w = lhs.view.permuted(node["lhs_spec"]), rhs.view.permuted(node["rhs_spec"])
        self.image, self.weight = inputs[lhs.source], inputs[rhs.source]
        self.dtype, self.kind = lhs.source.dtype, HELD[lhs.source.dtype]
        self.c = _of(node, self.x, self.w)
        self._by_image = self.c.images >= e.cores
        self.rows: Rows | None = None
        if group.spaces:
            self.rows = Rows(e, group, group.spaces[0], inputs, outputs)
        self.output = outputs.get(node)
        self._kept: tuple[object, list[tuple[int, Plane]]] = (None, [])

    def run(self) -> None:
        c = self.c
        if c.inputs == 1 and c.outputs == 1 and c.groups > 1:
            if self._by_image or not self.e.core:
                self._single()
            return
        for group in range(c.groups * c.batch_groups):
            for o in chunks(c.outputs, PARTITIONS):
                weights = self._weights(group, o)
                for image in self._images():
                    for band in self._bands():
                        self._band(group, image, band, o, weights)

    def _images(self) -> Sequence[int]:
        """Return the images that are this core's, all of them where cores share something else."""
        images = range(self.c.images)
        return self.e.share(images) if self._by_image else images

    # --- operands --------------------------------------------------------------------------------

    def _weights(self, group: int, part: tuple[int, int]) -> dict[tuple[int, int], NkiTensor]:
        """Return by (place, first input) tiles of (inputs, outputs), for some outputs."""
        c, e = self.c, self.e
        places = math.prod(c.window)
        found = {}
        o, outputs = part
        first = group * c.outputs + o
        natural = nl.ndarray((outputs, c.inputs * places), dtype=self.kind, buffer=nl.sbuf)
        dims = (outputs, self.w.strides[0]), *self.w.dims[1:]
        offset = self.w.offset + first * self.w.strides[0]
        nisa.dma_copy(dst=natural, src=pattern(self.weight, collapsed(dims), offset))
        for i, count in chunks(c.inputs, PARTITIONS):
            for place in range(places):
                weight = natural.ap(
                    [[c.inputs * places, outputs], [places, count]], offset=i * places + place
                )
                tile = e.tile(outputs, self.kind, count)
                turn(e, weight, tile)
                found[place, i] = tile
        return found

    def _bands(self) -> list[tuple[int, int]]:
        """Return (first, count) of the result's outermost positions whose images fit at once."""
        c = self.c
        if not c.sizes:
            return [(0, 1)]
        each = math.prod(c.padded[1:]) * info(self.kind).itemsize * -(-c.inputs // PARTITIONS)
        rows = _PLANES // max(1, each) - (c.window[0] - 1) * c.holes[0] - 1
        count = max(1, rows // c.strides[0] + 1) if rows >= 0 else 1
        if each * ((c.window[0] - 1) * c.holes[0] + 1) > _ROOM:
            raise NoLoweringError(
                f"rows of images of {each} bytes in a partition, which has {_ROOM} for a window"
            )
        return chunks(c.sizes[0], min(count, c.sizes[0]))

    def _planes(self, group: int, image: int, band: tuple[int, int]) -> list[tuple[int, Plane]]:
        """Return (first channel, images of up to 128 channels) of what a band needs."""
        key = (group, image, band)
        if self._kept[0] == key:
            return self._kept[1]
        c = self.c
        number, first = image, group * c.inputs
        if c.batch_groups > 1:
            number, first = group * c.images + image, 0
        offset = self.x.offset + number * self.x.strides[0] + first * self.x.strides[1]
        image_view = View(self.x.shape[2:], self.x.strides[2:])
        padded, low = c.padded, c.low
        if c.sizes and band != (0, c.sizes[0]):
            begin = band[0] * c.strides[0]
            rows_in = (band[1] - 1) * c.strides[0] + (c.window[0] - 1) * c.holes[0] + 1
            padded, low = (rows_in, *padded[1:]), (low[0] - begin, *low[1:])
        planes = []
        for i, count in chunks(c.inputs, PARTITIONS):
            rows = View((count,), self.x.strides[1:2], offset + i * self.x.strides[1])
            plane = load_plane(
                self.e, self.image, (rows, image_view), 0, count, (padded, low, c.base), 0.0,
                self.dtype,
            )  # fmt: skip
            planes.append((i, plane))
        self._kept = (key, planes)
        return planes

    # --- one image -------------------------------------------------------------------------------

    def _band(
        self,
        group: int,
        image: int,
        band: tuple[int, int],
        part: tuple[int, int],
        weights: dict[tuple[int, int], NkiTensor],
    ) -> None:
        """Compute some rows of an image's result, for some outputs."""
        c = self.c
        self.e.at(self.node)
        planes = self._planes(group, image, band)
        parts = self._parts((band[1], *c.sizes[1:]) if c.sizes else ())
        for at, sizes in parts if self._by_image else self.e.share(parts):
            self.e.at(self.node)
            total = nl.ndarray((part[1], math.prod(sizes)), dtype="float32", buffer=nl.psum)
            shape = [[math.prod(sizes), part[1]], *[[s, n] for n, s in contiguous(sizes).dims]]
            where = total.ap(shape)
            for number, place in enumerate(itertools.product(*map(range, c.window))):
                first = tuple(
                    b * s + p * h for b, s, p, h in zip(at, c.strides, place, c.holes, strict=True)
                )
                for i, plane in planes:
                    moving = plane.part(first, c.strides, sizes)
                    nisa.nc_matmul(where, weights[number, i], moving)
            begin = (band[0] + at[0], *at[1:]) if c.sizes else ()
            self._finish(group, image, part, begin, sizes, total)

    def _parts(self, whole: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return (begin, sizes) of parts of a result that a bank of PSUM holds."""
        found: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ())]
        for d, size in enumerate(whole):
            inner = math.prod(whole[d + 1 :])
            most = max(1, min(size, BANK // inner)) if inner <= BANK else 1
            found = [
                ((*begin, at), (*part, count))
                for begin, part in found
                for at, count in chunks(size, most)
            ]
        return found

    def _finish(
        self,
        group: int,
        image: int,
        outputs: tuple[int, int],
        begin: tuple[int, ...],
        sizes: tuple[int, ...],
        total: NkiTensor,
    ) -> None:
        c, e, node = self.c, self.e, self.node
        first = group * c.outputs + outputs[0]
        channels = c.groups * c.batch_groups * c.outputs
        e.partitions, e.columns = outputs[1], math.prod(sizes)
        value = Value(total, node.dtype)
        if node.dtype is not DType.F32:
            value = e.copied(value, node.dtype)
        strides = contiguous(c.sizes).strides
        column = sum(b * s for b, s in zip(begin, strides, strict=True))
        if self.rows is not None:
            self.rows.begin_rows(image * channels + first, outputs[1])
            self.rows.begin_columns(column, e.columns, {node: value})
            self.rows.store(full=None if column == 0 else True)
            return
        assert self.output is not None
        spec = node["out_spec"]
        view = contiguous(node.shape).permuted(spec)
        offset = image * view.strides[0] + first * view.strides[1]
        offset += sum(b * s for b, s in zip(begin, view.strides[2:], strict=True))
        dims = (outputs[1], view.strides[1]), *zip(sizes, view.strides[2:], strict=True)
        tile = value.tile
        if tile.buffer is nl.psum:
            tile = e.on_sbuf(tile)
        nisa.dma_copy(dst=pattern(self.output, collapsed(dims), offset), src=tile)

    # --- a channel for itself --------------------------------------------------------------------

    def _single(self) -> None:
        """Sum shifted images, each times the weight of its channel: a channel per partition."""
        c, e = self.c, self.e
        places = math.prod(c.window)
        size = math.prod(c.sizes)
        if self.rows is None:
            raise NoLoweringError("convolutions of single channels whose result is not by channel")
        if size * 4 * 3 > _ROOM:
            raise NoLoweringError("images of single channels that a partition does not hold")
        shape = contiguous(c.sizes)
        for first, channels in chunks(c.groups, PARTITIONS):
            e.at(self.node)
            weights = nl.ndarray((channels, places), dtype=self.kind, buffer=nl.sbuf)
            dims = (channels, self.w.strides[0]), *self.w.dims[2:]
            at = self.w.offset + first * self.w.strides[0]
            nisa.dma_copy(dst=weights, src=pattern(self.weight, collapsed(dims), at))
            if self.kind != "float32":
                wide = e.tile(places, "float32", channels)
                nisa.tensor_copy(wide, weights)
                weights = wide
            for image in self._images():
                e.at(self.node)
                rows = View(
                    (channels,), self.x.strides[1:2],
                    self.x.offset + image * self.x.strides[0] + first * self.x.strides[1],
                )  # fmt: skip
                plane = load_plane(
                    e, self.image, (rows, View(self.x.shape[2:], self.x.strides[2:])), 0, channels,
                    (c.padded, c.low, c.base), 0.0, self.dtype,
                )  # fmt: skip
                pairs = [[size, channels], *[[s, n] for n, s in shape.dims]]
                total: NkiTensor | None = None
                for number, place in enumerate(itertools.product(*map(range, c.window))):
                    begin = tuple(p * h for p, h in zip(place, c.holes, strict=True))
                    part = plane.part(begin, c.strides, c.sizes)
                    made = e.tile(size, "float32", channels)
                    weight = weights[:, number : number + 1]
                    if total is None:
                        nisa.tensor_scalar(made.ap(pairs), part, op0="multiply", operand0=weight)
                    else:
                        nisa.scalar_tensor_tensor(
                            made.ap(pairs), data=part, op0="multiply", operand0=weight, op1="add",
                            operand1=total.ap(pairs),
                        )  # fmt: skip
                    total = made
                assert total is not None
                e.partitions, e.columns = channels, size
                value = Value(total, self.node.dtype)
                if self.node.dtype is not DType.F32:
                    value = e.copied(value, self.node.dtype)
                self.rows.begin_rows(image * c.groups + first, channels)
                self.rows.begin_columns(0, size, {self.node: value})
                self.rows.store()


def run_convolution(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Compute a convolution and what follows it.

    Raises:
        NoLoweringError: there are no instructions for it.
    """
    _Runner(e, group, inputs, outputs).run()
