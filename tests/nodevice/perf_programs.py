"""Small programs for the tests of what a prediction shows."""

from __future__ import annotations

import numpy as np

from neuronxcc.perf import ENGINES, QUEUES, Product, Stream, Tile, Transfer, Work, Writer

__all__ = ["LOAD", "STORE", "layered"]

LOAD, STORE = QUEUES.index("load"), QUEUES.index("store")


def layered(tiles: int = 24, *, row: int = 2048, name: str = "layered", cores: int = 1) -> Stream:
    """Load, multiply, add a number and store, tile after tile; each core has memory for three."""
    made = Writer(name)
    stream = made.stream
    for core in range(cores):
        moved = Transfer(128 * row, row)
        load, store = (Work("dma_copy", q, 0, core=core, transfer=moved) for q in (LOAD, STORE))
        spill = store._replace(transfer=moved._replace(spill=True))
        product = Product(128, 128, 512, "float32")
        multiply = Work(
            "nc_matmul", ENGINES.index("tensor"), 2048, core=core, flops=product.flops,
            product=product,
        )  # fmt: skip
        turned = Product(128, 128, 128, "float32", transpose=True)
        turn = multiply._replace(name="nc_transpose", cycles=512, flops=0, product=turned)
        add = Work("activation", ENGINES.index("scalar"), 512, core=core, psum=True)
        for tile in range(tiles):
            a, b, c = (core * 100 + tile % 3 * 3 + i for i in range(3))
            made.add(load, writes=[a], line=(__file__, 1))
            made.add(turn, reads=[a], writes=[c], line=(__file__, 2))
            made.add(multiply, reads=[a, c], writes=[b], line=(__file__, 2))
            made.add(add, reads=[b], writes=[a], line=(__file__, 3))
            made.add(spill if tile % 4 == 0 else store, reads=[a], line=(__file__, 4))
        stream.tiles += [Tile(f"tile{i}", "sbuf", 128, row, core) for i in range(3)]
        stream.tiles += [Tile(f"sum{i}", "psum", 128, 2048, core) for i in range(3)]
    body = stream.body
    # Each tile is used from its first load to its last store.
    uses = []
    for number, memory in enumerate(stream.tiles):
        core, kind = memory.core, int(memory.memory == "psum")
        each = number % 3
        first = core * tiles * 5 + each * 5 + 2 * kind
        last = core * tiles * 5 + (tiles - 3 + each) * 5 + (4, 3)[kind]
        uses += [(first, number), (last, number)]
    uses.sort()
    body.touch, body.tile = (np.array(column, np.int64) for column in zip(*uses, strict=True))
    return stream
