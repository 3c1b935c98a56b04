"""Requests to batches.

A batch leaves when it is full or when its first request has waited long enough. While all workers
are busy, requests wait in a queue that is bounded: beyond that, the caller is told at once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class FullError(RuntimeError):
    """The queue is full, or the server is stopping: try again later."""


@dataclass(slots=True)
class _Waiting(Generic[Item, Result]):
    item: Item
    kind: Hashable
    arrived: float
    result: Future[Result] = field(default_factory=Future)


class Batcher(Generic[Item, Result]):
    """Hands batches of items of one kind to a function, in several threads.

    Attributes:
        sizes: How many batches there were of every size.
    """

    def __init__(
        self,
        function: Callable[[list[Item]], Sequence[Result]],
        kind: Callable[[Item], Hashable],
        *,
        workers: int,
        most: int,
        delay: float,
        capacity: int,
    ) -> None:
        """Start the threads.

        Args:
            function: Results of a batch, in its order.
            kind: Only items of equal kind come into one batch.
            workers: Batches in work at the same time.
            most: Items of a batch.
            delay: Seconds that the first item of a batch waits for others.
            capacity: Items that wait.
        """
        self._function, self._kind = function, kind
        self._most, self._delay, self._capacity = most, delay, capacity
        self._waiting: deque[_Waiting[Item, Result]] = deque()
        self._changed = threading.Condition()
        self._open = True
        self.sizes: Counter[int] = Counter()
        self._threads = [
            threading.Thread(target=self._work, name=f"core {i}") for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, item: Item) -> Future[Result]:
        """Queue an item.

        Raises:
            FullError: There is no room, or `close` was called.
        """
        waiting = _Waiting[Item, Result](item, self._kind(item), time.monotonic())
        with self._changed:
            if not self._open:
                raise FullError("the server is stopping")
            if len(self._waiting) >= self._capacity:
                raise FullError(f"{self._capacity} requests are waiting")
            self._waiting.append(waiting)
            self._changed.notify()
        return waiting.result

    def __len__(self) -> int:
        """How many items wait."""
        return len(self._waiting)

    def close(self) -> None:
        """Take no more items, finish those that wait, and end the threads."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while taken := self._next():
            # Whose caller has given up meanwhile is passed over.
            batch = [w for w in taken if w.result.set_running_or_notify_cancel()]
            if not batch:
                continue
            with self._changed:
                self.sizes[len(batch)] += 1
            try:
                results = self._function([waiting.item for waiting in batch])
                for waiting, result in zip(batch, results, strict=True):
                    waiting.result.set_result(result)
            except Exception as error:  # noqa: BLE001 - it is each caller's
                for waiting in batch:
                    if not waiting.result.done():
                        waiting.result.set_exception(error)

    def _next(self) -> list[_Waiting[Item, Result]]:
        """The next batch; empty when there is none any more."""
        with self._changed:
            while True:
                if not self._waiting:
                    if not self._open:
                        return []
                    self._changed.wait()
                    continue
                first = self._waiting[0]
                alike = [w for w in self._waiting if w.kind == first.kind][: self._most]
                left = first.arrived + self._delay - time.monotonic()
                if len(alike) == self._most or left <= 0 or not self._open:
                    break
                self._changed.wait(left)
            taken = set(map(id, alike))
            self._waiting = deque(w for w in self._waiting if id(w) not in taken)
            if self._waiting:
                self._changed.notify()
            return alike
