"""The order of instructions: each engine is given work while another one is waited for.

Kernels here are written block by block, one operator after the other. Engines work through their
queues in order, so in that order each would mostly wait for the others. A list scheduler plays the
program on the performance model's timeline, where an engine that is free takes the first
instruction that is ready, and the recording is put in the order in which instructions begin.
"""

from __future__ import annotations

from array import array

import numpy as np

from neuronxcc.perf import predict
from neuronxcc.targets import Target
from nki.checks.flow import starts
from nki.perf.streams import stream_of
from nki.perf.works import is_timed
from nki.recording import Block, Recording

__all__ = ["scheduled"]


def scheduled(recording: Recording, target: Target) -> Recording:
    """Put a recording in the order in which its engines are busiest; it is changed.

    What depends on something stays behind it, so that values are the same. Recordings with loops,
    or with fills that are no instructions of hardware, stay as they are.
    """
    code = recording.body.code
    if recording.body.loops or not len(code):
        return recording
    words = [template.words for template in recording.templates]
    begin = starts(code, words)
    flat = np.frombuffer(code, np.int64)
    if not all(is_timed(recording.templates[number]) for number in set(flat[begin].tolist())):
        return recording
    stream = stream_of(recording)
    stream.listed = True
    start = predict(stream, target).timeline.start
    assert len(start) == len(begin)
    order = np.argsort(start, kind="stable")
    sizes = np.diff(np.append(begin, len(flat)))
    first = np.repeat(begin[order], sizes[order])
    within = np.arange(len(flat)) - np.repeat(np.cumsum(sizes[order]) - sizes[order], sizes[order])
    made = array("q")
    made.frombytes(flat[first + within].tobytes())
    recording.body = Block(made, [])
    return recording
