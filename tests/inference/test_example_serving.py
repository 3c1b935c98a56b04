"""The serving example with a small encoder: answers, batches, errors, the end."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from examples.serving import load
from examples.serving.batcher import Batcher, FullError
from examples.serving.embedder import LENGTHS, Embedder, Embedding, save
from examples.serving.server import Limits, Server

CORES = 4
TEXTS = tuple("word " * n for n in (1, 5, 15, 20, 40, 64))


class Encoder(torch.nn.Module):
    """What an encoder of transformers looks like from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(100, 8)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        del attention_mask
        return SimpleNamespace(last_hidden_state=self.table(input_ids).tanh())


def tokenizer(text: str, *, verbose: bool) -> dict[str, list[int]]:
    assert not verbose
    return {"input_ids": [1 + 7 * i % 90 for i, _ in enumerate(text.split())]}


def wanted(embedding: Embedding, text: str) -> torch.Tensor:
    ids = torch.tensor([tokenizer(text, verbose=False)["input_ids"]])
    with torch.no_grad():
        result: torch.Tensor = embedding(ids, torch.ones_like(ids))[0]
    return result


@pytest.fixture(scope="module")
def embedding() -> Embedding:
    torch.manual_seed(0)
    return Embedding(Encoder()).eval()


@pytest.fixture(scope="module")
def embedder(embedding: Embedding, tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    path = tmp_path_factory.mktemp("serving") / "model.pt"
    save(embedding, path)
    return Embedder(path, tokenizer, CORES)


@pytest.fixture
def server(embedder: Embedder) -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), embedder, CORES, Limits(queue=64, timeout=10))
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server
    server.stop()
    thread.join()


def test_answers_equal_the_module(server: Server, embedding: Embedding) -> None:
    result = load.run(server.server_port, TEXTS, clients=8, requests=6)
    assert len(result.latencies) == 48
    assert set(result.vectors) == set(TEXTS)
    for text, vector in result.vectors.items():
        # Means of at most 64 terms of size 1, added in another order.
        tolerance = 64 * torch.finfo(torch.float32).eps
        torch.testing.assert_close(
            torch.tensor(vector), wanted(embedding, text), rtol=0, atol=tolerance
        )
    assert sum(size * n for size, n in server.batcher.sizes.items()) == 48
    assert "requests/s" in str(result)
    status, metrics = load.request(server.server_port, "GET", "/metrics")
    assert status == 200
    assert 'requests_total{status="200"} 48' in metrics
    assert 'request_seconds{quantile="0.99"}' in metrics
    status, health = load.request(server.server_port, "GET", "/health")
    assert (status, health) == (200, {"status": "ok", "cores": CORES, "waiting": 0})


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("POST", "/embed", b"{", 400, "the body is no JSON"),
        ("POST", "/embed", b"[" * 5000, 400, "the body is no JSON"),
        ("POST", "/embed", b"[]", 400, 'must be {"texts"'),
        ("POST", "/embed", b'{"texts": ["a", 1]}', 400, 'must be {"texts"'),
        ("POST", "/embed", b'{"texts": []}', 400, "has 0 texts; allowed are 1 to 32"),
        ("POST", "/embed", json.dumps({"texts": ["word " * 65]}).encode(), 413, "65 tokens"),
        ("POST", "/embed", b" " * 70_000, 413, "70000 bytes; the limit is 65536"),
        ("GET", "/embed", None, 405, "there is no GET /embed"),
        ("GET", "/x", None, 404, "there is no GET /x"),
    ],
)
def test_bad_requests(
    server: Server, method: str, path: str, body: bytes | None, status: int, text: str
) -> None:
    got, answer = load.request(server.server_port, method, path, body)
    assert (got, text in answer["error"]) == (status, True), answer
    good = load.request(server.server_port, "POST", "/embed", b'{"texts": ["word", "word word"]}')
    assert good[0] == 200
    assert len(good[1]["vectors"]) == 2


def test_no_length(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
        connection.sendall(b"POST /embed HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 411")


def test_the_end_answers_what_was_accepted(embedder: Embedder) -> None:
    server = Server(("127.0.0.1", 0), embedder, 1, Limits(delay=60, timeout=30))
    thread = threading.Thread(target=server.run)
    thread.start()
    answers: list[int] = []

    def client() -> None:
        body = json.dumps({"texts": ["word"]}).encode()
        answers.append(load.request(server.server_port, "POST", "/embed", body)[0])

    clients = [threading.Thread(target=client) for _ in range(3)]
    for one in clients:
        one.start()
    while len(server.batcher) < 3:  # they wait for a fourth, for a minute
        time.sleep(0.005)
    server.stop()
    thread.join()
    for one in clients:
        one.join()
    assert answers == [200, 200, 200]
    assert server.batcher.sizes == {3: 1}


def test_batches() -> None:
    """Full batches leave at once; kinds are not mixed; a full queue refuses; errors are told."""
    go = threading.Event()
    batches: list[list[int]] = []

    def function(batch: list[int]) -> list[int]:
        batches.append(batch)
        assert go.wait(10)
        if 13 in batch:
            raise ValueError("thirteen")
        return [2 * x for x in batch]

    batcher = Batcher[int, int](
        function, lambda x: x % 2, workers=1, most=2, delay=0.01, capacity=6
    )
    first = batcher.submit(1)
    while not batches:
        time.sleep(0.001)
    futures = [batcher.submit(x) for x in (2, 13, 4, 6, 8, 10)]
    with pytest.raises(FullError, match="6 requests are waiting"):
        batcher.submit(12)
    go.set()
    assert first.result(10) == 2
    assert [f.result(10) for f in futures if f is not futures[1]] == [4, 8, 12, 16, 20]
    with pytest.raises(ValueError, match="thirteen"):
        futures[1].result(10)
    batcher.close()
    assert batches == [[1], [2, 4], [13], [6, 8], [10]]
    with pytest.raises(FullError, match="stopping"):
        batcher.submit(1)


def test_buckets(embedder: Embedder) -> None:
    assert [embedder.bucket([0] * n) for n in (1, 16, 17, 64)] == [16, 16, 32, LENGTHS[-1]]


def test_saved_where(embedding: Embedding, tmp_path: Path) -> None:
    """A model that is loaded late is on no core before it is placed."""
    save(embedding, tmp_path / "again.pt")
    found = Embedder(tmp_path / "again.pt", tokenizer, 1)
    assert len(found([[1, 2]])[0]) == 8
