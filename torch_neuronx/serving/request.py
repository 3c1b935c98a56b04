"""A request: its tokens, its blocks, and what its owner is told."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from torch_neuronx.serving.blocks import digests

__all__ = ["Event", "Request", "Sampling"]


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen, and when it is the last.

    Attributes:
        max_tokens: Tokens that are generated at most.
        temperature: 0 takes the likeliest token, which is the lowest of equally likely ones.
        top_p: Only the likeliest tokens whose probabilities add up to this are chosen from.
        seed: Of the random choice; a fresh one if None.
        stop_tokens: A generated token of these ends the text, and is its last token.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop_tokens: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: One is outside of its range.
        """
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.temperature <= 2:
            raise ValueError(f"temperature must be between 0 and 2, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")


@dataclass(frozen=True)
class Event:
    """Something that happened to a request.

    Attributes:
        token: A new token, or None if there is only an end.
        finish: Why there are no more: "stop" (a stop token), "length", "cancelled", or "failed".
        error: With "failed", what went wrong.
    """

    token: int | None = None
    finish: str | None = None
    error: BaseException | None = None


@dataclass(eq=False)
class Request:
    """A prompt on its way through the engine, which makes it and alone changes it.

    Attributes:
        prompt: Tokens, at least one.
        sampling: How to go on.
        listener: Told of every event, from the engine's thread; it must not block.
        output: Tokens generated so far.
        finish: As in `Event`, when there will be no more.
        computed: Tokens whose keys and values are in `blocks`.
        shared: Tokens that were in the cache already when the request was admitted, all in all.
        preemptions: How often its blocks were taken away.
        times: Seconds of `time.perf_counter`: arrival, then of each token.
    """

    prompt: Sequence[int]
    sampling: Sampling
    listener: Callable[[Event], None] | None = None
    output: list[int] = field(default_factory=list)
    finish: str | None = None
    error: BaseException | None = None
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    published: int = 0
    shared: int = 0
    preemptions: int = 0
    times: list[float] = field(default_factory=lambda: [time.perf_counter()])
    events: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue)
    _names: list[bytes] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """Prompt and output."""
        return [*self.prompt, *self.output]

    @property
    def length(self) -> int:
        """How many `tokens` there are."""
        return len(self.prompt) + len(self.output)

    @property
    def missing(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return self.length - self.computed

    def span(self, first: int, end: int) -> Sequence[int]:
        """Return the tokens from `first` to before `end`."""
        prompt = len(self.prompt)
        if first >= prompt:
            return self.output[first - prompt : end - prompt]
        return self.prompt[first:end] if end <= prompt else self.tokens[first:end]

    def names(self, size: int) -> list[bytes]:
        """Names of the full blocks of the tokens so far."""
        if len(self._names) < self.length // size:
            self._names = list(digests(self.tokens, size))
        return self._names

    def tell(self, event: Event) -> None:
        """Note an event and pass it on."""
        if event.token is not None:
            self.output.append(event.token)
            self.times.append(time.perf_counter())
        if event.finish is not None:
            self.finish, self.error = event.finish, event.error
        self.events.put(event)
        if self.listener is not None:
            self.listener(event)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the tokens as they come, waiting for them.

        Raises:
            RuntimeError: The request failed.
        """
        while True:
            event = self.events.get()
            if event.token is not None:
                yield event.token
            if event.error is not None:
                raise RuntimeError(f"the request failed: {event.error}") from event.error
            if event.finish is not None:
                return

    def result(self) -> list[int]:
        """Wait for the end and return all tokens generated.

        Raises:
            RuntimeError: The request failed.
        """
        for _ in self:
            pass
        return self.output
