"""HTTP in and out: POST /embed, GET /health, GET /metrics; an ASGI application under uvicorn."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from examples.serving.batcher import Batcher, FullError
from examples.serving.embedder import ROWS, Embedder, TooLongError
from torch_neuronx.serving.server.protocol import ImpatientProtocol

Tokens = list[int]
Vector = list[float]
# Of a body that is too large this much is still read, so that the client comes to read the answer.
_DRAINED_BYTES = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What the server accepts, and how it batches."""

    body_bytes: int = 1 << 16
    texts: int = 32  # in one request
    queue: int = 256  # texts that wait
    delay: float = 0.005  # seconds that the first text of a batch waits for others
    timeout: float = 30.0  # seconds for a request to arrive, for its answer, and between requests
    connections: int = 1000  # at the same time; more are told to come back


class Refusal(HTTPException):
    """An answer that is no result; the connection is closed after it."""

    def __init__(self, status: HTTPStatus, text: str, *, later: bool = False) -> None:
        headers = {"Connection": "close"} | ({"Retry-After": "1"} if later else {})
        super().__init__(status, text, headers)


class Server:
    """Serves an embedder until `stop`."""

    def __init__(
        self, address: tuple[str, int], embedder: Embedder, cores: int, limits: Limits
    ) -> None:
        """Take the address; connections wait until `run`."""
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
        self._socket = socket.create_server(address, backlog=128)
        self.server_port: int = self._socket.getsockname()[1]
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._counted,
                interface="asgi3",
                http=ImpatientProtocol,
                ws="none",
                lifespan="off",
                access_log=False,  # a line for each would cost more than the model
                log_level="error",
                timeout_keep_alive=max(1, round(limits.timeout)),
                timeout_graceful_shutdown=max(1, round(limits.timeout)),
                limit_concurrency=limits.connections,
                server_header=False,
                proxy_headers=False,
            )
        )
        routes = [
            Route("/embed", self._embed, methods=["POST"]),
            Route("/health", self._health, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]
        handlers: dict[Any, Any] = {HTTPException: self._refused, Exception: self._failed}
        self._app = Starlette(routes=routes, exception_handlers=handlers)

    def run(self) -> None:
        """Serve until `stop`; then finish what has been accepted."""
        # uvicorn takes signals over if it runs in the main thread; they are the caller's.
        thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        thread.start()
        thread.join()
        self.stopping = True
        self.batcher.close()
        self._socket.close()

    def stop(self) -> None:
        """Have `run` return; for other threads and signal handlers."""
        self.stopping = True
        self._server.should_exit = True
        # Batches that wait for more leave now.
        threading.Thread(target=self.batcher.close).start()

    async def _counted(self, scope: Any, receive: Any, send: Any) -> None:
        """The application; an answer counts when it has been written."""
        start, status = time.perf_counter(), int(HTTPStatus.INTERNAL_SERVER_ERROR)

        async def watched(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.stopping:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            self.statuses[status] += 1
            self.seconds.append(time.perf_counter() - start)

    async def _refused(self, request: Request, refusal: HTTPException) -> Response:
        text, headers = refusal.detail, dict(refusal.headers or {})
        if not isinstance(refusal, Refusal):
            text = f"there is no {request.method} {request.url.path}"
            headers["Connection"] = "close"
        return JSONResponse({"error": text}, refusal.status_code, headers)

    async def _failed(self, _: Request, error: Exception) -> Response:
        text = f"{type(error).__name__}: {error}"
        return JSONResponse({"error": text}, 500, {"Connection": "close"})

    async def _health(self, request: Request) -> Response:
        await self._body(request)
        if self.stopping:
            text = "the server is stopping"
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, text, later=True)
        facts = {"status": "ok", "cores": self.cores, "waiting": len(self.batcher)}
        return JSONResponse(facts)

    async def _metrics(self, request: Request) -> Response:
        await self._body(request)
        return PlainTextResponse(self.metrics(), media_type="text/plain; version=0.0.4")

    async def _embed(self, request: Request) -> Response:
        if "content-length" not in request.headers:
            raise Refusal(HTTPStatus.LENGTH_REQUIRED, "the request has no Content-Length")
        texts = self._texts(await self._body(request))
        return JSONResponse({"vectors": await self.embed(texts)})

    async def _body(self, request: Request) -> bytes:
        """All of a request's body.

        Raises:
            Refusal: It is too large, too slow, or the headers contradict each other about it.
        """
        if {"content-length", "transfer-encoding"} <= set(request.headers):
            text = "the request has both Content-Length and Transfer-Encoding"
            raise Refusal(HTTPStatus.BAD_REQUEST, text)
        limit, size, parts = self.limits.body_bytes, 0, []
        try:
            async with asyncio.timeout(self.limits.timeout):
                async for part in request.stream():
                    size += len(part)
                    if size <= limit:
                        parts.append(part)
                    elif size > max(limit, _DRAINED_BYTES):
                        break
        except TimeoutError:
            text = f"the body has not arrived in {self.limits.timeout} s"
            raise Refusal(HTTPStatus.REQUEST_TIMEOUT, text) from None
        if size > limit:
            found = request.headers.get("content-length", f"more than {limit}")
            text = f"the body has {found} bytes; the limit is {limit}"
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        return b"".join(parts)

    def _texts(self, body: bytes) -> list[str]:
        """The texts in a body: {"texts": [...]}."""
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, f"the body is no JSON: {error}") from None
        texts = document.get("texts") if isinstance(document, dict) else None
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise Refusal(HTTPStatus.BAD_REQUEST, 'the body must be {"texts": ["...", ...]}')
        if not 1 <= len(texts) <= self.limits.texts:
            text = f"the request has {len(texts)} texts; allowed are 1 to {self.limits.texts}"
            raise Refusal(HTTPStatus.BAD_REQUEST, text)
        for number, text in enumerate(texts):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                reason = f"text {number} is no Unicode: half a character at {error.start}"
                raise Refusal(HTTPStatus.BAD_REQUEST, reason) from None
        return texts

    async def embed(self, texts: list[str]) -> list[Vector]:
        """Vectors of texts, which go to batches one by one.

        Raises:
            Refusal: A text is too long, or there is no room, or no answer in time.
        """
        try:
            tokens = await asyncio.to_thread(lambda: [self.embedder.tokens(t) for t in texts])
        except TooLongError as error:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error)) from None
        futures: list[asyncio.Future[Vector]] = []
        try:
            for item in tokens:
                futures.append(asyncio.wrap_future(self.batcher.submit(item)))  # noqa: PERF401
            async with asyncio.timeout(self.limits.timeout):
                return await asyncio.gather(*futures)
        except FullError as error:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(error), later=True) from None
        except TimeoutError:
            text = f"no answer in {self.limits.timeout} s"
            raise Refusal(HTTPStatus.GATEWAY_TIMEOUT, text) from None
        finally:
            for future in futures:  # nobody waits for these any more
                future.cancel()

    def metrics(self) -> str:
        """Counters in the text format of Prometheus."""
        seconds = sorted(self.seconds)
        lines = ["# TYPE requests_total counter"]
        lines += [f'requests_total{{status="{k}"}} {v}' for k, v in sorted(self.statuses.items())]
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
