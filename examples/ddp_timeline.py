"""Where communication hides behind computation: one step of FSDP2 and one of DDP, as a picture.

    torchrun --nproc-per-node 2 -m examples.ddp_timeline

Every rank profiles one training step of a small transformer in each of the two. Rank 0 prints two
rows for each: what its core computed and what its group communicated, and how much of the
communication ran beside computation. The traces are written for chrome://tracing or Perfetto.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

Interval = tuple[float, float]  # microseconds
Row = list[tuple[str, Interval]]  # name of the activity, and when


def make_model(width: int, layers: int) -> nn.Module:
    """A decoder-sized stack of encoder layers; its output has the shape of its input."""
    torch.manual_seed(0)
    stack = [
        nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        for _ in range(layers)
    ]
    return nn.Sequential(*stack).to("neuron")


def rows(trace: Path) -> tuple[Row, Row]:
    """Read a trace: what the core computed and what it communicated, each in order of time."""
    computed: Row = []
    communicated: Row = []
    for event in json.loads(trace.read_text())["traceEvents"]:
        if event.get("ph") != "X" or not str(event.get("name", "")).startswith("neuron::"):
            continue
        interval = (event["ts"], event["ts"] + event["dur"])
        row = communicated if "Collective name" in event.get("args", {}) else computed
        row.append((event["name"].removeprefix("neuron::"), interval))
    return sorted(computed, key=lambda a: a[1]), sorted(communicated, key=lambda a: a[1])


def joined(row: Row) -> list[Interval]:
    """The intervals of a row without their overlaps, in order."""
    merged: list[Interval] = []
    for _, (begin, end) in row:
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def overlap(computed: Row, communicated: Row) -> tuple[float, float]:
    """Microseconds in which both rows are busy, and in which communication is."""
    both = 0.0
    for begin, end in joined(communicated):
        both += sum(max(0.0, min(end, e) - max(begin, b)) for b, e in joined(computed))
    return both, sum(end - begin for begin, end in joined(communicated))


def picture(computed: Row, communicated: Row, columns: int) -> str:
    """Two lines of text over one axis of time; letters are the initials of what ran."""
    everything = [interval for _, interval in computed + communicated]
    start, stop = min(b for b, _ in everything), max(e for _, e in everything)

    def line(row: Row, letter: dict[str, str]) -> str:
        cells = [" "] * columns
        for name, (begin, end) in row:
            first = int((begin - start) / (stop - start) * columns)
            last = int((end - start) / (stop - start) * columns)
            for i in range(first, min(last + 1, columns)):
                cells[i] = letter.get(name, "#")
        return "".join(cells)

    letters = {"all_gather": "G", "reduce_scatter": "S", "all_reduce": "R", "broadcast": "B"}
    return (
        f"  core           |{line(computed, {})}|\n"
        f"  communication  |{line(communicated, letters)}|  {(stop - start) / 1e3:.1f} ms"
    )


def profiled_step(model: nn.Module, batch: Tensor, trace: Path) -> None:
    """Two training steps to warm up, then one whose trace is written."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.accelerator.synchronize()

    step()
    step()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as p:
        step()
    p.export_chrome_trace(str(trace))


def run(kind: str, width: int, layers: int, folder: Path) -> tuple[Row, Row]:
    """One profiled step under "FSDP2" or "DDP"; returns the rows of this rank."""
    model: Any = make_model(width, layers)
    if kind == "FSDP2":
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    else:
        model = DistributedDataParallel(model, bucket_cap_mb=4)
    batch = torch.randn(4, 128, width, device="neuron")
    trace = folder / f"{kind.lower()}-rank{dist.get_rank()}.json"
    profiled_step(model, batch, trace)
    return rows(trace)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path("build"), help="for the traces")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    dist.init_process_group("neuron")
    for kind in ("FSDP2", "DDP"):
        computed, communicated = run(kind, options.width, options.layers, options.folder)
        if dist.get_rank() == 0:
            both, all_ = overlap(computed, communicated)
            print(f"{kind}, rank 0: {both / all_:.0%} of {all_ / 1e3:.1f} ms of communication")
            print(f"ran beside computation (trace: {options.folder}/{kind.lower()}-rank0.json)")
            print(picture(computed, communicated, options.columns))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
