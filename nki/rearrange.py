"""Named dimensions: split, reorder and merge them in one step."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nki import pattern as views
from nki.errors import NkiError
from nki.pattern import AccessPattern

__all__ = ["rearrange"]


def rearrange(
    p: AccessPattern,
    source: Sequence[Any],
    result: Sequence[Any],
    sizes: Mapping[str, int],
) -> AccessPattern:
    """Split the dimensions as ``source`` names them, and reorder and merge them as ``result`` does.

    Each entry is a name or a tuple of names; ``sizes`` fixes all names of a tuple but one.

    Raises:
        NkiError: the patterns don't fit each other or the view (NKI019), or splitting, reordering
            or merging is refused.
    """
    _check_kinds(p, source, result, sizes)
    before, after = [names(e) for e in source], [names(e) for e in result]
    flat_before = [name for group in before for name in group]
    flat_after = [name for group in after for name in group]
    if (
        len(before) != len(p.shape)
        or len(set(flat_before)) != len(flat_before)
        or sorted(flat_before) != sorted(flat_after)
    ):
        raise _unfit(
            p, source, result, "name every dimension once on the left and once on the right"
        )
    unknown = set(sizes) - set(flat_before)
    if unknown:
        raise _unfit(p, source, result, f"the sizes name {sorted(unknown)}, which is not there")
    # From the last dimension on, so that splitting doesn't renumber those before.
    for dim in range(len(before) - 1, -1, -1):
        group, n = before[dim], p.shape[dim]
        if len(group) == 1 and sizes.get(group[0], n) == n:
            continue
        known = [sizes.get(name, -1) for name in group]
        if known.count(-1) > 1:
            raise _unfit(p, source, result, f"fix the sizes of all but one of {group}")
        if math.prod(abs(k) for k in known) != n and -1 not in known:
            raise _unfit(p, source, result, f"the sizes of {group} must multiply to {n}")
        p = views.reshape_dim(p, dim, known)
    order = [flat_before.index(name) for name in flat_after]
    p = views.permute(p, order)
    end = len(order)
    for group in reversed(after):
        if len(group) > 1:
            p = views.flatten_dims(p, end - len(group), end - 1)
        end -= len(group)
    return p


def _check_kinds(p: AccessPattern, source: Any, result: Any, sizes: Any) -> None:
    if not all(hasattr(pattern, "__iter__") for pattern in (source, result)):
        raise _unfit(p, source, result, "write each as a tuple of names")
    if not isinstance(sizes, Mapping) or not all(type(n) is int for n in sizes.values()):
        raise _unfit(p, source, result, "give fixed sizes as a dictionary of integers by name")


def names(entry: Any) -> tuple[str, ...]:
    """Return the names of one entry of a pattern.

    Raises:
        NkiError: it is neither a name nor a tuple of some (NKI019).
    """
    iterable = hasattr(entry, "__iter__") and not isinstance(entry, str)
    found = tuple(entry) if iterable else (entry,)
    if not found or not all(isinstance(name, str) for name in found):
        raise NkiError(
            "NKI019",
            f"{entry!r} names no dimension",
            "write a name, or a tuple of names to split or merge",
        )
    return found


def _unfit(p: AccessPattern, source: Any, result: Any, remedy: str) -> NkiError:
    return NkiError(
        "NKI019", f"{source!r} -> {result!r} does not rearrange a view of shape {p.shape}", remedy
    )
