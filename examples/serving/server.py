"""HTTP in and out: POST /embed, GET /health, GET /metrics."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from examples.serving.batcher import Batcher, FullError
from examples.serving.embedder import ROWS, Embedder, TooLongError

Tokens = list[int]
Vector = list[float]
Answer = tuple[HTTPStatus, str, bytes]  # its type and content


@dataclass(frozen=True)
class Limits:
    """What the server accepts, and how it batches."""

    body_bytes: int = 1 << 16
    texts: int = 32  # in one request
    queue: int = 256  # texts that wait
    delay: float = 0.005  # seconds that the first text of a batch waits for others
    timeout: float = 30.0  # seconds for an answer, and for a silent client


class Refusal(Exception):  # noqa: N818 - no defect: an answer to the client
    """An answer that is no result."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class Server(ThreadingHTTPServer):
    """Serves an embedder until `stop`."""

    daemon_threads = True  # a client that keeps its connection open must not hold up the end
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], embedder: Embedder, cores: int, limits: Limits
    ) -> None:
        self.embedder, self.limits, self.cores = embedder, limits, cores
        self.batcher = Batcher[Tokens, Vector](
            embedder,
            embedder.bucket,
            workers=cores,
            most=ROWS,
            delay=limits.delay,
            capacity=limits.queue,
        )
        self.stopping = False
        self.statuses: Counter[int] = Counter()
        self.seconds: deque[float] = deque(maxlen=10_000)  # of the latest answers
        self._lock = threading.Lock()
        self._open = 0
        super().__init__(address, Handler)

    def run(self) -> None:
        """Serve until `stop`; then finish what has been accepted."""
        try:
            self.serve_forever(poll_interval=0.05)
        finally:
            self.stopping = True
            self.batcher.close()  # every request that is queued gets its answer
            deadline = time.monotonic() + self.limits.timeout
            while self._open and time.monotonic() < deadline:
                time.sleep(0.01)
            self.server_close()

    def stop(self) -> None:
        """Have `run` return; for other threads and signal handlers."""
        self.stopping = True
        threading.Thread(target=self.shutdown).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone needs no report."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def begin(self) -> None:
        with self._lock:
            self._open += 1

    def end(self, status: int, seconds: float) -> None:
        with self._lock:
            self._open -= 1
            self.statuses[status] += 1
            self.seconds.append(seconds)

    def embed(self, texts: list[str]) -> list[Vector]:
        """Vectors of texts, which go to batches one by one.

        Raises:
            Refusal: A text is too long, or there is no room.
        """
        try:
            tokens = [self.embedder.tokens(text) for text in texts]
        except TooLongError as error:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error)) from None
        futures: list[Future[Vector]] = []
        try:
            futures += map(self.batcher.submit, tokens)
            return [future.result(self.limits.timeout) for future in futures]
        except FullError as error:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from None
        except TimeoutError:
            raise Refusal(
                HTTPStatus.GATEWAY_TIMEOUT, f"no answer in {self.limits.timeout} s"
            ) from None

    def metrics(self) -> str:
        """Counters in the text format of Prometheus."""
        with self._lock:
            statuses, seconds = dict(self.statuses), sorted(self.seconds)
        lines = ["# TYPE requests_total counter"]
        lines += [f'requests_total{{status="{k}"}} {v}' for k, v in sorted(statuses.items())]
        lines.append("# TYPE batches_total counter")
        for size, count in sorted(self.batcher.sizes.items()):
            lines.append(f'batches_total{{size="{size}"}} {count}')
        lines += ["# TYPE waiting gauge", f"waiting {len(self.batcher)}"]
        lines.append("# TYPE request_seconds summary")
        for share in (0.5, 0.99):
            if seconds:
                value = seconds[min(len(seconds) - 1, int(share * len(seconds)))]
                lines.append(f'request_seconds{{quantile="{share}"}} {value:.6f}')
        return "\n".join(lines) + "\n"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.limits.timeout)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Metrics count requests; a line for each would cost more than the model."""

    def do_GET(self) -> None:
        self._answer({"/health": self._health, "/metrics": self._metrics})

    def do_POST(self) -> None:
        self._answer({"/embed": self._embed})

    def _answer(self, routes: dict[str, Callable[[], Answer]]) -> None:
        start = time.perf_counter()
        self.server.begin()
        status, kind, body = HTTPStatus.INTERNAL_SERVER_ERROR, "application/json", b""
        try:
            status, kind, body = routes.get(self.path, self._unknown)()
        except Refusal as refusal:
            status, body = refusal.status, _json({"error": str(refusal)})
            self.close_connection = True  # the rest of the request has not been read
        except Exception as error:  # noqa: BLE001 - the client gets an answer, whatever it is
            body = _json({"error": f"{type(error).__name__}: {error}"})
            self.close_connection = True
        finally:
            self.server.end(status, time.perf_counter() - start)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", "1")
        if self.server.stopping or self.close_connection:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(body)

    def _unknown(self) -> Answer:
        known = self.path in {"/embed", "/health", "/metrics"}
        wrong = HTTPStatus.METHOD_NOT_ALLOWED if known else HTTPStatus.NOT_FOUND
        raise Refusal(wrong, f"there is no {self.command} {self.path}")

    def _health(self) -> Answer:
        if self.server.stopping:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping")
        facts = {"status": "ok", "cores": self.server.cores, "waiting": len(self.server.batcher)}
        return HTTPStatus.OK, "application/json", _json(facts)

    def _metrics(self) -> Answer:
        return HTTPStatus.OK, "text/plain; version=0.0.4", self.server.metrics().encode()

    def _embed(self) -> Answer:
        texts = self._texts()
        return HTTPStatus.OK, "application/json", _json({"vectors": self.server.embed(texts)})

    def _texts(self) -> list[str]:
        """The body: {"texts": [...]}."""
        limits = self.server.limits
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise Refusal(HTTPStatus.LENGTH_REQUIRED, "the request has no Content-Length")
        if int(length) > limits.body_bytes:
            text = f"the body has {int(length)} bytes; the limit is {limits.body_bytes}"
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        try:
            document = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, f"the body is no JSON: {error}") from None
        texts = document.get("texts") if isinstance(document, dict) else None
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise Refusal(HTTPStatus.BAD_REQUEST, 'the body must be {"texts": ["...", ...]}')
        if not 1 <= len(texts) <= limits.texts:
            text = f"the request has {len(texts)} texts; allowed are 1 to {limits.texts}"
            raise Refusal(HTTPStatus.BAD_REQUEST, text)
        return texts


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()
