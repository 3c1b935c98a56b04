"""Matrix products: tiles of the Tensor Engine, and what follows while they leave PSUM.

``out[m, n] = sum_k lhs[m, k] rhs[k, n]``: both operands lie with k over partitions, 128 at a time,
which are added up in PSUM; up to 128 rows m stand still in the engine while up to 512 columns n
move through it. An operand whose memory runs along k is loaded as it is and transposed by the
engine. What follows element by element, and reductions of whole rows, is done block by block as in
`nki.device.rows`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from nki.device.emitter import PARTITIONS, Emitter, NoLoweringError, Value, chunks, require_form
from nki.device.groups import Group, Use, is_number
from nki.device.resident import Resident
from nki.device.rows import Rows, Tensors, number_of
from nki.device.transfers import Leaf, load, pattern
from nki.device.types import HELD
from nki.device.views import Dims, boxes, collapsed
from nki.dtypes import info
from nki.tensor import NkiTensor

__all__ = ["BANK", "Product", "Side", "multiply", "panel", "product_of", "run_product"]

BANK = 512  # elements of float32 in a bank of PSUM, the most columns of one product
_BANKS = 2  # of PSUM for rows that are reduced: eight hold what runs ahead, too
_TURNED = 48 * 1024  # bytes of a partition for what is turned at once
_STAYS = 64 * 1024  # bytes of a partition for an operand that stays on the chip
_ALLOWED = frozenset({DType.F32, DType.BF16, DType.F16, DType.F8E4M3, DType.F8E4M3FN, DType.F8E5M2})

Panel = list[NkiTensor]  # for each 128 of k a tile of (k, columns)


class Side(NamedTuple):
    """An operand of a product.

    Attributes:
        tensor: in HBM.
        dtype: of its elements.
        batch: (size, stride) of what is not contracted and common to both sides.
        inner: likewise of k.
        outer: likewise of m or n.
        offset: of the first element.
    """

    tensor: NkiTensor | Resident
    dtype: DType
    batch: Dims
    inner: Dims
    outer: Dims
    offset: int

    def leaf(self, batch: int) -> Leaf:
        """Return one matrix: k as rows, m or n as columns."""
        at = self.offset
        for size, stride in reversed(self.batch):
            batch, rest = divmod(batch, size)
            at += rest * stride
        return Leaf(self.tensor, self.dtype, at, self.inner, self.outer)


def _side(
    use: Use, tensor: NkiTensor | Resident, batch: tuple[int, ...], inner: tuple[int, ...]
) -> Side:
    dims = use.view.dims
    outer = tuple(d for d in range(len(dims)) if d not in batch and d not in inner)

    def chosen(which: tuple[int, ...]) -> Dims:
        return tuple(dims[d] for d in which)

    return Side(
        tensor,
        use.source.dtype,
        chosen(batch),
        collapsed(chosen(inner)),
        collapsed(chosen(outer)),
        use.view.offset,
    )


class Shape(NamedTuple):
    """Sizes of a product."""

    batch: int
    m: int
    k: int
    n: int


def product_of(node: Node, uses: tuple[Use, ...], inputs: Tensors) -> tuple[Side, Side, Shape]:
    """Return the operands and the sizes of a DOT_GENERAL.

    Raises:
        NoLoweringError: the Tensor Engine does not multiply numbers of the type.
    """
    for use in uses:
        require_form(use.source.dtype)
        if use.source.dtype not in _ALLOWED:
            raise NoLoweringError(
                f"the Tensor Engine does not multiply {use.source.dtype.value}", "NCC_EVRF035"
            )
    lhs, rhs = uses
    left = _side(lhs, inputs[lhs.source], node["lhs_batch"], node["lhs_contract"])
    right = _side(rhs, inputs[rhs.source], node["rhs_batch"], node["rhs_contract"])
    batch, m, k, n = (
        math.prod(size for size, _ in dims)
        for dims in (left.batch, left.outer, left.inner, right.outer)
    )
    return left, right, Shape(batch, m, k, n)


# --- operands on the chip ------------------------------------------------------------------------


def panel(e: Emitter, leaf: Leaf, depth: int, column: int, columns: int, first: int = 0) -> Panel:
    """Load some columns of `depth` rows of a matrix, from row `first` on, 128 rows to a tile."""
    if _runs_down(leaf, depth):
        return _turned_panel(e, leaf, (first, depth), column, columns)
    if _is_packed(leaf, first, depth):
        return _packed_panel(e, leaf, (first, depth), column, columns)
    found = []
    for at, size in chunks(depth, PARTITIONS):
        e.partitions, e.columns = size, columns
        value = load(e, leaf, first + at, column)
        tile = value.tile
        if value.vector and columns > 1:
            dense = e.tile(columns, tile.dtype)
            nisa.tensor_copy(dense, tile.broadcast(1, columns))
            tile = dense
        found.append(tile)
    return found


def _is_packed(leaf: Leaf, first: int, depth: int) -> bool:
    """Return whether tiles of k lie side by side in each partition's memory."""
    if len(leaf.rows) != 2 or len(leaf.columns) != 1 or isinstance(leaf.tensor, Resident):
        return False
    (tiles, step), (rows, stride) = leaf.rows
    fits = rows == PARTITIONS and stride == tiles * step and leaf.columns[0][1] == 1
    return fits and first % PARTITIONS == 0 and depth % PARTITIONS == 0


def _packed_panel(
    e: Emitter, leaf: Leaf, rows: tuple[int, int], column: int, columns: int
) -> Panel:
    """Load tiles of k that lie side by side, several with one transfer."""
    kind = HELD[leaf.dtype]
    (_, step), (_, stride) = leaf.rows
    first, count = rows[0] // PARTITIONS, rows[1] // PARTITIONS
    together = max(1, -(-_LONG_ROW // (columns * info(kind).itemsize)))
    found: Panel = []
    for at, some in chunks(count, together):
        tile = nl.ndarray((PARTITIONS, some * columns), dtype=kind, buffer=nl.sbuf)
        dims = ((PARTITIONS, stride), (some, step), (columns, 1))
        offset = leaf.offset + (first + at) * step + column
        nisa.dma_copy(dst=tile, src=pattern(leaf.tensor, collapsed(dims), offset))
        found += [tile[:, k * columns : (k + 1) * columns] for k in range(some)]
    e.partitions, e.columns = PARTITIONS, columns
    return found


_LONG_ROW = 4096  # bytes


def _runs_down(leaf: Leaf, depth: int) -> bool:
    """Return whether the matrix lies in memory column by column."""
    runs = bool(leaf.rows) and leaf.rows[-1][1] == 1
    return runs and depth > 1 and not (leaf.columns and leaf.columns[-1][1] == 1)


def _turned_panel(
    e: Emitter, leaf: Leaf, rows: tuple[int, int], column: int, columns: int
) -> Panel:
    """Load columns as rows, and turn them 128 by 128; a bank of PSUM leaves by one copy."""
    kind = HELD[leaf.dtype]
    first, depth = rows
    other = leaf._replace(rows=leaf.columns, columns=leaf.rows)
    itemsize = info(kind).itemsize
    bank = BANK * 4 // itemsize
    if columns <= PARTITIONS and depth % PARTITIONS == 0 and depth * itemsize <= _TURNED:
        return _turned_rows(e, other, rows, (column, columns), bank)
    found = [
        nl.ndarray((size, columns), dtype=kind, buffer=nl.sbuf)
        for _, size in chunks(depth, PARTITIONS)
    ]
    together = max(1, bank // PARTITIONS)
    deep = max(PARTITIONS, _TURNED // together // itemsize // PARTITIONS * PARTITIONS)
    for group_at, group in chunks(columns, PARTITIONS * together):
        for begin, part in chunks(depth, deep):
            tiles = []
            for at, size in chunks(group, PARTITIONS):
                e.partitions, e.columns = size, part
                tiles.append((at, size, load(e, other, column + group_at + at, first + begin).tile))
            for k, height in chunks(part, PARTITIONS):
                turned = nl.ndarray((height, group), dtype=kind, buffer=nl.psum)
                for at, size, tile in tiles:
                    nisa.nc_transpose(turned[:, at : at + size], tile[:, k : k + height])
                target = found[(begin + k) // PARTITIONS]
                e.copy(target[:, group_at : group_at + group], turned)
    return found


def _turned_rows(
    e: Emitter, leaf: Leaf, depth: tuple[int, int], rows: tuple[int, int], bank: int
) -> Panel:
    """Turn up to 128 rows: several of their blocks lie side by side in a bank of PSUM.

    Args:
        e: the emitter.
        leaf: the matrix as it lies in memory.
        depth: first column of it, and how many.
        rows: first row of it, and how many.
        bank: elements of a bank.
    """
    e.partitions, e.columns = rows[1], depth[1]
    tile = load(e, leaf, rows[0], depth[0]).tile
    wide = nl.ndarray(
        (PARTITIONS, depth[1] // PARTITIONS * rows[1]), dtype=tile.dtype, buffer=nl.sbuf
    )
    for at, width in chunks(depth[1] // PARTITIONS, max(1, bank // rows[1])):
        turned = nl.ndarray((PARTITIONS, width * rows[1]), dtype=tile.dtype, buffer=nl.psum)
        for k in range(width):
            block = tile[:, (at + k) * PARTITIONS : (at + k + 1) * PARTITIONS]
            nisa.nc_transpose(turned[:, k * rows[1] : (k + 1) * rows[1]], block)
        e.copy(wide[:, at * rows[1] : (at + width) * rows[1]], turned)
    return [wide[:, k * rows[1] : (k + 1) * rows[1]] for k in range(depth[1] // PARTITIONS)]


def _bytes(depth: int, columns: int, dtype: DType) -> int:
    """Return what a panel takes of each partition."""
    return -(-depth // PARTITIONS) * columns * info(HELD[dtype]).itemsize


# --- the product ---------------------------------------------------------------------------------


def multiply(
    left: Panel,
    right: Panel,
    m: tuple[int, int],
    n: tuple[int, int],
    total: NkiTensor | None = None,
) -> NkiTensor:
    """Return a tile in PSUM: the sum over all tiles of k.

    Args:
        left: tiles of (k, m).
        right: tiles of (k, n).
        m: first column of the left tiles and how many, at most 128.
        n: likewise of the right ones, at most 512.
        total: where to, by default a new tile.
    """
    if total is None:
        total = nl.ndarray((m[1], n[1]), dtype="float32", buffer=nl.psum)
    for a, b in zip(left, right, strict=True):
        nisa.nc_matmul(total, a[:, m[0] : m[0] + m[1]], b[:, n[0] : n[0] + n[1]])
    return total


class Product:
    """Runs one group of a product and what follows it.

    Raises:
        NoLoweringError: there are no instructions for it.
    """

    def __init__(
        self,
        e: Emitter,
        group: Group,
        inputs: Tensors,
        outputs: Tensors,
    ) -> None:
        self.e = e
        self.node = group.nodes[0]
        for use in group.uses[self.node]:
            if is_number(use.source):
                raise NoLoweringError(
                    f"a product with the number {number_of(use.source)} everywhere"
                )
        self.left, self.right, self.shape = product_of(self.node, group.uses[self.node], inputs)
        if not self.shape.k:
            raise NoLoweringError("a product over no elements is a constant")
        (space,) = group.spaces
        self.rows = Rows(e, group, space, inputs, outputs)
        self.whole_rows = any(node.op.value == "reduce" for node in group.nodes)
        #: Cores share matrices, not rows or columns of each.
        self.by_batch = self.shape.batch >= e.cores and self._has_own_matrices()
        self._panels: dict[tuple[str, int, int], Panel] = {}

    def _has_own_matrices(self) -> bool:
        """Return whether cores that share matrices have what these need in their own SBUF."""
        count, m = self.shape.batch, self.shape.m
        for core in range(self.e.cores):
            mine = self.e.share(range(count), core)
            for side in (self.left, self.right):
                if isinstance(side.tensor, Resident):
                    leaves = [side.leaf(batch) for batch in mine]
                    if not all(
                        side.tensor.has(core, leaf.offset, (*leaf.rows, *leaf.columns))
                        for leaf in leaves
                    ):
                        return False
            for leaf in self.rows.residents() if mine else ():
                if not all(
                    leaf.tensor.has(core, leaf.offset + offset, (*dims, *leaf.columns))
                    for _, offset, dims in boxes(leaf.rows, mine[0] * m, len(mine) * m)
                ):
                    return False
        return True

    def share(self) -> Sequence[int]:
        """Return the matrices that this core computes something of."""
        batches = range(self.shape.batch)
        return self.e.share(batches) if self.by_batch else batches

    def run(self, batches: Sequence[int]) -> None:
        """Compute some matrices and what follows them."""
        for batch in batches:
            for _ in self.steps(batch):
                pass

    def in_one_pass(self) -> bool:
        """Return whether all columns of a matrix are computed for some rows before other rows."""
        shape = self.shape
        return self.whole_rows or (
            self._width() >= shape.n and _bytes(shape.k, PARTITIONS, self.right.dtype) <= _STAYS
        )

    def steps(self, batch: int, *, by_rows: bool = False) -> Iterator[None]:
        """Compute a matrix and what follows it, some rows at each step.

        Args:
            batch: number of the matrix.
            by_rows: nothing is read of the left operand but the rows of a step.
        """
        self._panels.clear()
        yield from self._matrix(batch, by_rows=by_rows)

    def _deep(self, batch: int) -> None:
        """Compute a matrix whose operands are so deep that no 128 columns of them fit at once."""
        shape, e = self.shape, self.e
        itemsize = info(HELD[self.right.dtype]).itemsize
        deep = _STAYS // 2 // (BANK * itemsize) * PARTITIONS
        rows = chunks(shape.m, PARTITIONS)
        for column, columns in chunks(shape.n, BANK):
            for row, height in rows if self.by_batch else e.share(rows):
                e.at(self.node)
                total = None
                for first, depth in chunks(shape.k, deep):
                    left = panel(e, self.left.leaf(batch), depth, row, height, first)
                    right = panel(e, self.right.leaf(batch), depth, column, columns, first)
                    total = multiply(left, right, (0, height), (0, columns), total)
                assert total is not None
                self.rows.begin_rows(batch * shape.m + row, height)
                self._finish(total, column, height, columns)

    def _matrix(self, batch: int, *, by_rows: bool) -> Iterator[None]:
        shape = self.shape
        if not self.whole_rows and _bytes(shape.k, PARTITIONS, self.right.dtype) > _STAYS:
            self._deep(batch)
            yield
            return
        width = self._width()
        left_stays = not by_rows and _bytes(shape.k, shape.m, self.left.dtype) <= _STAYS
        rows, parts = chunks(shape.m, PARTITIONS), chunks(shape.n, width)
        if not self.by_batch:
            # Cores share what there is more of: rows, or else columns.
            if len(rows) < self.e.cores and not self.whole_rows:
                each = -(-shape.n // self.e.cores)
                parts = [(a, n) for at, size in self.e.share(chunks(shape.n, each))
                         for a, n in ((at + b, n) for b, n in chunks(size, width))]  # fmt: skip
            else:
                rows = list(self.e.share(rows))
        # Of the left operand only the rows of this core are loaded.
        first = rows[0][0] if rows else 0
        mine = rows[-1][0] + rows[-1][1] - first if rows else 0
        for column, columns in parts if rows else ():
            right = self._panel("right", batch, column, columns)
            for row, height in rows:
                left, at = (
                    (self._panel("left", batch, first, mine), row - first)
                    if left_stays
                    else (self._panel("left", batch, row, height, keep=False), 0)
                )
                self._block(batch, left, right, (at, row, height), (column, columns))
                yield

    def _width(self) -> int:
        """Return how many columns of the right operand are on the chip at once."""
        if self.whole_rows:
            return self.shape.n
        each = _bytes(self.shape.k, 1, self.right.dtype)
        return min(self.shape.n, max(PARTITIONS, _STAYS // each // PARTITIONS * PARTITIONS))

    def _panel(
        self, side: str, batch: int, column: int, columns: int, *, keep: bool = True
    ) -> Panel:
        found = self._panels.get((side, column, columns))
        if found is None:
            self.e.at(self.node)
            operand = self.left if side == "left" else self.right
            found = panel(self.e, operand.leaf(batch), self.shape.k, column, columns)
            if keep:
                for key in [key for key in self._panels if key[0] == side]:
                    del self._panels[key]
                self._panels[side, column, columns] = found
        return found

    def _block(
        self,
        batch: int,
        left: Panel,
        right: Panel,
        rows: tuple[int, int, int],
        columns: tuple[int, int],
    ) -> None:
        """Compute some rows and columns, and all that follows.

        Args:
            batch: number of the matrix.
            left: tiles of the left operand.
            right: of the right operand.
            rows: first one in the tiles, first one in the matrix, and how many.
            columns: first one in the matrix, which is the first one of the tiles, and how many.
        """
        at, row, height = rows
        first, width = columns
        node, e = self.node, self.e
        self.rows.begin_rows(batch * self.shape.m + row, height)
        whole = None
        if self.whole_rows:
            fits = width <= _BANKS * BANK and node.dtype is DType.F32
            buffer = nl.psum if fits else nl.sbuf
            whole = nl.ndarray((height, width), dtype=HELD[node.dtype], buffer=buffer)
        for column, some in chunks(width, BANK):
            e.at(node)
            total = None
            if whole is not None and whole.buffer is nl.psum:
                total = whole[:, column : column + some]
            total = multiply(left, right, (at, height), (column, some), total)
            if whole is not None:
                if whole.buffer is nl.psum:
                    continue
                e.copy(whole[:, column : column + some], total)
                continue
            self._finish(total, first + column, height, some)
        if whole is not None:
            given = {node: Value(whole, node.dtype)}
            self.rows.rows(batch * self.shape.m + row, height, given)

    def _finish(self, total: NkiTensor, column: int, height: int, columns: int) -> None:
        """Do what follows with a tile in PSUM, and store it."""
        node, e = self.node, self.e
        e.partitions, e.columns = height, columns
        self.rows.begin_columns(column, columns, {})
        value = Value(total, node.dtype)
        if node.dtype is not DType.F32:
            e.at(node)
            value = e.copied(value, node.dtype)
        self.rows.give(node, value)
        self.rows.store(full=None if column == 0 else True)


def run_product(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Compute a product and what follows it.

    Raises:
        NoLoweringError: there are no instructions for it.
    """
    product = Product(e, group, inputs, outputs)
    product.run(product.share())
