"""Collectives over two hosts against gloo on CPU tensors; a program for examples/two_hosts.py.

    GLOO_SOCKET_IFNAME=cable python -m examples.two_hosts -- -m benchmarks.several_hosts

gloo needs the variable, as the name of a network namespace leads nowhere; ours does without.
"""

from __future__ import annotations

import os
import time
import warnings
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

ELEMENTS = 16 << 20  # float32: 64 MiB
SMALL = 256  # 1 KiB
REPEATS = 5
CALLS = 20  # of what is small, in one measurement


def seconds(call: Callable[[], object], calls: int) -> list[float]:
    """Return what one call takes, each time from when all ranks are there."""
    call()
    taken = []
    for _ in range(REPEATS):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        taken.append((time.perf_counter() - start) / calls)
    return sorted(taken)


def main() -> None:
    """Run in every rank; rank 0 prints milliseconds."""
    warnings.simplefilter("ignore")  # PyTorch would have other names of what is called here
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo,neuron:neuron")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    for device in ("neuron", "cpu"):
        large, small = (torch.ones(n, device=device) for n in (ELEMENTS, SMALL))
        part = torch.empty(ELEMENTS // ranks, device=device)
        rows: dict[str, tuple[Callable[[], object], int]] = {
            "all_reduce 64 MiB": (lambda t=large: dist.all_reduce(t), 1),  # type: ignore[misc]
            "reduce_scatter 64 MiB": (
                lambda t=large, p=part: dist.reduce_scatter_tensor(p, t),  # type: ignore[misc]
                1,
            ),
            "all_gather 64 MiB": (
                lambda t=large, p=part: dist.all_gather_into_tensor(t, p),  # type: ignore[misc]
                1,
            ),
            "broadcast 64 MiB": (lambda t=large: dist.broadcast(t, 0), 1),  # type: ignore[misc]
            "all_reduce 1 KiB": (lambda t=small: dist.all_reduce(t), CALLS),  # type: ignore[misc]
        }
        for name, (call, calls) in rows.items():
            taken = seconds(call, calls)
            if rank == 0:
                median = taken[len(taken) // 2] * 1e3
                print(f"{device:6} {name:22} {taken[0] * 1e3:8.2f} ms ({median:.2f})", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
