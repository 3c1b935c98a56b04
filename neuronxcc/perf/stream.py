"""Streams: what a core has to do, in program order, with loops as nested blocks.

A stream knows *works* (an instruction with everything but the memory that it uses), and its blocks
hold instructions as rows of arrays: the work, the user's line, and the *cells* that are read and
written. A cell is a piece of memory, of any size, that is used as a whole: two instructions depend
on each other exactly if they have a cell in common that one of them writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "ENGINES",
    "GPSIMD",
    "QUEUES",
    "RINGS",
    "SCALAR",
    "SYNC",
    "TENSOR",
    "VECTOR",
    "Block",
    "Ints",
    "Loop",
    "Product",
    "Stream",
    "Tile",
    "Transfer",
    "Work",
    "Writer",
]

Ints = npt.NDArray[np.int64]

#: Engines with an instruction queue of their own; a queue is worked through in order.
ENGINES: Final = ("tensor", "vector", "scalar", "gpsimd", "sync")
#: Queues of transfers, which wait for what a transfer needs without holding up an engine.
RINGS: Final = ("load", "store", "move")
QUEUES: Final = ENGINES + RINGS
TENSOR, VECTOR, SCALAR, GPSIMD, SYNC = range(len(ENGINES))


class Transfer(NamedTuple):
    """What the DMA engines move for an instruction.

    Attributes:
        nbytes: bytes that are written.
        row: bytes that lie one after the other on both sides; a transfer is made of such rows.
        hbm: how many of its two sides are HBM.
        spill: it is no transfer of the program: its memory was too small.
        made: who makes its descriptors while the program runs: "" for nobody, "hardware", or
            "gpsimd".
        share: of the rate of a copy that it reaches.
        source: where the bytes come from: "hbm", "sbuf" or "psum"; "" is what its queue says.
        dest: likewise where they go.
    """

    nbytes: int
    row: int
    hbm: int = 1
    spill: bool = False
    made: str = ""
    share: float = 1.0
    source: str = ""
    dest: str = ""


class Product(NamedTuple):
    """What the array of the Tensor Engine multiplies.

    Attributes:
        rows: of the array that are used: the length of the sums.
        columns: of the array that are used.
        moving: how many rows pass through it.
        dtype: of what is multiplied.
        transpose: the product only turns a tile around.
    """

    rows: int
    columns: int
    moving: int
    dtype: str
    transpose: bool = False

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.columns * self.moving


class Work(NamedTuple):
    """An instruction with everything but its memory.

    Attributes:
        name: of the instruction.
        queue: which of `QUEUES` of its core.
        cycles: how many cycles of its engine pass until the next instruction of the engine can
            begin; of a transfer 0. With a `slope`, elements of a partition instead.
        core: number of the physical core.
        sbuf: it accesses SBUF through the port of a compute engine.
        psum: likewise PSUM.
        flops: multiplications and additions of a product.
        transfer: what it moves, None if nothing.
        slope: the parameter of the model that says how many cycles an element takes.
        product: what the Tensor Engine multiplies, None if nothing.
        waits: its engine waits for another queue before it; see `neuronxcc.perf.waits`.
    """

    name: str
    queue: int
    cycles: float
    core: int = 0
    sbuf: bool = False
    psum: bool = False
    flops: int = 0
    transfer: Transfer | None = None
    slope: str = ""
    product: Product | None = None
    waits: bool = False

    @property
    def sides(self) -> tuple[str, str]:
        """Where a transfer's bytes come from, and where they go."""
        moved = self.transfer
        assert moved is not None
        name = QUEUES[self.queue]
        inside = "hbm" if moved.hbm == 2 else "sbuf"
        source = moved.source or ("hbm" if name == "load" else inside)
        dest = moved.dest or ("hbm" if name == "store" or moved.hbm == 2 else "sbuf")
        return source, dest


class Tile(NamedTuple):
    """Memory on the chip that a program has given a name.

    Attributes:
        name: the user's, or what it is made of.
        memory: "sbuf" or "psum".
        partitions: that it takes.
        row_bytes: of each of them.
        core: number of the physical core.
    """

    name: str
    memory: str
    partitions: int
    row_bytes: int
    core: int = 0


def _ints() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(slots=True)
class Block:
    """Instructions and loops in order.

    Attributes:
        work: of each instruction, its number in the stream.
        line: likewise the user's.
        event: instruction of each access to a cell, ascending.
        cell: what is accessed.
        writes: 1 if it is written, 0 if it is read.
        loops: (instructions before it, loop).
        touch: instruction of each first and each last use of a tile, ascending.
        tile: which one, by its number in the stream.
    """

    work: Ints = field(default_factory=_ints)
    line: Ints = field(default_factory=_ints)
    event: Ints = field(default_factory=_ints)
    cell: Ints = field(default_factory=_ints)
    writes: Ints = field(default_factory=_ints)
    loops: list[tuple[int, Loop]] = field(default_factory=list)
    touch: Ints = field(default_factory=_ints)
    tile: Ints = field(default_factory=_ints)

    def counted(self) -> int:
        """Return how many instructions run, those in loops as often as they do."""
        return len(self.work) + sum(loop.count * loop.body.counted() for _, loop in self.loops)


@dataclass(slots=True)
class Loop:
    """A body that runs ``count`` times."""

    count: int
    body: Block


@dataclass(slots=True)
class Stream:
    """A program of one or several cores.

    Attributes:
        name: for people.
        works: by number.
        lines: the user's lines by number, (file, line).
        body: the instructions.
        notes: what is not modelled of this program, in sentences.
        listed: a compiler orders what each engine does; else it is the order of the program.
        tiles: memory on the chip, by number. It shows how full the memories are and changes no
            time: who waits for memory of others is told by cells.
    """

    name: str = "program"
    works: list[Work] = field(default_factory=list)
    lines: list[tuple[str, int]] = field(default_factory=list)
    body: Block = field(default_factory=Block)
    notes: list[str] = field(default_factory=list)
    listed: bool = False
    tiles: list[Tile] = field(default_factory=list)

    @property
    def cores(self) -> int:
        """How many physical cores take part."""
        return 1 + max((work.core for work in self.works), default=0)


class Writer:
    """Makes a stream instruction by instruction: short ones, of tests and by hand.

    >>> made = Writer()
    >>> load = Work("load", QUEUES.index("load"), 0, transfer=Transfer(4096, 2048))
    >>> made.add(load, writes=[0])
    >>> with made.loop(3):
    ...     made.add(Work("tensor_copy", VECTOR, 64), reads=[0], writes=[1])
    >>> made.stream.body.counted()
    4
    """

    def __init__(self, name: str = "program") -> None:
        """Begin."""
        self.stream = Stream(name)
        self._works: dict[Work, int] = {}
        self._lines: dict[tuple[str, int], int] = {}
        self._rows: list[_Rows] = [_Rows(self.stream.body)]

    def add(
        self,
        work: Work,
        reads: Iterable[int] = (),
        writes: Iterable[int] = (),
        line: tuple[str, int] = ("", 0),
    ) -> None:
        """Append an instruction that reads and writes some cells."""
        rows = self._rows[-1]
        number = len(rows.work)
        rows.work.append(self._works.setdefault(work, len(self._works)))
        rows.line.append(self._lines.setdefault(line, len(self._lines)))
        rows.access += [(number, cell, 0) for cell in reads]
        rows.access += [(number, cell, 1) for cell in writes]
        rows.store()
        self.stream.works = list(self._works)
        self.stream.lines = list(self._lines)

    @contextmanager
    def loop(self, count: int) -> Iterator[None]:
        """Let what is added within a ``with`` block run ``count`` times."""
        rows, body = self._rows[-1], Block()
        self._rows.append(_Rows(body))
        yield
        self._rows.pop()
        rows.block.loops.append((len(rows.work), Loop(count, body)))


class _Rows:
    def __init__(self, block: Block) -> None:
        self.block = block
        self.work: list[int] = []
        self.line: list[int] = []
        self.access: list[tuple[int, int, int]] = []

    def store(self) -> None:
        block = self.block
        block.work = np.array(self.work, np.int64)
        block.line = np.array(self.line, np.int64)
        table = np.array(self.access, np.int64).reshape(-1, 3)
        block.event, block.cell, block.writes = table[:, 0], table[:, 1], table[:, 2]
