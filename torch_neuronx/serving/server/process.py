"""The server's life: address, signals, the orderly end."""

from __future__ import annotations

import signal
import socket
import threading

import uvicorn

from torch_neuronx.serving.engine import Engine
from torch_neuronx.serving.server.app import Application, Limits
from torch_neuronx.serving.server.protocol import ImpatientProtocol
from torch_neuronx.serving.server.text import Tokenizer

__all__ = ["Server"]


class Server:
    """Serves an engine until `stop`.

    Attributes:
        port: That it listens on.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        model: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits | None = None,
    ) -> None:
        """Take the address; connections wait until `run`.

        Args:
            engine: Not started; closed by `run`.
            tokenizer: Of the model.
            model: The name that clients ask for.
            host: To listen on.
            port: 0 takes any that is free.
            limits: Of what is accepted.

        Raises:
            OSError: The address is taken, or not of this machine.
        """
        limits = limits or Limits()
        self._engine = engine
        self._app = Application(engine, tokenizer, model, limits)
        self._socket = socket.create_server((host, port), backlog=128)
        self.port: int = self._socket.getsockname()[1]
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                self._app.asgi,
                interface="asgi3",
                http=ImpatientProtocol,
                ws="none",
                lifespan="off",
                access_log=False,
                log_level="error",
                timeout_keep_alive=limits.seconds,
                timeout_graceful_shutdown=limits.drain_seconds,
                limit_concurrency=limits.connections,
                server_header=False,
                proxy_headers=False,
            )
        )

    def run(self) -> None:
        """Serve until `stop`; then finish what has been accepted, and close the engine."""
        self._engine.start()
        # uvicorn takes signals over if it runs in the main thread; they are the caller's.
        thread = threading.Thread(target=self._uvicorn.run, kwargs={"sockets": [self._socket]})
        thread.start()
        thread.join()
        self._app.stopping = True
        # Whoever still waits has had its time: uvicorn has closed its connection.
        self._engine.close(drain=False)
        self._socket.close()

    def stop(self) -> None:
        """Have `run` return; for other threads and signal handlers."""
        self._app.stopping = True
        self._uvicorn.should_exit = True

    def stop_on_signals(self) -> None:
        """Stop on SIGINT and SIGTERM; on a second one, without waiting for requests."""

        def handle(*_: object) -> None:
            self._uvicorn.force_exit = self._uvicorn.should_exit
            self.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, handle)
