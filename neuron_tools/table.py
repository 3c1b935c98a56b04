"""Tables of text in boxes, as the vendor's tools draw them."""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[str]


def boxed(head: Row, groups: Sequence[Sequence[Row]], *, ruled: bool = False) -> str:
    """Draw a table.

    Args:
        head: Of each column, in one line or in several.
        groups: Rows that belong together.
        ruled: Whether a line is drawn between groups.
    """
    lines = [title.split("\n") for title in head]
    rows = [row for group in groups for row in group]
    widths = [
        max(map(len, [*lines[column], *(row[column] for row in rows)]))
        for column in range(len(head))
    ]
    rule = "+".join(["", *("-" * (width + 2) for width in widths), ""])

    def drawn(cells: Row, *, centred: bool) -> str:
        placed = (
            f"{cell:^{width}}" if centred else f"{cell:<{width}}"
            for cell, width in zip(cells, widths, strict=True)
        )
        return f"| {' | '.join(placed)} |"

    said = [rule]
    for number in range(max(map(len, lines))):
        cells = [title[number] if number < len(title) else "" for title in lines]
        said.append(drawn(cells, centred=True))
    said.append(rule)
    for number, group in enumerate(groups):
        said += [drawn(row, centred=False) for row in group]
        if ruled or number == len(groups) - 1:
            said.append(rule)
    return "\n".join(said)
