"""Programs of one graph, by what they are compiled for, up to a limit."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from neuronxcc.environment.compilation import TORCH_NEURONX_MAX_SHAPES
from torch_neuronx.dynamo.session import compile_session

Function = Callable[..., Any]


class Variants:
    """Compiles a graph for every key that it meets, until there are too many."""

    def __init__(self, operators: Function) -> None:
        """Compile nothing yet.

        Args:
            operators: Runs the graph operator by operator, for keys beyond the limit.
        """
        self.operators = operators
        self.limit = TORCH_NEURONX_MAX_SHAPES.get()
        self.compiled: dict[Hashable, Function] = {}
        self.warned = False

    def get(
        self, key: Hashable, compile_now: Callable[[], Function], warn: Callable[[int], None]
    ) -> Function:
        """Return the function for a key, compiling it if it is new.

        Args:
            key: What it is compiled for.
            compile_now: Compiles it.
            warn: Says, once, that there are more keys than this limit.
        """
        function = self.compiled.get(key)
        if function is None:
            with compile_session():
                function = self._settled(key, compile_now, warn)
        return function

    def _settled(
        self, key: Hashable, compile_now: Callable[[], Function], warn: Callable[[int], None]
    ) -> Function:
        function = self.compiled.get(key)  # another thread may have compiled it meanwhile
        if function is None and len(self.compiled) >= self.limit:
            if not self.warned:
                self.warned = True
                warn(self.limit)
            return self.operators
        if function is None:
            function = self.compiled[key] = compile_now()
        return function
