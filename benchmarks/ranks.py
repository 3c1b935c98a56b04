"""Processes of one job, each with one thread, with gloo for CPU tensors and neuron for ours."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from tests.distributed.ranks import run_ranks

T = TypeVar("T")
PATIENCE_SECONDS = 300.0


def run(world_size: int, function: Callable[..., T], *args: Any) -> list[T]:
    """Call `function(*args)` on every rank of a new job; returns what they returned, in order.

    Raises:
        RankError: A rank failed (its traceback is in the text) or took over five minutes.
    """
    # Before a rank imports torch: its pools are sized then.
    os.environ["OMP_NUM_THREADS"] = "1"
    return run_ranks(
        world_size,
        _call,
        function,
        args,
        timeout=PATIENCE_SECONDS,
        backend="cpu:gloo,neuron:neuron",
        group_timeout=PATIENCE_SECONDS,
    )


def _call(rank: int, world_size: int, function: Callable[..., T], args: tuple[Any, ...]) -> T:
    del rank, world_size
    return function(*args)
