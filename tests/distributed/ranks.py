"""Runs a function in every rank of a group of processes that nothing else has used."""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

import torch_neuronx

# New processes come from a server that has imported what every rank needs, which takes a rank some
# three seconds of a processor. It has used no device and started no thread, so a copy of it is as
# good as a new interpreter. It is started by the first ranks.
CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *("torch", "torch_neuronx", "torch.distributed", "torch.distributed.fsdp"),
        *("torch.distributed.tensor", "torch.distributed.checkpoint", "torch._dynamo"),
        *("pytest", "hypothesis"),
    ]
)


class RankError(AssertionError):
    """A rank has failed; the message has its traceback."""


def _rank(
    rank: int,
    world_size: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    store: str,
    environment: Mapping[str, str],
    backend: str | None,
    timeout: float,
    report: Connection,
) -> None:
    os.environ.clear()  # the server has that of the first test
    os.environ.update(
        environment,
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(world_size),
    )
    torch.set_num_threads(1)
    torch_neuronx.neuron.eager.configure()  # the mode of this test, not of the server's
    if torch_neuronx.neuron.get_eager_mode() != "debug":
        torch_neuronx._C.set_direct_elements(0)
    try:
        torch.accelerator.set_device_index(rank % torch.accelerator.device_count())
        if backend != "none":
            dist.init_process_group(
                backend,
                store=FileStore(store, world_size),
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=timeout),
            )
        result = function(rank, world_size, *args)
        if dist.is_initialized():
            dist.destroy_process_group()
        report.send((True, result))
    except BaseException:
        report.send((False, traceback.format_exc()))
        raise


def run_ranks(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float = 60,
    env: Mapping[str, str] | None = None,
    backend: str | None = None,
    group_timeout: float = 20,
) -> list[Any]:
    """Call ``function(rank, world_size, *args)`` in `world_size` processes of one thread each.

    Args:
        world_size: number of ranks.
        function: importable by name; its group is ready, its device is set.
        args: further arguments; they are pickled.
        timeout: seconds after which all ranks are killed.
        env: environment variables of the ranks; a value with ``{rank}`` gets the rank's number.
        backend: what ``init_process_group`` is given; ``"none"`` leaves it to the function.
        group_timeout: seconds, of the group's collectives.

    Returns:
        What each rank's call returned.

    Raises:
        RankError: a rank has raised (its traceback is in the text), has ended or was too slow.
    """
    with tempfile.TemporaryDirectory() as folder:
        processes, reports = [], []
        for rank in range(world_size):
            mine, theirs = CONTEXT.Pipe(duplex=False)
            asked = {k: v.format(rank=rank) for k, v in (env or {}).items()}
            environment = {**os.environ, **asked}
            process = CONTEXT.Process(
                target=_rank,
                args=(
                    rank,
                    world_size,
                    function,
                    args,
                    str(Path(folder) / "store"),
                    environment,
                    backend,
                    group_timeout,
                    theirs,
                ),
            )
            process.start()
            theirs.close()
            processes.append(process)
            reports.append(mine)
        try:
            return _collect(processes, reports, time.monotonic() + timeout)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _collect(processes: list[Any], reports: list[Connection], deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    failures: dict[int, str] = {}
    waiting = dict(enumerate(reports))
    while waiting:
        ready = wait(list(waiting.values()), timeout=max(0, deadline - time.monotonic()))
        if not ready:
            failures.update(dict.fromkeys(waiting, "no answer in time\n"))
            break
        for rank in [r for r, report in waiting.items() if report in ready]:
            try:
                good, value = waiting.pop(rank).recv()
            except EOFError:
                processes[rank].join(5)
                good, value = False, f"ended with exit code {processes[rank].exitcode}\n"
            (results if good else failures)[rank] = value
        if failures:
            # The others find out by themselves; what they say helps to understand the first.
            deadline = min(deadline, time.monotonic() + 10)
    if failures:
        raise RankError("".join(f"\nrank {r}:\n{failures[r]}" for r in sorted(failures)))
    return [results[rank] for rank in range(len(reports))]
