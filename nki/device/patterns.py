"""Gathers at places that constants say: an engine copies access patterns of a tile.

Rows are the leading dimensions that operand and result share, one to a partition. The other
dimensions of the operand are loaded as they lie, copied run by run, and stored as they lie.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from neuronxcc.ir.node import Node
from neuronxcc.ir.places import Patterns, Run, patterns_of, runs_of
from nki.device.emitter import Emitter, Value
from nki.device.rows import blocks_of
from nki.device.transfers import Leaf, load, store
from nki.device.types import HELD, words
from nki.device.views import View, collapsed, contiguous
from nki.dtypes import info
from nki.tensor import NkiTensor

__all__ = ["ROOM", "copied_patterns", "run_patterns"]

ROOM = 48 * 1024  # bytes of a partition for what is gathered, and for what that is made of
_MOST_DIMS = 4  # of an access pattern, besides the partition


class _Part(NamedTuple):
    """A range of the result's first column dimension, and what it is made of.

    Attributes:
        begin: first position.
        end: behind the last one.
        low: first place of the operand's first column dimension that is read.
        high: behind the last one.
    """

    begin: int
    end: int
    low: int
    high: int


def copied_patterns(node: Node) -> Patterns | None:
    """Return a gather's access patterns; None if tiles do not fit or have too many dimensions."""
    known = patterns_of(node)
    if known is None or words(node.dtype) > 1 or len(known.axes) > _MOST_DIMS:
        return None
    return known if _parts(node, known) else None


def _parts(node: Node, known: Patterns) -> list[_Part]:
    """Divide a row so that tiles fit; empty if they can not."""
    x = node.srcs[0]
    itemsize = info(HELD[node.dtype]).itemsize
    one = math.prod(x.shape[known.rows + 1 :]) * itemsize
    made = math.prod(node.shape[known.rows + 1 :]) * itemsize
    extent, wide = x.shape[known.rows], node.shape[known.rows]
    if known.axes[0] != known.rows:  # the result is another dimension's first
        fits = extent * one <= ROOM and wide * made <= ROOM
        return [_Part(0, wide, 0, extent)] if fits else []
    places = known.places(known.rows) or range(wide)
    parts: list[_Part] = []
    for at, place in enumerate(places):
        if parts:
            begin, _, low, high = parts[-1]
            wider = _Part(begin, at + 1, min(low, place), max(high, place + 1))
            fits = (wider.high - wider.low) * one <= ROOM and (at + 1 - begin) * made <= ROOM
            if fits:
                parts[-1] = wider
                continue
        parts.append(_Part(at, at + 1, place, place + 1))
    return parts if max(one, made) <= ROOM else []


def run_patterns(
    e: Emitter, node: Node, known: Patterns, operand: tuple[NkiTensor, View], target: NkiTensor
) -> None:
    """Load tiles, copy their access patterns, and store the results.

    Args:
        e: the emitter.
        node: the gather.
        known: from `copied_patterns`.
        operand: in HBM, and which of its elements.
        target: the result in HBM.
    """
    tensor, view = operand
    count = known.rows
    result = contiguous(node.shape)
    parts = [(part, list(_copies(node, known, part))) for part in _parts(node, known)]
    rows, columns = (collapsed(dims) for dims in (result.dims[:count], result.dims[count:]))
    for row, partitions in e.share(blocks_of(math.prod(view.shape[:count]))):
        for part, copies in parts:
            inside = View(
                (part.high - part.low, *view.shape[count + 1 :]),
                view.strides[count:],
                view.offset + part.low * view.strides[count],
            )
            dims = collapsed(view.dims[:count]), collapsed(inside.dims)
            leaf = Leaf(tensor, node.dtype, inside.offset, *dims)
            e.partitions, e.columns = partitions, inside.size
            source = e.full(load(e, leaf, row, 0), node.dtype)
            each = math.prod(node.shape[count + 1 :])
            e.columns = (part.end - part.begin) * each
            made = e.tile(e.columns, HELD[node.dtype])
            for src, dst in copies:
                e.copy(_pattern(made, dst), _pattern(source, src))
            whole = Leaf(target, node.dtype, 0, rows, columns)
            store(e, whole, Value(made, node.dtype), row, part.begin * each)


def _copies(node: Node, known: Patterns, part: _Part) -> Iterator[tuple[View, View]]:
    """Iterate over what is read and written in a row of tiles, in the operand's order."""
    count = known.rows
    source = (part.high - part.low, *node.srcs[0].shape[count + 1 :])
    made = (part.end - part.begin, *node.shape[count + 1 :])
    choices: list[tuple[Run, ...]] = []
    for dim, axis in enumerate(known.axes):
        places = known.places(axis) or tuple(range(node.shape[axis]))
        if dim == 0:
            first = places[part.begin : part.end] if axis == count else places
            places = tuple(place - part.low for place in first)
        choices.append(runs_of(places))
    strides = contiguous(source).strides
    steps = [contiguous(made).strides[axis - count] for axis in known.axes]
    for runs in itertools.product(*choices):
        sizes = tuple(run.size for run in runs)
        yield (
            View(
                sizes,
                tuple(run.step * s for run, s in zip(runs, strides, strict=True)),
                sum(run.first * s for run, s in zip(runs, strides, strict=True)),
            ),
            View(
                sizes,
                tuple(run.stride * s for run, s in zip(runs, steps, strict=True)),
                sum(run.begin * s for run, s in zip(runs, steps, strict=True)),
            ),
        )


def _pattern(tile: NkiTensor, view: View) -> NkiTensor:
    """Return a tile's access pattern, the same for all partitions."""
    partitions, columns = tile.shape
    pairs = [[stride, size] for size, stride in view.dims]
    return tile.ap([[columns, partitions], *pairs], offset=view.offset)
