"""Indices that are out of bounds when a kernel runs: found, refused or skipped."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nki.errors import NkiIndexError
from nki.recording import IndirectForm, TileForm

__all__ = ["check_index", "indices_of", "kept_elements"]

Integers = npt.NDArray[np.int64]


def indices_of(form: TileForm, values: Any) -> Integers:
    """Return the indices that a form uses: one, or one for each index of its dimension 0."""
    assert form.indirect is not None
    table = np.asarray(values).astype(np.int64)
    if form.indirect.kind == "scalar":
        return table.reshape(-1)[:1]
    return table.reshape(len(table), -1).T.reshape(-1)[: form.shape[0]]


def check_index(name: str, indirect: IndirectForm, used: Integers, where: tuple[str, int]) -> None:
    """Refuse an index that is not within its dimension.

    Raises:
        NkiIndexError: there is one (NKI132).
    """
    wrong = used[(used < 0) | (used >= indirect.bound)]
    if wrong.size:
        raise NkiIndexError(
            "NKI132",
            f"{name}: index {wrong[0]} is out of bounds: it must be from 0 to below "
            f"{indirect.bound}",
            "correct the index tensor, or skip such elements with oob_mode=nisa.oob_mode.skip",
            where,
        )


def kept_elements(form: TileForm, used: Integers) -> npt.NDArray[np.bool_]:
    """Return which elements of an indirect form have an index within bounds, in its shape."""
    assert form.indirect is not None
    kept = (used >= 0) & (used < form.indirect.bound)
    if form.indirect.kind == "scalar":
        return np.broadcast_to(kept, form.shape)
    return np.broadcast_to(kept.reshape(-1, *[1] * (len(form.shape) - 1)), form.shape)
