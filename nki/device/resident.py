"""Tensors that stay in SBUF from one group of a chain to the next ones.

A resident tensor lies as its last dimension in columns and all others in rows, 128 of them to a
tile: as whoever computes it row by row makes it, and as products and row by row work read it.
"""

from __future__ import annotations

import nki.language as nl
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from nki.device.types import HELD, words
from nki.device.views import Dims, boxes, collapsed
from nki.tensor import NkiTensor

__all__ = ["NotResidentError", "Resident"]

_PARTITIONS = 128
_LEAST, _LEAST_ROWS = 32, 16  # columns and rows


class NotResidentError(Exception):
    """A tensor is used in a way that tiles of its rows do not serve.

    Attributes:
        node: which.
    """

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.node = node


class Resident:
    """A tensor in SBUF.

    Attributes:
        node: whose value it is.
        columns: of a tile, the last dimension.
        rows: all others.
        hbm: where it is written, too, for who is not in the chain.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.columns = node.shape[-1] if node.shape else 1
        self.rows = node.type.size // max(1, self.columns)
        self.hbm: NkiTensor | None = None
        self._kind = HELD[node.dtype]
        self._tiles: dict[int, NkiTensor] = {}

    @staticmethod
    def may(node: Node) -> bool:
        """Return whether a node's value can be one at all."""
        wide = bool(node.shape) and node.shape[-1] >= _LEAST
        rows = node.type.size // max(1, node.shape[-1]) if wide else 0
        # Few rows leave most partitions idle: others compute them in another form.
        return rows >= _LEAST_ROWS and words(node.dtype) == 1 and node.dtype is not DType.PRED

    @property
    def bytes(self) -> int:
        """What it takes of each partition."""
        return -(-self.rows // _PARTITIONS) * self.columns * self.node.dtype.itemsize

    def tile(self, row: int) -> NkiTensor:
        """Return the tile of 128 rows from one on, a new one if nothing was written there yet."""
        number, rest = divmod(row, _PARTITIONS)
        if rest:
            raise NotResidentError(self.node)
        found = self._tiles.get(number)
        if found is None:
            height = min(_PARTITIONS, self.rows - row)
            found = nl.ndarray((height, self.columns), dtype=self._kind, buffer=nl.sbuf)
            self._tiles[number] = found
        return found

    def written(self, row: int) -> NkiTensor:
        """Return the tile of 128 rows that somebody has written.

        Raises:
            NotResidentError: nobody has.
        """
        if row // _PARTITIONS not in self._tiles:
            raise NotResidentError(self.node)
        return self.tile(row)

    def forget(self, row: int) -> None:
        """Let the rows from one on be written anew by whoever comes next."""
        self._tiles.pop(row // _PARTITIONS, None)

    def place(
        self, at: tuple[Dims, Dims, int], block: tuple[int, int, int, int], *, new: bool = False
    ) -> NkiTensor:
        """Return where a block of rows and columns of a view lies.

        Args:
            at: dimensions of the view's rows and of its columns, and the offset.
            block: first row, rows, first column, columns.
            new: it is written, not read.

        Raises:
            NotResidentError: it is no rectangle of a tile.
        """
        rows, columns, offset = at
        row, height, column, width = block
        outer, inner = boxes(rows, row, height), boxes(columns, column, width)
        if len(outer) != 1 or len(inner) != 1:
            raise NotResidentError(self.node)
        (_, down, heights), (_, right, widths) = outer[0], inner[0]
        first, left = divmod(offset + down + right, self.columns)
        steps_down = height == 1 or collapsed(heights) == ((height, self.columns),)
        steps_right = width == 1 or collapsed(widths) == ((width, 1),)
        if not steps_down or not steps_right or left + width > self.columns:
            raise NotResidentError(self.node)
        tile = self.tile(first) if new else self.written(first)
        if height > tile.shape[0]:
            raise NotResidentError(self.node)
        return tile[0:height, left : left + width]
