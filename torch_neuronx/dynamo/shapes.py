"""Graphs with symbolic sizes: one static program per concrete shape, up to a bound."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_neuronx.dynamo.errors import DynamicShapeError
from torch_neuronx.ops import get_portability

VARIABLE = "TORCH_NEURONX_MAX_SHAPES"
DEFAULT_LIMIT = 16


class ShapeLimitWarning(UserWarning):
    """A graph was called with more shapes than it is compiled for; the rest runs in eager mode."""


def has_symbolic(inputs: Sequence[Any]) -> bool:
    """Whether any size among Dynamo's example inputs is symbolic."""
    return any(_symbolic(x) for x in inputs)


def _symbolic(x: Any) -> bool:
    if isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool):
        return True
    return isinstance(x, torch.Tensor) and not all(isinstance(n, int) for n in x.shape)


def limit() -> int:
    """How many shapes one graph is compiled for.

    Raises:
        ValueError: the variable is not a positive integer.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return DEFAULT_LIMIT
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{VARIABLE}={text!r} must be a positive integer")
    return int(text)


class Specializer:
    """Compiles Dynamo's graph for each set of sizes that it is called with.

    Dynamo passes every symbolic size as an argument of its own, so the numbers among the arguments
    are the key.
    """

    def __init__(
        self, gm: torch.fx.GraphModule, compile_static: Callable[..., Callable[..., Any]]
    ) -> None:
        refuse_symbolic(gm)
        self.gm = gm
        self.compile_static = compile_static
        self.limit = limit()
        self.compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self.warned = False

    def __call__(self, *args: Any) -> Any:
        """Run the program for these sizes, compiling it first if they are new."""
        key = tuple(a for a in args if not isinstance(a, torch.Tensor))
        function = self.compiled.get(key)
        if function is None:
            if len(self.compiled) >= self.limit:
                self._warn(args)
                return self.gm(*args)
            with torch._guards.tracing(None):
                function = self.compile_static(self.gm, args)
            self.compiled[key] = function
        return function(*args)

    def _warn(self, args: Sequence[Any]) -> None:
        if self.warned:
            return
        self.warned = True
        shapes = ", ".join(str(list(a.shape)) for a in args if isinstance(a, torch.Tensor))
        warnings.warn(
            f"a compiled graph was called with more than {self.limit} different shapes; further "
            f"ones run operator by operator, first: {shapes[:300]}. A NeuronCore needs static "
            f"shapes: pad inputs to a few sizes, or set {VARIABLE} to compile more programs",
            ShapeLimitWarning,
            stacklevel=3,
        )


def refuse_symbolic(gm: torch.fx.GraphModule) -> None:
    """Raise for the first symbolic tensor of a Dynamo graph, in strict portability.

    Raises:
        DynamicShapeError: always in strict portability.
    """
    if get_portability() != "strict":
        return
    for node in gm.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and _symbolic(value):
            shape = f"[{', '.join(map(str, value.shape))}]"
            raise DynamicShapeError(node.name, shape)
    raise DynamicShapeError(gm._get_name(), "symbolic")
