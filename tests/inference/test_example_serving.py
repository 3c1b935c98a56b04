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


# ---- clients that mean no good -----------------------------------------------------------------

GOOD = b'{"texts": ["word"]}'


def talk(port: int, *pieces: bytes, pause: float = 0.0) -> bytes:
    """All that comes back for pieces of bytes, until the server closes or is silent for a while."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for piece in pieces:
            try:
                connection.sendall(piece)
            except OSError:  # the server has closed
                break
            time.sleep(pause)
        found = b""
        connection.settimeout(1.5)
        try:
            while part := connection.recv(1 << 16):
                found += part
        except OSError:  # silence, or closed
            pass
        return found


def post(body: bytes, *headers: str, path: str = "/embed", verb: str = "POST") -> bytes:
    lines = [f"{verb} {path} HTTP/1.1", "Host: x", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


SMUGGLED = post(b"", path="/smuggled", verb="GET")


@pytest.mark.parametrize("path", ["/health", "/metrics", "/embed", "/x"])
@pytest.mark.parametrize("verb", ["GET", "HEAD", "DELETE", "PUT"])
def test_a_body_is_never_the_next_request(server: Server, path: str, verb: str) -> None:
    length = f"Content-Length: {len(SMUGGLED)}"
    found = talk(server.server_port, post(SMUGGLED, length, path=path, verb=verb))
    assert found.count(b"HTTP/1.1") == 1, found
    assert b"smuggled" not in found


CHUNKED = b"5\r\nhello\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        post(CHUNKED + SMUGGLED, "Content-Length: 4", "Transfer-Encoding: chunked"),
        post(CHUNKED + SMUGGLED, "Transfer-Encoding: chunked", "Content-Length: 4"),
        post(GOOD + SMUGGLED, "Content-Length: 19", "Content-Length: 5"),
        post(GOOD + SMUGGLED, "Content-Length: 19, 5"),
        post(GOOD + SMUGGLED, "Content-Length: -1"),
        post(GOOD + SMUGGLED, "Content-Length: +19"),
        post(GOOD + SMUGGLED, "Content-Length: 1_9"),
        post(GOOD + SMUGGLED, "Content-Length : 19"),
        post(CHUNKED + SMUGGLED, "Transfer-Encoding: xchunked"),
        post(CHUNKED + SMUGGLED, "Transfer-Encoding: chunked, identity"),
        post(GOOD + SMUGGLED, "Content-Length: 19", " folded: x", "X\0: y"),
        b"POST /embed HTTP/1.1\r\n" + b"A: " + b"x" * 200_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00" + bytes(600),
    ],
)
def test_contradictory_requests(server: Server, request_: bytes) -> None:
    """One answer that refuses, and the end of the connection."""
    found = talk(server.server_port, request_)
    assert found.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501")), found
    assert found.count(b"HTTP/1.1") == 1
    assert b"onnection: close" in found
    assert load.request(server.server_port, "POST", "/embed", GOOD)[0] == 200


def test_a_chunked_body_has_no_length(server: Server) -> None:
    found = talk(server.server_port, post(CHUNKED, "Transfer-Encoding: chunked"))
    assert found.startswith(b"HTTP/1.1 411"), found


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\udc80" * 9])
def test_half_a_character(server: Server, text: str) -> None:
    body = json.dumps({"texts": ["word", text]}).encode()
    status, answer = load.request(server.server_port, "POST", "/embed", body)
    assert (status, "text 1 is no Unicode" in answer["error"]) == (400, True)


@pytest.mark.parametrize("size", [1 << 17, 1 << 22])
def test_bodies_that_are_too_large(server: Server, size: int) -> None:
    length = f"Content-Length: {size}"
    found = talk(server.server_port, post(b" " * size, length))
    assert found.startswith(b"HTTP/1.1 413") or size > 1 << 20, found[:200]
    assert load.request(server.server_port, "POST", "/embed", GOOD)[0] == 200


@pytest.fixture
def impatient(embedder: Embedder) -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), embedder, 1, Limits(timeout=1, connections=40))
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server
    server.stop()
    thread.join()


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"", b""),
        (b"POST /em", b"b"),
        (b"GET /health HTTP/1.1\r\n", b"A: b\r\n"),
        (post(b"", "Content-Length: 1000"), b" "),
        (post(b"", "Content-Length: 1000", path="/health", verb="GET"), b" "),
        (post(b"", "Host: x", path="/health", verb="GET"), b"\r\n"),
    ],
)
def test_slow_clients_are_sent_away(impatient: Server, begin: bytes, piece: bytes) -> None:
    """Each byte comes in time, the request never ends."""
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", impatient.server_port), timeout=15) as connection:
        connection.sendall(begin)
        connection.settimeout(0.2)
        while time.monotonic() - start < 12:
            try:
                if not connection.recv(1000):
                    break
            except TimeoutError:
                pass
            except OSError:
                break
            try:
                connection.sendall(piece)
            except OSError:
                break
        else:
            pytest.fail("the connection is still open")


def test_many_connections(impatient: Server) -> None:
    """Silent ones beyond the limit are told to come back; when they are gone, all is as before."""
    silent = [socket.create_connection(("127.0.0.1", impatient.server_port)) for _ in range(120)]
    found = talk(impatient.server_port, post(GOOD, f"Content-Length: {len(GOOD)}"))
    assert found.startswith(b"HTTP/1.1 503"), found
    deadline = time.monotonic() + 12
    status = 0
    while status != 200 and time.monotonic() < deadline:
        time.sleep(0.1)
        found = talk(impatient.server_port, post(GOOD, f"Content-Length: {len(GOOD)}"))
        status = int(found.split()[1]) if found else 0
    assert status == 200
    for connection in silent:
        connection.close()


def test_an_answer_counts_when_it_is_written(server: Server) -> None:
    written = server._counted
    counted: list[int] = []

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        async def watched(message: Any) -> None:
            counted.append(sum(server.statuses.values()))
            await send(message)

        await written(scope, receive, watched)

    deadline = time.monotonic() + 30
    while not server._server.started and time.monotonic() < deadline:
        time.sleep(0.01)  # it loads its application when it starts
    server._server.config.loaded_app = slow
    assert load.request(server.server_port, "GET", "/health")[0] == 200
    assert counted == [0, 0]  # while its head and its body were written
    while not server.statuses and time.monotonic() < deadline:
        time.sleep(0.01)  # the client may read the answer before the server's thread counts it
    assert server.statuses == {200: 1}


def test_given_up_requests_are_not_computed() -> None:
    go, batches = threading.Event(), []

    def function(batch: list[int]) -> list[int]:
        batches.append(batch)
        assert go.wait(10)
        return batch

    batcher = Batcher[int, int](function, lambda _: 0, workers=1, most=2, delay=0.0, capacity=9)
    first = batcher.submit(1)
    while not batches:
        time.sleep(0.001)
    futures = [batcher.submit(x) for x in (2, 3, 4)]
    assert futures[0].cancel()
    assert futures[1].cancel()
    go.set()
    assert (first.result(10), futures[2].result(10)) == (1, 4)
    batcher.close()
    assert batches == [[1], [4]]
    assert batcher.sizes == {1: 2}
