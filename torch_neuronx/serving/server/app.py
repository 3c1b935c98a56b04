"""The application: routes, streams, and clients that go away."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from torch_neuronx.serving.engine import Engine, FullError, seconds_per_token
from torch_neuronx.serving.request import Event, Request
from torch_neuronx.serving.server import documents
from torch_neuronx.serving.server.documents import Completion, RefusedError
from torch_neuronx.serving.server.metrics import Metrics
from torch_neuronx.serving.server.text import TextStream, Tokenizer

__all__ = ["Application", "Limits"]

_CLIENT_GONE = 499
#: Of a body that is too large, so many times what is accepted is read and dropped: who still writes
#: when a connection is closed finds a broken pipe and never reads the answer.
_READ_ON = 4
_Parse = Callable[[Any, Tokenizer, str, int], Completion]


@dataclass(frozen=True)
class Limits:
    """What the server accepts.

    Attributes:
        body_bytes: Of a request.
        seconds: For a request's body to arrive, and between requests of a connection.
        connections: At the same time.
        drain_seconds: For accepted requests to end after SIGTERM.
    """

    body_bytes: int = 4 << 20
    seconds: int = 30
    connections: int = 1000
    drain_seconds: int = 300


class _Answer:
    """The requests of one completion, and their events as they come."""

    def __init__(self, engine: Engine, asked: Completion, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self.texts = [TextStream(tokenizer, asked.stop) for _ in asked.prompts]
        self.requests: list[Request] = []
        loop = asyncio.get_running_loop()
        try:
            for index, prompt in enumerate(asked.prompts):

                def listen(event: Event, index: int = index) -> None:
                    loop.call_soon_threadsafe(self._events.put_nowait, (index, event))

                self.requests.append(engine.submit(prompt, asked.sampling, listen))
        except Exception:
            self.cancel()
            raise

    def cancel(self) -> None:
        """End what has not ended."""
        for request in self.requests:
            self._engine.cancel(request)

    async def parts(self) -> AsyncIterator[tuple[int, str, str | None]]:
        """Iterate over (index, text, why it ended) until all have ended.

        Raises:
            RuntimeError: A request failed.
        """
        left = len(self.requests)
        ended = [False] * left
        while left:
            index, event = await self._events.get()
            if ended[index]:
                continue  # it had gone on behind its stop string
            if event.error is not None:
                raise RuntimeError(f"the request failed: {event.error}") from event.error
            text = self.texts[index]
            new = "" if event.token is None else text.add(event.token)
            finish = event.finish
            if finish is not None:
                new += text.end()
            if text.stopped:
                finish = "stop"
                self._engine.cancel(self.requests[index], finish="stop")
            if finish is not None:
                ended[index] = True
                left -= 1
            yield index, new, finish


class Application:
    """Routes over an engine.

    Attributes:
        asgi: What uvicorn runs.
        stopping: Whether new requests are refused.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, model: str, limits: Limits) -> None:
        """Make the routes; `model` is the name that clients ask for."""
        self._engine, self._tokenizer, self._model = engine, tokenizer, model
        self._limits = limits
        self._metrics = Metrics(engine)
        self._created = int(time.time())
        self.stopping = False
        handlers: dict[Any, Any] = {
            HTTPException: self._http_error,
            RefusedError: self._refused,
            Exception: self._failed,
        }
        self.asgi = Starlette(
            routes=[
                Route("/v1/completions", self._completions, methods=["POST"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/models/{name:path}", self._one_model, methods=["GET"]),
                Route("/health", self._health, methods=["GET"]),
                Route("/metrics", self._metrics_text, methods=["GET"]),
            ],
            exception_handlers=handlers,
        )

    async def _completions(self, http: HttpRequest) -> Response:
        return await self._answer(http, documents.completion)

    async def _chat(self, http: HttpRequest) -> Response:
        return await self._answer(http, documents.chat)

    async def _answer(self, http: HttpRequest, parse: _Parse) -> Response:
        body = await self._body(http)
        # Tokenizers may take long for long texts; other clients go on meanwhile.
        asked = await asyncio.to_thread(
            parse, body, self._tokenizer, self._model, self._engine.longest
        )
        asked.model = self._model
        try:
            answer = _Answer(self._engine, asked, self._tokenizer)
        except ValueError as error:
            raise RefusedError(str(error)) from None
        except FullError as error:
            raise RefusedError(str(error), status=HTTPStatus.SERVICE_UNAVAILABLE) from None
        if asked.stream:
            headers = {"Cache-Control": "no-cache"}
            self._count(http, HTTPStatus.OK)
            return StreamingResponse(
                self._stream(answer, asked), media_type="text/event-stream", headers=headers
            )
        gone = asyncio.create_task(_disconnected(http))
        work = asyncio.create_task(self._whole(answer, asked))
        try:
            await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                # Nobody reads this; the number is what proxies write for it.
                self._count(http, _CLIENT_GONE)
                return Response(status_code=_CLIENT_GONE)
            document = work.result()
        finally:
            gone.cancel()
            work.cancel()
            answer.cancel()
        self._count(http, HTTPStatus.OK)
        return JSONResponse(document)

    async def _whole(self, answer: _Answer, asked: Completion) -> dict[str, Any]:
        texts = [""] * len(asked.prompts)
        ends = [""] * len(asked.prompts)
        async for index, text, finish in answer.parts():
            texts[index] += text
            ends[index] = finish or ""
        return asked.whole(texts, ends, self._ended(answer))

    async def _stream(self, answer: _Answer, asked: Completion) -> AsyncIterator[str]:
        """Iterate over server-sent events. Starlette ends it when the client is gone."""
        try:
            if asked.is_chat:
                yield _event(asked.part([asked.choice_part(0, "", None, first=True)]))
            async for index, text, finish in answer.parts():
                if text or finish:
                    yield _event(asked.part([asked.choice_part(index, text or None, finish)]))
            tokens = self._ended(answer)
            if asked.usage:
                yield _event(asked.part([], asked.tokens(tokens)))
            yield "data: [DONE]\n\n"
        except RuntimeError as error:
            # The status is out already: clients take an event with an error as one.
            yield _event(documents.error_document(500, str(error)))
        finally:
            answer.cancel()

    def _ended(self, answer: _Answer) -> int:
        """Note an answer's times, and return how many tokens it has."""
        for request in answer.requests:
            first, rest = seconds_per_token(request)
            self._metrics.first_token.observe(first)
            if len(request.output) > 1:
                self._metrics.next_token.observe(rest)
        return sum(len(request.output) for request in answer.requests)

    async def _body(self, http: HttpRequest) -> Any:
        if self.stopping:
            raise RefusedError("the server is stopping", status=HTTPStatus.SERVICE_UNAVAILABLE)
        parts, size, limit = [], 0, self._limits.body_bytes
        try:
            async with asyncio.timeout(self._limits.seconds):
                async for part in http.stream():
                    size += len(part)
                    if size <= limit:
                        parts.append(part)
                    elif size > _READ_ON * limit:
                        break
        except TimeoutError:
            if size <= limit:
                raise RefusedError(
                    f"the body has not arrived in {self._limits.seconds} s",
                    status=HTTPStatus.REQUEST_TIMEOUT,
                ) from None
        if size > limit:
            raise RefusedError(
                f"the body has more than {limit} bytes", status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            )
        try:
            return json.loads(b"".join(parts))
        except (ValueError, RecursionError) as error:
            raise RefusedError(f"the body is no JSON: {error}") from None

    async def _models(self, http: HttpRequest) -> Response:
        self._count(http, HTTPStatus.OK)
        return JSONResponse({"object": "list", "data": [self._model_document()]})

    async def _one_model(self, http: HttpRequest) -> Response:
        name = http.path_params["name"]
        if name != self._model:
            raise RefusedError(
                f"the model {name!r} does not exist; this server has {self._model!r}",
                status=HTTPStatus.NOT_FOUND, param="model", code="model_not_found",
            )  # fmt: skip
        self._count(http, HTTPStatus.OK)
        return JSONResponse(self._model_document())

    def _model_document(self) -> dict[str, Any]:
        return {
            "id": self._model,
            "object": "model",
            "created": self._created,
            "owned_by": "torch_neuronx",
            "max_model_len": self._engine.longest,
        }

    async def _health(self, http: HttpRequest) -> Response:
        status = HTTPStatus.SERVICE_UNAVAILABLE if self.stopping else HTTPStatus.OK
        self._count(http, status)
        return JSONResponse({"status": "stopping" if self.stopping else "ok"}, status)

    async def _metrics_text(self, http: HttpRequest) -> Response:
        self._count(http, HTTPStatus.OK)
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _refused(self, http: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, RefusedError)
        self._count(http, error.status)
        later = error.status == HTTPStatus.SERVICE_UNAVAILABLE
        # What is left of the body is not read.
        headers = {"Connection": "close"} | ({"Retry-After": "1"} if later else {})
        return JSONResponse(error.document, error.status, headers)

    async def _http_error(self, http: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        self._count(http, error.status_code)
        text = f"{http.method} {http.url.path}: {error.detail}"
        document = documents.error_document(error.status_code, text)
        return JSONResponse(document, error.status_code, error.headers)

    async def _failed(self, http: HttpRequest, error: Exception) -> Response:
        self._count(http, HTTPStatus.INTERNAL_SERVER_ERROR)
        return JSONResponse(documents.error_document(500, str(error)), 500)

    def _count(self, http: HttpRequest, status: int) -> None:
        # Paths that do not exist are anybody's to make up: they are one.
        known = {r.path for r in self.asgi.routes if isinstance(r, Route)}
        path = http.url.path if http.url.path in known else "other"
        self._metrics.answers.labels(path, str(int(status))).inc()


async def _disconnected(http: HttpRequest) -> None:
    """Return when the client has closed the connection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _event(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document, separators=(',', ':'))}\n\n"
