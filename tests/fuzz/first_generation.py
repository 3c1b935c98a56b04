"""Random kernels of the first generation: `python -m tests.fuzz.first_generation --seconds 3600`.

A kernel goes over tiles of its arrays in loops, by masks, slices or grids, and does a chain of
operations on each (`tests/fuzz/first_operations.py`). What the reference executor finds is compared
with NumPy, exactly, and what the native one finds with that, bit for bit.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
import warnings
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from neuronxcc import nki
from nki.errors import NkiWarning
from nki.reference import run
from tests.fuzz.first_operations import KINDS, MOST, OPERATIONS, Array, Tile, Value, clamp
from tests.kernels.lowering_native import native

__all__ = ["Program", "check", "draw"]

_SMALL = clamp(8)
_LOOPED = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}


class Step(NamedTuple):
    """One operation: what it is, the numbers of its operands, attributes; None clamps operand 0."""

    name: str | None
    operands: tuple[int, ...]
    attributes: dict[str, Any]


@dataclass
class Program:
    """A random kernel.

    Attributes:
        seed: it is drawn from this.
        rows: of the arrays.
        columns: likewise.
        tile: most rows of a tile.
        width: most columns of a tile.
        style: how tiles are chosen: arange, mgrid or slice.
        target: what it is recorded for.
        steps: what is done to each tile.
        values: what is known of the results of the steps.
        late: results are kept in arrays of tiles until all loops have run.
        looped: (value, operator) that is reduced over the columns' tiles.
        summed: (value, value) whose product is summed over the rows' tiles.
        turns: turns of the loop over rows beyond those that have any.
    """

    seed: int
    rows: int
    columns: int
    tile: int
    width: int
    style: str
    target: str
    steps: list[Step] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    late: bool = False
    looped: tuple[int, str] | None = None
    summed: tuple[int, int] | None = None
    turns: int = 0

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles along both axes."""
        return -(-self.rows // self.tile) + self.turns, -(-self.columns // self.width)


def draw(seed: int) -> Program:
    """Return the program of a seed."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    tile = rng.choice([1, 3, 16, 32, 40, 100, 128])
    width = rng.choice([1, 2, 5, 8, 16, 33, 64])
    made = Program(
        seed,
        rows=rng.randint(1, tile * rng.choice([1, 2, 3])),
        columns=rng.randint(1, width * rng.choice([1, 2, 3])),
        tile=tile,
        width=width,
        style=rng.choice(["arange", "mgrid", "slice"]),
        target=rng.choice(["trn1", "trn2", "trn3"]),
        late=rng.random() < 0.3,
        turns=rng.choice([0, 0, 0, 1]),
    )
    names = list(OPERATIONS)
    _add(made, "input", rng)
    _add(made, "input", rng)
    for _ in range(rng.randint(2, 14)):
        _add(made, rng.choice(names), rng)
    tiles = [n for n, v in enumerate(made.values) if not v.lane and v.kind == "float32"]
    if made.style != "slice" and tiles:
        if rng.random() < 0.4:
            made.looped = rng.choice(tiles), rng.choice(sorted(_LOOPED))
        small = [n for n in tiles if made.values[n].bound <= 64]
        if small and rng.random() < 0.4:
            made.summed = rng.choice(small), rng.choice(small)
    made.late = made.late and made.style != "slice"
    return made


def _add(program: Program, name: str, rng: random.Random) -> None:
    found = OPERATIONS[name].draw(rng, program.values)
    if found is None:
        return
    operands, attributes, value = found
    if value.bound > 1 << 24:
        return
    program.steps.append(Step(name, operands, attributes))
    program.values.append(value)
    if value.bound > MOST or rng.random() < 0.15:
        program.steps.append(Step(None, (len(program.values) - 1,), {}))
        program.values.append(value._replace(bound=min(8, value.bound)))


# --- as a kernel ---------------------------------------------------------------------------------


def _place(program: Program, i: int, j: int, arrays: dict[str, Any], scratch: Any) -> Tile:
    """Return a tile of the kernel."""
    tile, width, rows, columns = program.tile, program.width, program.rows, program.columns
    top, left = i * tile, j * width
    if program.style == "slice":
        height = max(0, min(rows, top + tile) - top)
        across = min(columns, left + width) - left
        at = (slice(top, min(rows, top + tile)), nl.ds(left, across))
        p, f = nl.arange(max(height, 1))[:, None] + top, nl.arange(across)[None, :] + left
        shape = (max(height, 1), across)
        return Tile(p, f, at, (at[0],), None, shape, None, None, arrays, scratch)
    if program.style == "mgrid":
        grid = nl.mgrid[0:tile, 0:width]
        p, f = top + grid.p, left + grid.x
    else:
        p, f = top + nl.arange(tile)[:, None], nl.arange(width)[None, :] + left
    mask = (p < rows) & (columns - f > 0)
    lanes = top + nl.arange(tile)[:, None]
    deep = left + nl.arange(width)[:, None] < columns
    return Tile(
        p, f, (p, f), (lanes, 0), mask, (tile, width), lanes < rows, deep, arrays, scratch
    )  # fmt: skip


def _computed(program: Program, tile: Tile) -> list[Any]:
    values: list[Any] = []
    for step in program.steps:
        operands = [values[n] for n in step.operands]
        if step.name is None:
            values.append(_SMALL[0](operands[0]))
        else:
            values.append(OPERATIONS[step.name].kernel(tile, *operands, **step.attributes))
    return values


class _Memory:
    """What a kernel writes to.

    Attributes:
        outs: results of the steps, in HBM.
        blocks: likewise, as arrays of tiles, where they are stored late.
        looped: what is reduced over the columns' tiles, in HBM.
        summed: what is summed over the rows' tiles, in HBM.
        sums: likewise, in PSUM.
    """

    def __init__(self, program: Program) -> None:
        down, across = program.grid
        tile, width, size = program.tile, program.width, (program.rows, program.columns)
        hbm, single = nl.shared_hbm, nl.float32
        self.outs = [
            nl.ndarray((size[0], across if v.lane else size[1]), KINDS[v.kind], buffer=hbm)
            for v in program.values
        ]
        self.blocks = [
            nl.ndarray((down, across, nl.par_dim(tile), 1 if v.lane else width), KINDS[v.kind])
            for v in (program.values if program.late else ())
        ]
        self.looped = nl.ndarray((size[0], min(width, size[1])), dtype=single, buffer=hbm)
        self.sums = nl.ndarray((across, nl.par_dim(width), width), single, buffer=nl.psum)
        self.summed = nl.ndarray((across, width, width), dtype=single, buffer=hbm)

    def take(self, program: Program, tile: Tile, at: tuple[int, int], values: list[Any]) -> None:
        """Keep the results of a tile."""
        for number, value in enumerate(values):
            if program.late:
                self.blocks[number][at] = value
            else:
                _store(program, tile, at[1], self.outs[number], value, number)
        if program.summed is not None:
            x, y = (values[number] for number in program.summed)
            self.sums[at[1]] += nisa.nc_matmul(x, y, mask=tile.height)

    def results(self, program: Program, folded: Any) -> tuple[Any, ...]:
        """Store what is kept, and return all results."""
        down, across = program.grid
        found = list(self.outs)
        p, f = nl.arange(program.tile)[:, None], nl.arange(program.width)[None, :]
        if program.looped is not None:
            for i in nl.affine_range(down):
                inside = (i * program.tile + p < program.rows) & (f < program.columns)
                nl.store(self.looped[i * program.tile + p, f], folded[i, p, f], mask=inside)
            found.append(self.looped)
        if program.summed is not None:
            for j in nl.affine_range(across):
                nl.store(self.summed[j], self.sums[j])
            found.append(self.summed)
        return tuple(found)


def build(program: Program) -> Any:
    """Return the kernel of a program."""
    down, across = program.grid

    @nki.jit(platform_target=program.target)
    def kernel(a: Any, b: Any, h: Any, n: Any, table: Any, rows: Any) -> Any:
        arrays = {"a": a, "b": b, "h": h, "n": n, "table": table, "rows": rows}
        size = (program.rows, program.columns)
        scratch = {k: nl.ndarray(size, dtype=KINDS[k], buffer=nl.private_hbm) for k in KINDS}
        memory = _Memory(program)
        folded = nl.ndarray((down, nl.par_dim(program.tile), program.width), dtype=nl.float32)
        p, f = nl.arange(program.tile)[:, None], nl.arange(program.width)[None, :]
        for i in nl.affine_range(down):
            for j in nl.affine_range(across):
                tile = _place(program, i, j, arrays, scratch)
                values = _computed(program, tile)
                memory.take(program, tile, (i, j), values)
                if program.looped is not None:
                    number, op = program.looped
                    folded[i, p, f] = nl.loop_reduce(
                        values[number], op=getattr(np, op), loop_indices=[j], mask=tile.mask
                    )
        for i in nl.affine_range(down if program.late else 0):
            for j in nl.affine_range(across):
                tile = _place(program, i, j, arrays, scratch)
                for number, block in enumerate(memory.blocks):
                    _store(program, tile, j, memory.outs[number], block[i, j], number)
        return memory.results(program, folded)

    return kernel


def _store(program: Program, tile: Tile, j: int, out: Any, value: Any, number: int) -> None:
    if not program.values[number].lane:
        nl.store(out[tile.at], value, mask=tile.mask)
    elif tile.mask is None:
        nl.store(out[tile.at[0], j : j + 1], value)
    else:
        nl.store(out[tile.rows[0], j], value, mask=tile.height)


# --- in NumPy ------------------------------------------------------------------------------------


def inputs(program: Program) -> list[Array]:
    rng = np.random.default_rng(program.seed)
    size = (program.rows, program.columns)
    kinds = [np.float32, np.float32, KINDS["bfloat16"], np.int32]
    arrays = [np.asarray(rng.integers(-8, 9, size).astype(kind)) for kind in kinds]
    table = rng.integers(-8, 9, (7, program.columns)).astype(np.float32)
    return [*arrays, table, rng.integers(0, 7, (program.rows, 1)).astype(np.int32)]


def _meant(program: Program, tile: Tile) -> list[Array]:
    values: list[Array] = []
    for step in program.steps:
        operands = [values[n] for n in step.operands]
        if step.name is None:
            values.append(_SMALL[1](operands[0]))
        else:
            meaning = OPERATIONS[step.name].meaning
            values.append(np.asarray(meaning(tile, *operands, **step.attributes)))
    return values


def expected(program: Program, given: list[Array]) -> list[Array]:
    """Return what a program's kernel returns, NaN where nothing is meant."""
    arrays = dict(zip(("a", "b", "h", "n", "table", "rows"), given, strict=True))
    down, across = program.grid
    size, width = (program.rows, program.columns), program.width
    outs = [
        np.zeros((size[0], across if v.lane else size[1]), KINDS[v.kind]) for v in program.values
    ]
    looped = np.full((size[0], min(width, size[1])), np.nan, np.float32)
    summed = np.full((across, width, width), np.nan, np.float32)
    for i, j in np.ndindex(down, across):
        r = np.arange(i * program.tile, min(size[0], (i + 1) * program.tile))
        c = np.arange(j * width, min(size[1], (j + 1) * width))
        if not len(r):
            continue
        at, shape, count = np.ix_(r, c), (len(r), len(c)), len(c)
        tile = Tile(r[:, None], c[None, :], at, r, None, shape, None, None, arrays, {})
        values = _meant(program, tile)
        for out, value, known in zip(outs, values, program.values, strict=True):
            out[np.ix_(r, [j]) if known.lane else at] = value
        if program.looped is not None:
            number, op = program.looped
            part = np.ix_(r, np.arange(count))
            new = values[number]
            looped[part] = new if j == 0 else _LOOPED[op](looped[part], new)
        if program.summed is not None:
            x, y = (values[number].astype(float) for number in program.summed)
            before = 0 if i == 0 else summed[j, :count, :count]
            summed[j, :count, :count] = before + x.T @ y
    results = list(outs)
    results += [looped] if program.looped is not None else []
    results += [summed] if program.summed is not None else []
    return results


def check(program: Program) -> None:
    """Run a program's kernel on both executors.

    Raises:
        AssertionError: results differ.
    """
    given = inputs(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NkiWarning)
        recording = build(program).today().record(*[np.array(array) for array in given])
    for finding, where in recording.findings:
        if finding.code != "NKI223":
            raise AssertionError(f"{finding.code} {finding.text} {where}")
    got = run(recording, [np.array(array) for array in given])
    quick = native(recording, [np.array(array) for array in given])
    wanted = expected(program, given)
    for number, (slow, fast, want) in enumerate(zip(got, quick, wanted, strict=True)):
        # Of what is returned beside the values, some is never written.
        inside = np.s_[...] if number < len(program.values) else ~np.isnan(want)
        np.testing.assert_array_equal(slow[inside], want[inside], f"result {number} against NumPy")
        bits, words = (np.ascontiguousarray(x[inside]).view(np.uint8) for x in (fast, slow))
        np.testing.assert_array_equal(bits, words, f"result {number}, native against reference")


def main() -> int:
    """Parse the command line and search until the time is over."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.first_generation")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--count", type=int, default=0, help="programs; by default all in the time")
    given = parser.parse_args()
    end, seed, bad = time.monotonic() + given.seconds, given.seed, 0
    while time.monotonic() < end and (not given.count or seed < given.seed + given.count):
        try:
            check(draw(seed))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported with its seed
            bad += 1
            print(  # noqa: T201 - a command
                f"--seed {seed} --count 1: {type(error).__name__}: {error}"[:600], flush=True
            )
            if given.count == 1:
                traceback.print_exc()
                print(draw(seed))  # noqa: T201
        seed += 1
    print(f"{seed - given.seed} programs, {bad} findings")  # noqa: T201
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
