"""Send, receive and receive from any between the ranks of a host."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Listener
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.distributed.p2p_scripts import Script, scripts, serve
from tests.distributed.ranks import RankError, run_ranks

DEVICE = "neuron"


class Pool:
    """Ranks that execute one script after the other."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.failure: BaseException | None = None
        self.connections: dict[int, Connection] = {}
        self.folder = tempfile.TemporaryDirectory()
        address = os.path.join(self.folder.name, "scripts")
        self.listener = Listener(address, "AF_UNIX")
        self.thread = threading.Thread(target=self._run, args=(address,))
        self.thread.start()
        for _ in range(ranks):
            connection = self.listener.accept()
            self.connections[connection.recv()] = connection

    def _run(self, address: str) -> None:
        try:
            run_ranks(self.ranks, serve, address, timeout=300, group_timeout=10)
        except RankError as error:
            self.failure = error

    def execute(self, script: Script) -> list[str]:
        """What was wrong, of all ranks."""
        for connection in self.connections.values():
            connection.send(script)
        wrong = []
        for rank, connection in self.connections.items():
            try:
                wrong += [f"rank {rank}: {text}" for text in connection.recv()]
            except EOFError:
                wrong.append(f"rank {rank} has ended")
        return wrong

    def close(self) -> None:
        for connection in self.connections.values():
            if self.failure is None:
                connection.send(None)
        self.thread.join()
        self.listener.close()
        self.folder.cleanup()


@contextmanager
def pools() -> Iterator[Callable[[int], Pool]]:
    """Make a pool of ranks on demand, a new one after a failure; ends them all."""
    made: dict[int, Pool] = {}

    def pool_of(ranks: int) -> Pool:
        if ranks in made and made[ranks].failure is not None:
            made.pop(ranks).close()
        if ranks not in made:
            made[ranks] = Pool(ranks)
        return made[ranks]

    try:
        yield pool_of
    finally:
        for pool in made.values():
            pool.close()


@pytest.mark.parametrize("ranks", [2, 4])
def test_random_scripts(ranks: int) -> None:
    with pools() as pool_of:

        @settings(max_examples=40, database=None)
        @given(scripts(ranks))
        def run(script: Script) -> None:
            pool = pool_of(ranks)
            wrong = pool.execute(script)
            if any("has ended" in text for text in wrong):
                pool.thread.join()
                raise AssertionError(f"{pool.failure}\n{script}")
            assert not wrong, f"{wrong}\n{script}"

        run()
