"""Aligned tables for the terminal."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_GAP = "  "


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, width: int = 100, numbers: str = ""
) -> str:
    """Rows under their head, columns aligned, the last column wrapped at `width`.

    Args:
        head: titles of the columns.
        rows: the cells, as many in each row as there are titles.
        width: columns of the whole table.
        numbers: titles of the columns that are aligned to the right, separated by blanks.
    """
    right = set(numbers.split())
    sizes = [
        max(len(title), *(len(row[i]) for row in rows)) if rows else len(title)
        for i, title in enumerate(head)
    ]
    used = sum(sizes[:-1]) + len(_GAP) * (len(head) - 1)
    sizes[-1] = min(sizes[-1], max(width - used, 24))
    lines = [_line(head, sizes, head, right), _GAP.join("-" * size for size in sizes)]
    for row in rows:
        last = textwrap.wrap(row[-1], sizes[-1], break_on_hyphens=False) or [""]
        lines.append(_line([*row[:-1], last[0]], sizes, head, right))
        blank = [""] * (len(head) - 1)
        lines.extend(_line([*blank, more], sizes, head, right) for more in last[1:])
    return "\n".join(lines)


def _line(cells: Sequence[str], sizes: Sequence[int], head: Sequence[str], right: set[str]) -> str:
    parts = [
        cell.rjust(size) if title in right else cell.ljust(size)
        for cell, size, title in zip(cells, sizes, head, strict=True)
    ]
    return _GAP.join(parts).rstrip()
