"""A graph as instructions of a NeuronCore: what is fused, how long it takes, what options change.

    python -m examples.device_program

A transformer's block is lowered to device programs, and layers whose weights four ranks share.
Nothing of this computer's is timed. At the end a small block runs by its instructions, and is
compared with the meaning of its graph.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.reference import evaluate
from neuronxcc.options import Options
from neuronxcc.targets import get_target
from nki.device import DeviceProgram, Job, lower

# name, options
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("-O1: every operator through HBM", {"optlevel": 1}),
    ("-O2: fused", {"optlevel": 2}),
    ("-O2 --auto-cast matmult", {"optlevel": 2, "auto_cast": "matmult"}),
    ("-O2 --auto-cast matmult --lnc 2", {"optlevel": 2, "auto_cast": "matmult", "lnc": 2}),
)


class _Block:
    """The parameters of a block, numbered as they are made."""

    def __init__(self) -> None:
        self.params: list[Node] = []

    def parameter(self, name: str, *shape: int) -> Node:
        made = parameter(len(self.params), TensorType(DType.F32, shape), name)
        self.params.append(made)
        return made

    def linear(self, name: str, x: Node, width: int) -> Node:
        y = build.matmul(x, self.parameter(f"{name}.weight", x.shape[-1], width))
        bias = self.parameter(f"{name}.bias", width)
        return build.binary(Op.ADD, y, build.broadcast_in_dim(bias, y.shape, (len(y.shape) - 1,)))

    def norm(self, x: Node) -> Node:
        """RMS norm of the last dimension."""
        last = len(x.shape) - 1
        square = build.reduce(build.binary(Op.MULTIPLY, x, x), "add", (last,), keep=True)
        mean = build.binary(Op.ADD, build.binary(Op.MULTIPLY, square, 1 / x.shape[-1]), 1e-5)
        return build.binary(
            Op.MULTIPLY, x, build.broadcast_to(build.unary(Op.RSQRT, mean), x.shape)
        )


def softmax(x: Node) -> Node:
    last = len(x.shape) - 1
    top = build.broadcast_to(build.reduce(x, "max", (last,), keep=True), x.shape)
    powers = build.unary(Op.EXP, build.binary(Op.SUBTRACT, x, top))
    total = build.broadcast_to(build.reduce(powers, "add", (last,), keep=True), x.shape)
    return build.binary(Op.DIVIDE, powers, total)


def block(tokens: int, width: int, heads: int) -> Graph:
    """Attention and two layers behind it, with norms and residuals."""
    made, each = _Block(), width // heads
    x = made.parameter("x", tokens, width)
    y = made.norm(x)
    q, k, v = (
        build.transpose(
            build.reshape(made.linear(name, y, width), (tokens, heads, each)), (1, 0, 2)
        )
        for name in "qkv"
    )
    scores = build.dot_general(
        q, k, lhs_batch=(0,), rhs_batch=(0,), lhs_contract=(2,), rhs_contract=(2,)
    )
    out = build.matmul(softmax(build.binary(Op.MULTIPLY, scores, each**-0.5)), v)
    out = build.reshape(build.transpose(out, (1, 0, 2)), (tokens, width))
    x = build.binary(Op.ADD, x, made.linear("out", out, width))
    hidden = build.unary(Op.TANH, made.linear("up", made.norm(x), 4 * width))
    result = build.binary(Op.ADD, x, made.linear("down", hidden, width))
    return Graph("block", tuple(made.params), (result,))


def sharded(layers: int, ranks: int, rows: int = 1024, width: int = 512) -> Graph:
    """Layers whose weights are gathered from all ranks."""
    made, group = _Block(), (tuple(range(ranks)),)
    x = made.parameter("x", rows, width)
    for number in range(layers):
        part = made.parameter(f"weight{number}", width // ranks, width)
        weight = build.make(Op.ALL_GATHER, (part,), dim=0, group=group)
        x = build.unary(Op.TANH, build.matmul(x, weight))
    return Graph("sharded", tuple(made.params), (x,))


def show(program: DeviceProgram) -> None:
    """Print the sections, and what each adds to the time."""
    made = program.predict()
    for part in made.sections:
        section = part.section
        operators = ", ".join(dict.fromkeys(node.op.value for node in section.nodes))
        print(f"{part.device_us:8.1f} us {section.instructions:6} instructions  {operators[:70]}")
    busy = ", ".join(f"{name} {share:.0%}" for name, share in made.utilisation.items() if share)
    print(f"{made.device_us:8.1f} us in all on {made.target}; busy: {busy}\n")


def run() -> list[str]:
    """Lower, time and run. Returns what went wrong, in words."""
    wrong = []
    graph = block(1024, 1024, 16)
    show(lower(graph, "trn2", Options(lnc=1)))
    times = []
    for name, options in VARIANTS:
        program = lower(graph, "trn2", Options(**{"lnc": 1, **options}))
        made = program.predict()
        times.append(made.device_us)
        print(f"{name:34} {made.device_us:8.1f} us {program.instructions:7} instructions")
    if times != sorted(times, reverse=True):
        wrong.append(f"an option that should make the block faster does not: {times}")

    chip, ranks = get_target("trn2"), 4
    graph, waits = sharded(8, ranks), []
    for strategy in ("", "fsdp"):
        program = lower(graph, chip, Options(lnc=1, distribution_strategy=strategy))
        made = program.predict(job=Job(ranks, chip, 1))
        waits.append(made.device_us)
        name = f"--distribution-strategy {strategy}" if strategy else "what follows a gather waits"
        print(f"{name:34} {made.device_us:8.1f} us, collectives {made.busy_us['cc']:.1f}")
    if waits[1] >= waits[0]:
        wrong.append(f"collectives beside the computation save nothing: {waits}")

    small = block(40, 64, 4)
    rng = np.random.default_rng(0)
    args = [rng.normal(size=p.shape).astype(np.float32) * 0.2 for p in small.params]
    (got,) = lower(small, "trn2").run(args, by="reference")
    (expected,) = evaluate(small, args)
    off = float(np.abs(got - expected).max())
    print(f"\nA small block by its instructions differs from the graph's meaning by {off:.1e}.")
    if off > 1e-4:
        wrong.append(f"the instructions' values are off by {off:.1e}")
    return wrong


if __name__ == "__main__":
    sys.exit("\n".join(run()) or None)
