"""Graphs to which it matters where and how in memory their arguments lie.

Dynamo guards sizes and strides, not places. Two kinds of graphs depend on these, and AOTAutograd
traces both for the places of the first call: one that reads a storage by place (`as_strided` with
an offset), and one that writes to an argument in whose memory another argument lies, too. What it
traced is wrong for other places, without a word, so such a graph is compiled for each.

What an optimizer's step is given Dynamo does not guard at all. Where a parameter has got other
memory (`p.data = ...`, `model.to(memory_format=torch.channels_last)`), the program refuses it, and
the graph, which writes to its arguments and so is one of these, is compiled for that, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from torch_neuronx import _C
from torch_neuronx.dynamo.session import compile_session
from torch_neuronx.dynamo.variants import Variants

#: Operators that name a place in a storage, and which of their arguments does.
_OFFSETS = {
    "as_strided": 3,
    "as_strided_": 3,
    "as_strided_copy": 3,
    "as_strided_scatter": 4,
}


def reads_by_place(gm: torch.nn.Module) -> bool:
    """Return whether one of Dynamo's graphs, or one in it, has an offset in some storage."""
    return any(_names_place(node) for each in graphs_of(gm) for node in each.graph.nodes)


def graphs_of(gm: torch.nn.Module) -> list[torch.fx.GraphModule]:
    """Dynamo's graph, and those in it."""
    return [m for m in gm.modules() if isinstance(m, torch.fx.GraphModule)]


def _names_place(node: torch.fx.Node) -> bool:
    if node.op not in {"call_function", "call_method"}:
        return False
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        target = target.overloadpacket
    number = _OFFSETS.get(target if isinstance(target, str) else getattr(target, "__name__", ""))
    if number is None:
        return False
    given = node.args[number] if len(node.args) > number else node.kwargs.get("storage_offset")
    return given is not None


def places(values: Sequence[Any], *, all_offsets: bool) -> tuple[Any, ...]:
    """Where arguments lie as far as graphs can depend on it: equal for calls of one program.

    Args:
        values: The arguments, real or fake.
        all_offsets: The graph reads by place: every offset counts.
    """
    together = _C.overlapping(tuple(values))
    if not together and not all_offsets:
        return ()
    offsets = [
        x.storage_offset() if isinstance(x, torch.Tensor) and x.layout is torch.strided else None
        for x in (values if all_offsets else ())
    ]
    bases: dict[int, torch.Tensor] = {}  # by the numbers of groups, where autograd knows one
    for i, first in together:
        if values[i]._base is not None:
            bases.setdefault(first, values[i]._base)
    return (*offsets, *((i, first, *_place(values[i], bases.get(first))) for i, first in together))


def _place(x: torch.Tensor, base: torch.Tensor | None) -> tuple[Any, ...]:
    """Where a tensor lies that overlaps another one.

    AOTAutograd gives its graph the tensor of which they are views, if autograd knows one, else all
    of the storage.
    """
    if base is None:
        return (x.storage_offset(),)
    begin = x.storage_offset() - base.storage_offset()
    return (begin, base.dtype, tuple(base.shape), base.stride())


def _layouts(values: Sequence[Any]) -> tuple[Any, ...]:
    """What a program is compiled for, of each argument."""
    return tuple(
        (x.dtype, x.shape, x.stride() if x.layout is torch.strided else None, x.device)
        if isinstance(x, torch.Tensor)
        else None
        for x in values
    )


class ByPlace:
    """Compiles a graph for each way in which its arguments lie in memory."""

    def __init__(
        self,
        compile_anew: Callable[[Sequence[Any]], Callable[..., Any]],
        gm: torch.fx.GraphModule,
        *,
        all_offsets: bool,
        at_once: bool,
    ) -> None:
        """Compile nothing yet.

        Args:
            compile_anew: Compiles the graph for arguments, real ones.
            gm: Dynamo's graph, which runs operator by operator when there are too many programs.
            all_offsets: As for `places`.
            at_once: The graph is one program, which does nothing if it refuses an argument.
        """
        self.compile_anew = compile_anew
        self.gm = gm
        # Dynamo's graph of an optimizer's step holds the parameters itself.
        self.held = (*gm.parameters(), *gm.buffers())
        self.all_offsets = all_offsets
        self.at_once = at_once
        self.by_layout = False  # strides and sizes are part of the key: looked at when they change
        self.variants = Variants(gm)
        self.layouts: dict[Hashable, tuple[Any, ...]] = {}

    def add(self, values: Sequence[Any], function: Callable[..., Any]) -> None:
        """Note what was compiled for arguments."""
        key = self._key(values)
        self.layouts[key] = self._layouts(values)
        self.variants.compiled[key] = function

    def __call__(self, *args: Any) -> Any:
        """Run the program for these places, compiling it first if they are new."""
        key = self._key(args)
        function = self.variants.get(key, lambda: self._compile(key, args), _warn)
        try:
            return function(*args)
        except ValueError:
            if not self._was_for_others(function, key, args):
                raise
        self._tell_layouts_apart()
        return self(*args)

    def _was_for_others(
        self, function: Callable[..., Any], key: Hashable, args: Sequence[Any]
    ) -> bool:
        """Whether a program has refused arguments that it was not made for, and done nothing."""
        if function is self.gm or not self.at_once or self.by_layout:
            return False
        return self.layouts[key] != self._layouts(args)

    def _key(self, values: Sequence[Any]) -> tuple[Any, ...]:
        where = places((*self.held, *values), all_offsets=self.all_offsets)
        return (where, self._layouts(values)) if self.by_layout else where

    def _layouts(self, values: Sequence[Any]) -> tuple[Any, ...]:
        return _layouts((*self.held, *values))

    def _compile(self, key: Hashable, args: Sequence[Any]) -> Callable[..., Any]:
        function = self.compile_anew(args)
        self.layouts[key] = self._layouts(args)
        return function

    def _tell_layouts_apart(self) -> None:
        with compile_session():
            if not self.by_layout:
                known = self.variants.compiled
                self.variants.compiled = {(key, self.layouts[key]): known[key] for key in known}
                self.by_layout = True


def _warn(limit: int) -> None:
    warnings.warn(
        f"a compiled graph was called with arguments at more than {limit} different places of "
        "their storages; with further ones it runs operator by operator. Pass tensors that share "
        "no memory (x.clone()), or set TORCH_NEURONX_MAX_SHAPES to compile more programs",
        PlaceLimitWarning,
        stacklevel=5,
    )


class PlaceLimitWarning(UserWarning):
    """A graph was called with its arguments at more places than programs may be compiled for."""
