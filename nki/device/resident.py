"""Tensors that stay in SBUF from one group of a chain to the next ones.

A resident tensor lies as its last dimension in columns and all others in rows, 128 of them to a
tile: as whoever computes it row by row makes it, and as products and row by row work read it. Where
physical cores share a chain, each has its part of the tiles, and no core reads those of another.
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
# Fewer rows than that leave most partitions idle, which pays up to so many columns: longer ones are
# computed in another form.
_FEW_ROWS, _MOST_OF_FEW = 16, 1024
_LEAST_OF_MANY = 32  # columns of rows that take more than one tile


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
        tiles: numbers of the tiles that this core has.
    """

    def __init__(self, node: Node, cores: int = 1, core: int = 0, *, any_row: bool = False) -> None:
        """Begin.

        Args:
            node: whose value it is.
            cores: how many share the chain: each has as many tiles as the others.
            core: this one.
            any_row: tiles are whose who writes them: what two products hand on matrix by matrix.
        """
        self.node = node
        self.columns = node.shape[-1] if node.shape else 1
        self.rows = node.type.size // max(1, self.columns)
        self.hbm: NkiTensor | None = None
        self._kind = HELD[node.dtype]
        self._tiles: dict[int, NkiTensor] = {}
        self._cores = cores
        self._any_row = any_row
        self.tiles = self.tiles_of(core)

    def of_core(self, core: int, *, any_row: bool = False) -> Resident:
        """Return the same tensor as another core has it."""
        return Resident(self.node, self._cores, core, any_row=any_row)

    @staticmethod
    def may(node: Node, cores: int = 1) -> bool:
        """Return whether a node's value can be one at all, of which each core has some tiles."""
        one_word = node.dtype in HELD and words(node.dtype) == 1
        if not node.type.size or not one_word or node.dtype is DType.PRED:
            return False
        columns = node.shape[-1] if node.shape else 1
        rows = node.type.size // columns
        if -(-rows // _PARTITIONS) < cores:
            return False
        if rows < _FEW_ROWS:
            return columns <= _MOST_OF_FEW
        return rows <= _PARTITIONS or columns >= _LEAST_OF_MANY

    @property
    def bytes(self) -> int:
        """What it takes of each partition."""
        return len(self.tiles) * self.columns * self.node.dtype.itemsize

    def tiles_of(self, core: int) -> range:
        """Return the numbers of the tiles that a core has."""
        count = -(-self.rows // _PARTITIONS)
        each = -(-count // self._cores)
        return range(count) if self._any_row else range(core * each, (core + 1) * each)

    def has(self, core: int, offset: int, dims: Dims) -> bool:
        """Return whether a core has all elements of a view: (size, stride) of dimensions."""
        ends = sorted((0, (size - 1) * stride) for size, stride in dims)
        first = offset + sum(min(pair) for pair in ends)
        last = offset + sum(max(pair) for pair in ends)
        each = _PARTITIONS * self.columns
        tiles = self.tiles_of(core)
        return first // each in tiles and last // each in tiles

    def tile(self, row: int) -> NkiTensor:
        """Return the tile of 128 rows from one on, a new one if nothing was written there yet."""
        number, rest = divmod(row, _PARTITIONS)
        if rest or number not in self.tiles:
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
