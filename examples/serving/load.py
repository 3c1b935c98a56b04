"""The load test: clients on loopback, each with one connection and one request at a time."""

from __future__ import annotations

import http.client
import json
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """What the clients saw.

    Attributes:
        seconds: From the first request to the last answer.
        latencies: Seconds of every request.
        vectors: The first vector of every text.
    """

    seconds: float
    latencies: list[float]
    vectors: dict[str, list[float]]

    def __str__(self) -> str:
        ordered = sorted(self.latencies)
        p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        return (
            f"{len(ordered) / self.seconds:6.0f} requests/s, latency p50 "
            f"{1000 * statistics.median(ordered):.1f} ms, p99 {1000 * p99:.1f} ms"
        )


def request(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    """Status and content of one answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body)
        return _read(connection)
    finally:
        connection.close()


def _read(connection: http.client.HTTPConnection) -> tuple[int, Any]:
    answer = connection.getresponse()
    content = answer.read()
    if answer.getheader("Content-Type", "").startswith("application/json"):
        return answer.status, json.loads(content)
    return answer.status, content.decode()


def run(port: int, texts: Sequence[str], clients: int, requests: int) -> Result:
    """Send `requests` requests of one text each from every client.

    Raises:
        RuntimeError: An answer was no result.
    """
    latencies: list[float] = []
    vectors: dict[str, list[float]] = {}
    failures: list[str] = []
    ready = threading.Barrier(clients + 1)

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        ready.wait()
        for i in range(requests):
            text = texts[(number + i) % len(texts)]
            start = time.perf_counter()
            connection.request("POST", "/embed", json.dumps({"texts": [text]}).encode())
            status, found = _read(connection)
            latencies.append(time.perf_counter() - start)
            if status != http.client.OK:
                failures.append(f"{status}: {found}")
                break
            vectors.setdefault(text, found["vectors"][0])
        connection.close()

    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    if failures:
        raise RuntimeError(f"{len(failures)} requests failed, the first with {failures[0]}")
    return Result(seconds, latencies, vectors)
