"""``nl.loop_reduce``: a reduction over the turns of a loop, to the tile it is assigned to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nki.access import written
from nki.errors import NkiError
from nki.first_generation import isa
from nki.first_generation.boxes import TileRegion, region_of_mask, region_of_values
from nki.first_generation.compute import tile_of
from nki.first_generation.indices import Booleans, Mask
from nki.first_generation.isa.common import kind_of
from nki.first_generation.loops import around
from nki.first_generation.owners import Owners
from nki.first_generation.state import current, new_tile
from nki.first_generation.tensors import Tensor
from nki.first_generation.writes import assign, copy, fill, merge
from nki.tensor import NkiTensor

__all__ = ["loop_reduce"]

# The owner of zeros that stand where a mask has left a new tile undefined.
_NOBODY = "nobody"


def loop_reduce(
    x: Tensor,
    op: Any,
    loop_indices: Any,
    *,
    dtype: Any = None,
    mask: Any = None,
    _into: Callable[[], Any] | None = None,
    _named: bool = False,
) -> Tensor:
    """Write ``destination <op> x`` to the destination: what the result is assigned to.

    `nki.jit` finds the destination in the kernel's source: ``name = nl.loop_reduce(...)`` or
    ``t[...] = nl.loop_reduce(...)``. The reduction begins anew, with x itself, in elements that
    nothing has written, and in those that it has written in another turn of the loops around the
    outermost one of `loop_indices`. Elements that a mask leaves out stay as they are.

    Args:
        x: a tile.
        op: an operator of two tiles.
        loop_indices: an index of a loop, or several: the loops that are reduced over.
        dtype: of the result before it is assigned; by default that of the destination.
        mask: where x takes part.

    Raises:
        NkiError: the result is assigned to nothing of the kind (NKI268).
    """
    if _into is None:
        raise NkiError(
            "NKI268",
            "nl.loop_reduce was called where its destination cannot be found",
            "assign its result to a tile in the kernel itself: acc = nl.loop_reduce(...)",
        )
    given = Tensor((tile_of(x, "nl.loop_reduce x"),))
    indices = loop_indices if isinstance(loop_indices, Sequence) else (loop_indices,)
    owner = (_into.__code__, around(indices))
    region = region_of_mask(mask, given.shape)
    dst = _named_tile(_into, given, dtype, owner, region) if _named else _into()
    _check(dst)
    target = _shaped(dst.tile(), given.shape)
    if region.box is None:
        return dst
    here = dst if dst.shape == given.shape else Tensor((target,))
    kind = kind_of(dtype, target.dtype)
    unwritten, fresh = _fresh(target, owner)
    before = _owners(target).copy()
    if isinstance(fresh, bool):
        parts = [(fresh, mask)]
    else:
        inside = np.ones(given.shape, bool) if mask is None else mask.values(given.shape)
        parts = [(False, Mask((), (inside & ~fresh,))), (True, Mask((), (inside & fresh,)))]
    for anew, where in parts:
        if anew:
            made = isa.tensor_copy(given, dtype=kind, mask=where)
        else:
            made = isa.tensor_tensor(here, given, op, dtype=kind, mask=where)
        assign(here, made)
    # What was issued here is no other writer, also where it was predicated.
    current().reduced[target.storage] = before
    if unwritten is not False:
        before.put(target, _NOBODY, None if unwritten is True else unwritten)
    before.put(target, owner, None if region.covers(given.shape) else mask.values(given.shape))
    return dst


def _check(dst: Any) -> None:
    if not isinstance(dst, Tensor):
        raise NkiError(
            "NKI268",
            f"nl.loop_reduce was assigned to a {type(dst).__name__}",
            "assign its result to a tile: acc = nl.loop_reduce(...)",
        )


def _owners(tensor: NkiTensor) -> Owners:
    return current().reduced.setdefault(tensor.storage, Owners(tensor.storage))


def _fresh(target: NkiTensor, owner: tuple[Any, Any]) -> tuple[Booleans | bool, Booleans | bool]:
    """Return the elements that nothing has written, and those in which a reduction begins anew."""
    if target.pattern.indirect is not None:
        return False, False
    unwritten = _alike(~written(target))
    owners = current().reduced.get(target.storage)
    if owners is None or unwritten is True:
        return unwritten, unwritten
    site, loops = owner

    def before(other: Any) -> bool:
        return other == _NOBODY or (other is not None and other[0] is site and other[1] != loops)

    return unwritten, _alike(unwritten | owners.owned(target, before))


def _alike(values: Any) -> Booleans | bool:
    """Return one truth value where all are the same."""
    if not isinstance(values, np.ndarray):
        return bool(values)
    first = bool(values.flat[0])
    return first if bool((values == first).all()) else values


def _named_tile(
    into: Callable[[], Any], x: Tensor, dtype: Any, owner: tuple[Any, Any], region: TileRegion
) -> Tensor:
    """Return the tile that a name stands for, or a new one that takes its place.

    A name without a value, which it has before the first turn, gets a new tile; and so does one
    whose tile has another type than the one asked for.
    """
    try:
        found = into()
    except NameError:
        found = None
    if found is None:
        made = new_tile(x.shape, kind_of(dtype, x.kind))
        fresh: Booleans | bool = True
    else:
        _check(found)
        kind = kind_of(dtype, found.kind)
        if found.kind == kind:
            return found  # type: ignore[no-any-return]
        old = _shaped(found.tile(), x.shape)
        made, (_, fresh) = new_tile(x.shape, kind), _fresh(old, owner)
        if not isinstance(fresh, bool):
            fill(made, 0)
            merge(made, old, region_of_values(~fresh))
        elif not fresh:
            copy(made, old)
    if fresh is True and not region.covers(x.shape):
        fill(made, 0)
    if fresh is not False:
        _owners(made).put(made, _NOBODY, None if fresh is True else fresh)
    return Tensor((made,))


def _shaped(tensor: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    return tensor if tensor.shape == shape else tensor.reshape(shape)
