"""What a kernel of hundreds of thousands of instructions costs between its call and its results.

Run it as ``python -m benchmarks.nki_large [attention] [experts] [qkv] [--profile PHASE]``. Phases:
Python that is recorded, checks of the whole recording, lowering to a program, loading (checks of
the program, machine code, the cache's file is left out), one run, and a second one.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import nki.isa as nisa
import nki.language as nl
from neuronxcc.targets import get_target
from nki.checks import check_core
from nki.lowering import lower
from nki.merge import merge
from nki.recorder import Recorder
from torch_neuronx.program.executable import Executable

ROWS, COLUMNS = 128, 512
Shape = tuple[int, ...]


def _tile(shape: Shape, dtype: Any, src: Any) -> Any:
    """A new tile in SBUF with what a view of HBM shows."""
    tile = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=src)
    return tile


def _turned(tile: Any) -> Any:
    """A tile of at most 128 x 128 turned around, in SBUF."""
    rows, columns = tile.shape
    there = nl.ndarray((columns, rows), dtype=tile.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=there, data=tile, engine=nisa.engine.tensor)
    here = nl.ndarray((columns, rows), dtype=tile.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=here, src=there)
    return here


def attention(q: Any, k: Any, v: Any) -> Any:
    """Blocked attention of [heads, n, 128]: q and k as [heads, 128, n], online softmax."""
    heads, width, count = q.shape
    out = nl.ndarray((heads, count, width), dtype=q.dtype, buffer=nl.shared_hbm)
    for head in nl.affine_range(heads):
        keys = _tile((width, count), k.dtype, k[head])
        values = nl.ndarray((ROWS, count // ROWS, width), dtype=v.dtype, buffer=nl.sbuf)
        for j in nl.affine_range(count // ROWS):
            nisa.dma_copy(dst=values[:, j], src=v[head, nl.ds(j * ROWS, ROWS)])
        for i in nl.affine_range(count // ROWS):
            here = slice(i * ROWS, (i + 1) * ROWS)
            query = _tile((width, ROWS), q.dtype, q[head, :, here])
            total = nl.ndarray((ROWS, width), dtype=nl.float32, buffer=nl.sbuf)
            weights = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
            least = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=total, value=0.0)
            nisa.memset(dst=weights, value=0.0)
            nisa.memset(dst=least, value=3.0e38)
            for j in nl.sequential_range(count // COLUMNS):
                _attend(query, keys, values, j, total, weights, least)
            nisa.reciprocal(dst=weights, data=weights)
            done = nl.ndarray((ROWS, width), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=done, data=total, op0=nl.multiply, operand0=weights)
            nisa.dma_copy(dst=out[head, here, :], src=done)
    return out


def _attend(
    query: Any, keys: Any, values: Any, block: int, total: Any, weights: Any, least: Any
) -> None:
    """Take 512 more keys into account; `least` is the negated largest score so far."""
    scores = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
    columns = slice(block * COLUMNS, (block + 1) * COLUMNS)
    nisa.nc_matmul(dst=scores, stationary=query, moving=keys[:, columns])
    now = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=now, op=nl.maximum, data=scores, axis=1, negate=True)
    nisa.tensor_tensor(dst=now, data1=now, data2=least, op=nl.minimum)
    decay = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=decay, op=nl.exp, data=least, bias=now, scale=-1.0)
    nisa.tensor_copy(dst=least, src=now)
    p = nl.ndarray((ROWS, COLUMNS), dtype=values.dtype, buffer=nl.sbuf)
    sums = nl.ndarray((ROWS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation_reduce(
        dst=p, op=nl.exp, data=scores, reduce_op=nl.add, reduce_res=sums, bias=now
    )
    part = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.psum)
    for c in range(COLUMNS // ROWS):
        turned = _turned(p[:, c * ROWS : (c + 1) * ROWS])
        moving = values[:, block * (COLUMNS // ROWS) + c]
        nisa.nc_matmul(dst=part, stationary=turned, moving=moving)
    for kept, new in ((weights, sums), (total, part)):
        nisa.scalar_tensor_tensor(
            dst=kept, data=kept, op0=nl.multiply, operand0=decay, op1=nl.add, operand1=new
        )


def experts(x: Any, gate: Any, up: Any, down: Any) -> Any:
    """A gated MLP per expert, on its own rows.

    x is [experts, hidden, rows], gate and up [experts, hidden, inner], down [experts, inner,
    hidden]; the result is [experts, rows, hidden].
    """
    count, hidden, rows = x.shape
    inner = gate.shape[2]
    out = nl.ndarray((count, rows, hidden), dtype=x.dtype, buffer=nl.shared_hbm)
    for e in nl.affine_range(count):
        tokens = nl.ndarray((ROWS, hidden // ROWS, rows), dtype=x.dtype, buffer=nl.sbuf)
        for k in nl.affine_range(hidden // ROWS):
            nisa.dma_copy(dst=tokens[:, k], src=x[e, k * ROWS : (k + 1) * ROWS])
        middle = [_gated(tokens, gate[e], up[e], i, rows) for i in range(inner // ROWS)]
        for j in nl.affine_range(hidden // COLUMNS):
            columns = slice(j * COLUMNS, (j + 1) * COLUMNS)
            total = nl.ndarray((rows, COLUMNS), dtype=nl.float32, buffer=nl.psum)
            for i, tile in enumerate(middle):
                right = _tile((ROWS, COLUMNS), x.dtype, down[e, i * ROWS : (i + 1) * ROWS, columns])
                nisa.nc_matmul(dst=total, stationary=tile, moving=right)
            done = nl.ndarray((rows, COLUMNS), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=done, src=total)
            nisa.dma_copy(dst=out[e, :, columns], src=done)
    return out


def _gated(tokens: Any, gate: Any, up: Any, i: int, rows: int) -> Any:
    """silu(x gate) * (x up) for 128 of the inner columns, as [128, rows]."""
    columns = slice(i * ROWS, (i + 1) * ROWS)
    both = []
    for weight in (gate, up):
        total = nl.ndarray((ROWS, rows), dtype=nl.float32, buffer=nl.psum)
        for k in range(tokens.shape[1]):
            left = _tile((ROWS, ROWS), tokens.dtype, weight[k * ROWS : (k + 1) * ROWS, columns])
            nisa.nc_matmul(dst=total, stationary=left, moving=tokens[:, k])
        both.append(total)
    act = nl.ndarray((ROWS, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=act, op=nl.silu, data=both[0])
    result = nl.ndarray((ROWS, rows), dtype=tokens.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=result, data1=act, data2=both[1], op=nl.multiply)
    return result


def qkv(x: Any, weight: Any, gain: Any) -> Any:
    """RMSNorm of rows [batch, n, hidden], then their product with a matrix [hidden, columns]."""
    batch, count, hidden = x.shape
    columns = weight.shape[1]
    out = nl.ndarray((batch, count, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    scale = _tile((ROWS, hidden), gain.dtype, gain.ap([[0, ROWS], [1, hidden]]))
    for b in nl.affine_range(batch):
        for start in range(0, count, ROWS):
            end = min(start + ROWS, count)
            turned = _normed(x[b, start:end], scale)
            for j in nl.affine_range(columns // COLUMNS):
                there = slice(j * COLUMNS, (j + 1) * COLUMNS)
                total = nl.ndarray((end - start, COLUMNS), dtype=nl.float32, buffer=nl.psum)
                for k, tile in enumerate(turned):
                    right = _tile(
                        (ROWS, COLUMNS), x.dtype, weight[k * ROWS : (k + 1) * ROWS, there]
                    )
                    nisa.nc_matmul(dst=total, stationary=tile, moving=right)
                done = nl.ndarray((end - start, COLUMNS), dtype=out.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=done, src=total)
                nisa.dma_copy(dst=out[b, start:end, there], src=done)
    return out


def _normed(x: Any, scale: Any) -> list[Any]:
    """RMSNorm of rows of HBM, as tiles of 128 columns that are turned around."""
    rows, hidden = x.shape
    tile = _tile((rows, hidden), x.dtype, x)
    squares = nl.ndarray((rows, hidden), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation_reduce(dst=squares, op=nl.square, data=tile, reduce_op=nl.add, reduce_res=total)
    nisa.tensor_scalar(
        dst=total, data=total, op0=nl.multiply, operand0=1 / hidden, op1=nl.add, operand1=1e-6
    )
    nisa.activation(dst=total, op=nl.rsqrt, data=total)
    result = nl.ndarray((rows, hidden), dtype=x.dtype, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=result, data=tile, op0=nl.multiply, operand0=total, op1=nl.multiply,
        operand1=scale[0:rows],
    )  # fmt: skip
    return [_turned(result[:, i : i + ROWS]) for i in range(0, hidden, ROWS)]


class Case(NamedTuple):
    """A kernel and the shapes of its arguments, all bfloat16."""

    kernel: Callable[..., Any]
    shapes: dict[str, Shape]


CASES = {
    "attention": Case(
        attention, {"q": (8, 128, 10240), "k": (8, 128, 10240), "v": (8, 10240, 128)}
    ),
    "experts": Case(
        experts,
        {
            "x": (256, 1024, 16),
            "gate": (256, 1024, 512),
            "up": (256, 1024, 512),
            "down": (256, 512, 1024),
        },
    ),
    "qkv": Case(qkv, {"x": (2, 2588, 2048), "weight": (2048, 6144), "gain": (2048,)}),
}  # fmt: skip


def measured(case: Case, profiled: str | None) -> tuple[int, dict[str, tuple[float, float]]]:
    """Return how many instructions a case has, and its phases' seconds by clock and processor."""
    seconds: dict[str, tuple[float, float]] = {}

    def timed(name: str, function: Callable[[], Any]) -> Any:
        profile = cProfile.Profile() if profiled == name else None
        begin, worked = time.perf_counter(), time.process_time()
        made = profile.runcall(function) if profile is not None else function()
        seconds[name] = time.perf_counter() - begin, time.process_time() - worked
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        return made

    recorder = Recorder(case.kernel.__name__, get_target("trn2"))

    def run_python() -> None:
        with recorder.active():
            given = [recorder.argument(s, "bfloat16", name) for name, s in case.shapes.items()]
            recorder.recording.results = recorder.result(case.kernel(*given))

    timed("python", run_python)
    timed("checks", lambda: check_core(recorder))
    recording = timed("merge", lambda: merge([recorder]))
    program = timed("lower", lambda: lower(recording))
    load = timed("load", lambda: Executable(program, torch.device("cpu")))
    values = [torch.randn(shape, dtype=torch.bfloat16) / 16 for shape in case.shapes.values()]
    for name in ("run", "run again"):
        timed(name, lambda: load.run(tuple(values)))
    return sum(1 for _ in recording.events()), seconds


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("cases", nargs="*", choices=[*CASES, []], help="by default all")
    options.add_argument("--profile", help="a phase: print where its time goes")
    chosen = options.parse_args()
    for name in chosen.cases or CASES:
        count, seconds = measured(CASES[name], chosen.profile)
        print(f"{name}: {count} instructions")
        for phase, (took, worked) in seconds.items():
            print(
                f"  {phase:10} {took:8.2f} s {took / count * 1e6:8.2f} us an instruction, "
                f"{worked / count * 1e6:8.2f} us of the processors"
            )


if __name__ == "__main__":
    main()
