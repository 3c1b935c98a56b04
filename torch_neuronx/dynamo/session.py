"""Compiling outside of Dynamo: at the call of a program, in a backward pass, for a traced model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._dynamo.convert_frame import compile_lock


@contextmanager
def compile_session() -> Iterator[None]:
    """Open the session that Dynamo puts around a compilation, for those that it doesn't start.

    Tracing patches functions and sets flags of the whole process, so it is done by one thread at a
    time; threads that run compiled functions meanwhile must see that it is a compilation.
    """
    with compile_lock, torch.compiler._compile_session_context():
        yield
