"""Scripts of sends and receives between ranks, what they must do, and a rank that executes them.

A script is drawn as one sequence of events, each of which some rank executes. A wait comes after
what it waits for, so ranks that execute their parts of the sequence in order can always finish, as
long as no message waits for another one that it doesn't have to.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from multiprocessing.connection import Client
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import strategies as st

DTYPES = (torch.float32, torch.bfloat16, torch.uint8, torch.int64)
#: Elements: nothing, less and more than travels in a ring's entry, than is copied at once.
SIZES = (0, 1, 7, 100, 224, 225, 897, 5_000, 70_000, 300_000)
#: Tags from 100 on are received from any source, the others from a named one.
TAGS = (0, 1, 2, 100, 101)
ANY = 100


@dataclass(frozen=True)
class Message:
    number: int
    source: int
    destination: int
    tag: int
    elements: int
    dtype: torch.dtype

    def content(self) -> torch.Tensor:
        """Tells messages apart, and their parts: (elements,) of the dtype, on the host."""
        start = self.number * 17
        return ((torch.arange(self.elements) + start) % 113).to(self.dtype)


@dataclass(frozen=True)
class Event:
    rank: int
    kind: str  # "send", "receive", "wait", "reduce"
    number: int  # of the message; of a wait: of the rank's event; of a reduction


@dataclass
class Script:
    ranks: int
    messages: list[Message] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


def scripts(ranks: int) -> st.SearchStrategy[Script]:
    """Sequences of sends, receives, waits and reductions of `ranks` ranks."""
    return st.integers(0, 2**32 - 1).map(lambda seed: script_of(ranks, random.Random(seed)))  # noqa: S311


def script_of(ranks: int, rng: random.Random) -> Script:
    script = Script(ranks)
    shapes: dict[tuple[int, int], tuple[int, torch.dtype]] = {}
    for number in range(rng.randint(1, 60)):
        source, destination = rng.sample(range(ranks), 2)
        tag, size, dtype = rng.choice(TAGS), rng.choice(SIZES), rng.choice(DTYPES)
        if tag >= ANY:  # whoever comes first must fit
            size, dtype = shapes.setdefault((destination, tag), (size, dtype))
        script.messages.append(Message(number, source, destination, tag, size, dtype))
    order = [Event(m.source, "send", m.number) for m in script.messages]
    order += [Event(m.destination, "receive", m.number) for m in script.messages]
    rng.shuffle(order)
    order = in_queue_order(script, order)
    reductions = sorted(
        (rng.randint(0, len(order)) for _ in range(rng.randint(0, 3))), reverse=True
    )
    for at in reductions:  # from the end, so that none comes into the midst of another
        order[at:at] = [Event(r, "reduce", at) for r in range(ranks)]
    script.events = with_waits(rng, script, order)
    return script


def queue_of(message: Message) -> tuple[int, int, int]:
    source = -1 if message.tag >= ANY else message.source
    return source, message.destination, message.tag


def in_queue_order(script: Script, order: list[Event]) -> list[Event]:
    """The same, such that the k-th send of a pair and tag meets a receive of its size."""
    numbers: dict[Any, list[int]] = {}
    for message in reversed(script.messages):
        numbers.setdefault(queue_of(message), []).append(message.number)
    left = {(kind, q): list(n) for kind in ("send", "receive") for q, n in numbers.items()}
    result = []
    for event in order:
        queue = queue_of(script.messages[event.number])
        if queue[0] >= 0:
            event = Event(event.rank, event.kind, left[event.kind, queue].pop())  # noqa: PLW2901
        result.append(event)
    return result


def with_waits(rng: random.Random, script: Script, order: list[Event]) -> list[Event]:
    """Put waits into the sequence, where what they wait for has been posted before."""
    events: list[Event] = []
    sent: dict[Any, list[int]] = {}  # indices of events, by queue
    received: dict[Any, list[int]] = {}
    ready: list[int] = []
    for event in order:
        events.append(event)
        if event.kind in ("send", "receive"):
            queue = queue_of(script.messages[event.number])
            mine, theirs = (sent, received) if event.kind == "send" else (received, sent)
            mine.setdefault(queue, []).append(len(events) - 1)
            k = len(mine[queue]) - 1
            if k < len(theirs.get(queue, [])):
                pair = [mine[queue][k], theirs[queue][k]]
                # Which of several senders a receive from any takes is not known here.
                ready += [i for i in pair if queue[0] >= 0 or events[i].kind == "receive"]
        while ready and rng.random() < 0.5:
            at = ready.pop(rng.randrange(len(ready)))
            events.append(Event(events[at].rank, "wait", at))
    return events


def execute(script: Script, rank: int) -> list[str]:
    """Run one rank's part of a script; says what was wrong."""
    device = torch.device("neuron")
    works: dict[int, Any] = {}
    arrived: dict[int, torch.Tensor] = {}  # by event, in the order of posting
    reductions: list[tuple[Any, torch.Tensor]] = []
    sent = []
    for index, event in enumerate(script.events):
        if event.rank != rank:
            continue
        if event.kind == "wait":
            works[event.number].wait()
        elif event.kind == "reduce":
            tensor = torch.full((300,), float(rank + event.number), device=device)
            reductions.append((dist.all_reduce(tensor, async_op=True), tensor))
        else:
            message = script.messages[event.number]
            if event.kind == "send":
                tensor = message.content().to(device)
                sent.append(tensor)
                works[index] = dist.isend(tensor, message.destination, tag=message.tag)
            else:
                source = None if message.tag >= ANY else message.source
                tensor = torch.full((message.elements,), 99, dtype=message.dtype, device=device)
                works[index] = dist.irecv(tensor, source, tag=message.tag)
                arrived[index] = tensor
    for work in works.values():
        work.wait()
    wrong = []
    for number, (work, tensor) in enumerate(reductions):
        work.wait()
        numbers = [e.number for e in script.events if e.kind == "reduce" and e.rank == rank]
        expected = sum(r + numbers[number] for r in range(script.ranks))
        if not bool((tensor == expected).all()):
            wrong.append(f"reduction {number}: {tensor[:3].tolist()} instead of {expected}")
    return wrong + check(script, rank, {i: t.cpu() for i, t in arrived.items()}, works)


def check(
    script: Script, rank: int, arrived: dict[int, torch.Tensor], works: dict[int, Any]
) -> list[str]:
    """Compare what was received with the model: queues in the order of sending."""
    wrong = []
    sends: dict[Any, list[Message]] = {}
    for event in script.events:
        if event.kind == "send":
            message = script.messages[event.number]
            sends.setdefault((message.source, message.destination, message.tag), []).append(message)
    taken: dict[Any, int] = {}
    for index in sorted(arrived):
        message = script.messages[script.events[index].number]
        source = works[index]._source_rank() if message.tag >= ANY else message.source
        queue = (source, rank, message.tag)
        k = taken.get(queue, 0)
        taken[queue] = k + 1
        if k >= len(sends.get(queue, [])):
            wrong.append(f"event {index}: more messages from {source} than it sent")
        elif not torch.equal(arrived[index], sends[queue][k].content()):
            wrong.append(f"event {index}: not the content of message {sends[queue][k]}")
    return wrong


def serve(rank: int, world_size: int, address: str) -> None:
    """Execute the scripts that come from the test's process, until it has no more."""
    del world_size
    with Client(address, "AF_UNIX") as connection:
        connection.send(rank)
        for _ in itertools.count():
            script = connection.recv()
            if script is None:
                return
            connection.send(execute(script, rank))
