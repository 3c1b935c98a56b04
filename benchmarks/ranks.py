"""Processes of one job, each with one thread, with gloo for CPU tensors and neuron for ours."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")
PATIENCE_SECONDS = 300.0


def _rank(
    rank: int,
    world_size: int,
    store: str,
    send: Connection,
    function: Callable[..., object],
    args: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    torch.accelerator.set_device_index(rank % torch.accelerator.device_count())
    dist.init_process_group(
        "cpu:gloo,neuron:neuron", init_method=f"file://{store}", rank=rank, world_size=world_size
    )
    try:
        send.send(function(*args))
    finally:
        dist.destroy_process_group()


def run(world_size: int, function: Callable[..., T], *args: Any) -> list[T]:
    """Call `function(*args)` on every rank of a new job; returns what they returned, in order.

    Raises:
        RuntimeError: A rank failed (its traceback is on stderr) or took over five minutes.
    """
    context = multiprocessing.get_context("spawn")
    # Before a rank imports torch: its pools are sized then.
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
        ranks = [
            context.Process(
                target=_rank, args=(r, world_size, store, pipes[r][1], function, args), daemon=True
            )
            for r in range(world_size)
        ]
        for process in ranks:
            process.start()
        for _, send in pipes:
            send.close()
        try:
            results = []
            for r, (receive, _) in enumerate(pipes):
                if not receive.poll(PATIENCE_SECONDS):
                    raise RuntimeError(f"rank {r} did not answer in {PATIENCE_SECONDS:g} s")
                results.append(receive.recv())
        except EOFError:
            raise RuntimeError("a rank failed; see above") from None
        finally:
            for process in ranks:
                process.join(10)
                process.kill()
                process.join()
    return results
