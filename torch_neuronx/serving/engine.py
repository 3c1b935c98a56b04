"""The loop: requests in, tokens out."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Self

from transformers import PreTrainedModel

from torch_neuronx.serving.blocks import BlockManager
from torch_neuronx.serving.request import Event, Request, Sampling
from torch_neuronx.serving.runner import Runner
from torch_neuronx.serving.sampling import Sampler
from torch_neuronx.serving.scheduler import Part, Scheduler

__all__ = ["Engine", "FullError", "Options", "Statistics", "seconds_per_token"]


@dataclass(frozen=True)
class Options:
    """How much the engine does at a time.

    Attributes:
        blocks: Of the cache, which is allocated once: the bound of what requests take.
        block_size: Tokens of a block.
        requests: That run at a time; others wait.
        step_tokens: Of a step: of all that generate, and of parts of prompts.
        queue: Requests that wait at most.
        share_prefixes: Whether requests use the blocks of others that begin alike.
        compiled: Whether steps in which every request has one token are compiled: a program for 1,
            2, 4, ... requests, when it is first needed or by `Engine.compile`.
    """

    blocks: int = 512
    block_size: int = 16
    requests: int = 16
    step_tokens: int = 256
    queue: int = 1024
    share_prefixes: bool = True
    compiled: bool = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: One is too small.
        """
        if min(self.blocks, self.block_size, self.requests, self.queue) < 1:
            raise ValueError(f"blocks, block_size, requests and queue must be positive: {self}")
        if self.step_tokens < self.requests:
            raise ValueError(
                f"a step of {self.step_tokens} tokens has no room for the next token of each of "
                f"{self.requests} requests"
            )


@dataclass
class Statistics:
    """Counters since the start.

    Attributes:
        steps: Calls of the model.
        computed: Tokens whose keys and values were computed, those computed again included.
        shared: Tokens that were in the cache already.
        generated: Tokens.
        preemptions: How often a request gave up its blocks.
        finished: Requests by their end: "stop", "length", "cancelled", "failed".
    """

    steps: int = 0
    computed: int = 0
    shared: int = 0
    generated: int = 0
    preemptions: int = 0
    finished: Counter[str] = field(default_factory=Counter)


class FullError(RuntimeError):
    """As many requests wait as may, or the engine is stopping: try again later."""


class Engine:
    """Generates for many requests at a time.

    Requests may be submitted and cancelled from any thread. Either `start` a thread that steps
    while there is work, or call `step` yourself.

    Attributes:
        blocks: Who owns which block.
        statistics: Counters.
        options: As given.
    """

    def __init__(self, model: PreTrainedModel, options: Options | None = None) -> None:
        """Allocate the cache. The model is the engine's until `close`.

        Raises:
            ValueError: The model cannot be served, see `Runner`.
        """
        self.options = options or Options()
        self.blocks = BlockManager(self.options.blocks, self.options.block_size)
        self.statistics = Statistics()
        self._scheduler = Scheduler(
            self.blocks, requests=self.options.requests, tokens=self.options.step_tokens,
            share=self.options.share_prefixes,
        )  # fmt: skip
        config = model.config.get_text_config()
        self._vocabulary: int = config.vocab_size
        most: int | None = getattr(config, "max_position_embeddings", None)
        room = self.options.blocks * self.options.block_size
        self.longest = room if most is None else min(most, room)
        self._runner = Runner(
            model.eval(), self.options.blocks, self.options.block_size,
            compiled=(self.options.requests, self.longest) if self.options.compiled else None,
        )  # fmt: skip
        self._sampler = Sampler()
        self._changed = threading.Condition()
        self._arrived: list[Request] = []
        self._cancelled: list[tuple[Request, str]] = []
        self._open = True
        self._abandoned = False
        self._thread: threading.Thread | None = None

    # ---- for callers ----------------------------------------------------------------------------

    def submit(
        self,
        prompt: Iterable[int],
        sampling: Sampling | None = None,
        listener: Callable[[Event], None] | None = None,
    ) -> Request:
        """Queue a prompt, and return the request: iterate over it for its tokens.

        Args:
            prompt: Tokens, at least one.
            sampling: Greedy, 16 tokens, if None.
            listener: Called with every event from the engine's thread; must not block.

        Raises:
            ValueError: The prompt is empty, would not fit, or has a token that is not in the
                vocabulary.
            FullError: As many requests wait as may, or the engine is stopping.
        """
        request = Request(tuple(prompt), sampling or Sampling(), listener)
        self._check(request)
        with self._changed:
            if not self._open:
                raise FullError("the engine is stopping")
            if self.waiting >= self.options.queue:
                raise FullError(f"{self.options.queue} requests are waiting")
            self._arrived.append(request)
            self._changed.notify_all()
        return request

    def cancel(self, request: Request, finish: str = "cancelled") -> None:
        """End a request, if it has not ended; its blocks are freed before the next step.

        Args:
            request: Of this engine.
            finish: What it is told, and counted as.
        """
        with self._changed:
            self._cancelled.append((request, finish))
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Requests that do not run yet."""
        return len(self._arrived) + len(self._scheduler.waiting)

    @property
    def running(self) -> int:
        """Requests that run."""
        return len(self._scheduler.running)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache."""
        return self._runner.nbytes

    def compile(self) -> Iterator[int]:
        """Compile the steps before they are needed, if `Options.compiled` says that they are.

        To be called before `start`: the step is run, on tokens of nobody.

        Yields:
            For how many requests, after each.
        """
        # In a thread as the engine's is: a program is for the state of its thread, of which
        # `torch.set_default_device` is a part.
        with ThreadPoolExecutor(1) as thread:
            for size in self._runner.sizes:
                thread.submit(self._runner.compile, size).result()
                yield size

    # ---- the loop -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        assert self._thread is None
        self._thread = threading.Thread(target=self._loop, name="torch_neuronx.serving")
        self._thread.start()

    def close(self, *, drain: bool = True) -> None:
        """Take no more requests, finish those that there are, and give the model back.

        Args:
            drain: Finish them; otherwise they are cancelled.
        """
        with self._changed:
            self._open = False
            self._abandoned = not drain
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        while self.step():
            pass
        self._runner.close()

    def __enter__(self) -> Self:
        """Start the thread."""
        self.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Finish what there is, or after an error cancel it."""
        self.close(drain=kind is None)

    def step(self) -> bool:
        """Compute one step; False if there was nothing to do."""
        self._take_news()
        parts = self._scheduler.next_step()
        counters = self._scheduler
        self.statistics.preemptions, self.statistics.shared = counters.preemptions, counters.shared
        if not parts:
            return False
        ending = [part.request for part in parts if part.last]
        try:
            logits = self._runner.run(parts)
            tokens = self._sampler.choose(ending, logits) if ending else []
        except Exception as error:  # noqa: BLE001 - each of the step's owners is told
            for part in parts:
                self._end(part.request, Event(finish="failed", error=error))
            return True
        self._note(parts)
        for request, token in zip(ending, tokens, strict=True):
            self._give(request, token)
        return True

    def _loop(self) -> None:
        try:
            while True:
                if self.step():
                    continue
                with self._changed:
                    if self._arrived or self._cancelled:
                        continue
                    if not self._open:
                        return
                    self._changed.wait()
        except BaseException as error:
            # A mistake of the engine's own: nobody waits for what will not come.
            with self._changed:
                self._open = False
            self._take_news()
            for request in [*self._scheduler.waiting, *self._scheduler.running]:
                self._end(request, Event(finish="failed", error=error))
            raise

    def _take_news(self) -> None:
        """Take in what other threads asked for."""
        with self._changed:
            arrived, self._arrived = self._arrived, []
            self._scheduler.waiting.extend(arrived)
            cancelled, self._cancelled = self._cancelled, []
            if self._abandoned:
                left = [*self._scheduler.waiting, *self._scheduler.running]
                cancelled += [(request, "cancelled") for request in left]
        for request, finish in cancelled:
            if request.finish is None:
                self._end(request, Event(finish=finish))

    def _note(self, parts: Sequence[Part]) -> None:
        self.statistics.steps += 1
        for part in parts:
            self.statistics.computed += part.count
            self._scheduler.computed(part)

    def _give(self, request: Request, token: int) -> None:
        """Give a request its next token, which may be its last."""
        self.statistics.generated += 1
        if token in request.sampling.stop_tokens:
            finish: str | None = "stop"
        elif len(request.output) + 1 == request.sampling.max_tokens:
            finish = "length"
        else:
            finish = None
        event = Event(token, finish)
        if finish is not None:
            self._end(request, event)
            return
        self._tell(request, event)

    def _tell(self, request: Request, event: Event) -> None:
        try:
            request.tell(event)
        except Exception as error:  # noqa: BLE001 - a listener's error ends its request only
            request.listener = None
            if request.finish is None:
                self._end(request, Event(finish="failed", error=error))

    def _end(self, request: Request, event: Event) -> None:
        """End a request: free what it has, then tell."""
        self._scheduler.remove(request)
        self._sampler.forget(request)
        assert event.finish is not None
        self.statistics.finished[event.finish] += 1
        self._tell(request, event)

    def _check(self, request: Request) -> None:
        prompt, longest = request.prompt, self.longest
        if not prompt:
            raise ValueError("the prompt has no tokens")
        bad = [t for t in prompt if not 0 <= t < self._vocabulary]
        if bad:
            raise ValueError(f"token {bad[0]} is not in the vocabulary of {self._vocabulary}")
        if len(prompt) + request.sampling.max_tokens > longest:
            raise ValueError(
                f"{len(prompt)} tokens and {request.sampling.max_tokens} new ones are more than "
                f"the {longest} that fit"
            )


def seconds_per_token(request: Request) -> tuple[float, float]:
    """Return a request's time to its first token and its mean time between two tokens."""
    arrived, first, *_ = request.times
    rest = request.times[-1] - first
    return first - arrived, rest / max(len(request.times) - 2, 1)
