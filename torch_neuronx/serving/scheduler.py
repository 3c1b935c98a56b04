"""Which tokens of which requests the next step computes.

Every step takes the next token of all running requests that have their prompt behind them, then
parts of prompts, in the order of arrival, as far as the step's tokens reach: a long prompt is
computed in chunks, between which the others go on. When blocks run out, the youngest request gives
up its own and waits at the head of the queue; what it has generated is kept, and later computed
again as if it were part of its prompt. The oldest request never gives up, so there is always
progress: the engine takes no request that would not fit alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from torch_neuronx.serving.blocks import BlockManager
from torch_neuronx.serving.request import Request

__all__ = ["Part", "Scheduler"]


@dataclass(frozen=True)
class Part:
    """Tokens of a request that a step computes: those from `request.computed` on.

    Attributes:
        request: Whose.
        count: How many.
        last: Whether the request has no others, so that its next token follows.
    """

    request: Request
    count: int
    last: bool


class Scheduler:
    """The queue of requests, and those that run.

    Attributes:
        waiting: In the order in which they will run.
        running: In the order of arrival. These own blocks.
        preemptions: How often a request gave up its blocks.
        shared: Tokens that did not have to be computed, since the cache had them.
    """

    def __init__(self, blocks: BlockManager, *, requests: int, tokens: int, share: bool) -> None:
        """Make an empty one.

        Args:
            blocks: Of the cache.
            requests: That run at a time.
            tokens: Of a step.
            share: Whether requests use the blocks of others with the same prefix.
        """
        self.blocks = blocks
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preemptions = 0
        self.shared = 0
        self._requests, self._tokens, self._share = requests, tokens, share

    def next_step(self) -> list[Part]:
        """Return the parts of the next step, whose blocks are allocated; [] if all is done."""
        before = self.preemptions
        counts: dict[int, Part] = {}
        left = self._tokens
        # One missing token is the common case: the next one of a text.
        for request in sorted(self.running, key=lambda r: r.missing > 1):
            count = min(request.missing, left)
            if count == 0 or request not in self.running:
                continue
            if not self._room(request, count, counts):
                continue
            counts[id(request)] = Part(request, count, count == request.missing)
            left = self._tokens - sum(part.count for part in counts.values())
        # Blocks that were just taken from one request are not for a new one.
        while self.waiting and left and self.preemptions == before:
            if len(self.running) == self._requests:
                break
            part = self._admit(self.waiting[0], left)
            if part is None:
                break
            self.waiting.popleft()
            self.running.append(part.request)
            counts[id(part.request)] = part
            left -= part.count
        return list(counts.values())

    def computed(self, part: Part) -> None:
        """Note that keys and values of a part are in the cache."""
        request = part.request
        request.computed += part.count
        if not self._share:
            return
        names = request.names(self.blocks.size)
        for i in range(request.published, request.computed // self.blocks.size):
            self.blocks.publish(request.blocks[i], names[i])
            request.published = i + 1

    def remove(self, request: Request) -> None:
        """Forget a request, wherever it is, and free its blocks."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._release(request)

    def _release(self, request: Request) -> None:
        self.blocks.release(request.blocks)
        request.blocks, request.computed, request.published = [], 0, 0

    def _room(self, request: Request, count: int, counts: dict[int, Part]) -> bool:
        """Allocate what `count` more tokens need; False if the request had to give up itself."""
        while True:
            needed = self.blocks.blocks_for(request.computed + count) - len(request.blocks)
            more = self.blocks.allocate(max(needed, 0))
            if more is not None:
                request.blocks += more
                return True
            youngest = self.running.pop()
            counts.pop(id(youngest), None)
            self._release(youngest)
            youngest.preemptions += 1
            self.preemptions += 1
            self.waiting.appendleft(youngest)
            if youngest is request:
                return False

    def _admit(self, request: Request, left: int) -> Part | None:
        """Give a waiting request blocks for its first part; None if there are not enough."""
        size = self.blocks.size
        if self._share:
            # The last token is computed in any case: what follows it comes from there.
            names = request.names(size)[: (request.length - 1) // size]
            request.blocks = self.blocks.share(names)
            request.computed = len(request.blocks) * size
            request.published = len(request.blocks)
        count = min(request.missing, left)
        needed = self.blocks.blocks_for(request.computed + count) - len(request.blocks)
        more = self.blocks.allocate(needed)
        if more is None:
            self._release(request)
            return None
        self.shared += request.computed
        request.shared += request.computed
        request.blocks = request.blocks + more
        return Part(request, count, count == request.missing)
