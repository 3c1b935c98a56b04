"""Jagged nested tensors as arguments of a compiled graph.

PyTorch takes such a tensor apart into its values and offsets, which are dense. The length of its
ragged dimension is a symbol for one tensor of offsets and no number, so nothing static can be made
of it; the sizes of the values, of the offsets, and the shortest and longest length are numbers, for
which a program is compiled as for other sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    StatelessSymbolicContext,
    SubclassSymbolicContext,
)

if TYPE_CHECKING:
    from torch._dynamo.source import ConstantSource


def is_jagged(value: object) -> bool:
    """Return whether a value is a nested tensor of jagged layout."""
    return isinstance(value, torch.Tensor) and value.is_nested and value.layout is torch.jagged


def has_jagged(gm: torch.fx.GraphModule) -> bool:
    """Return whether one of Dynamo's graphs is given jagged tensors, or makes some."""
    # Graphs with lists among their arguments come in a wrapper, which has no nodes.
    graph = getattr(gm, "graph", None)
    return graph is not None and any(
        is_jagged(node.meta.get("example_value")) for node in graph.nodes
    )


def is_length(value: object) -> bool:
    """Return whether a value stands for the lengths of a ragged dimension."""
    return isinstance(value, torch.SymInt) and value.node.is_nested_int()


def sizes(args: Sequence[Any]) -> tuple[Any, ...]:
    """The key of a program for these arguments, besides the sizes of dense ones."""
    lengths: list[Any] = []
    found: list[Any] = []
    for value in args:
        if not is_jagged(value):
            continue
        length = value.shape[value._ragged_idx]
        if not any(length is other or bool(length == other) for other in lengths):
            lengths.append(length)
        same = next(i for i, other in enumerate(lengths) if bool(length == other))
        names, _ = value.__tensor_flatten__()
        inner = [getattr(value, name) for name in names]
        found.append((same, tuple((n, *t.shape) for n, t in zip(names, inner, strict=True))))
    return tuple(found)


def with_symbolic_lengths(mode: FakeTensorMode, args: Sequence[Any]) -> list[Any]:
    """Arguments for AOTAutograd of a graph with jagged tensors: fake ones of static sizes.

    Args:
        mode: Has an environment of shapes, for the lengths of ragged dimensions are symbols.
        args: Real arguments of a graph. Lengths among them become those of the fake tensors.
    """
    fakes = [
        _fake(mode, value, number) if isinstance(value, torch.Tensor) else value
        for number, value in enumerate(args)
    ]
    jagged = [(a, f) for a, f in zip(args, fakes, strict=True) if is_jagged(a)]
    return [
        next(f.shape[f._ragged_idx] for a, f in jagged if bool(a.shape[a._ragged_idx] == value))
        if is_length(value)
        else value
        for value in fakes
    ]


def _fake(mode: FakeTensorMode, value: Any, number: int) -> Any:
    from torch._dynamo.source import ConstantSource  # noqa: PLC0415 - threads import this module

    if not is_jagged(value):
        # With a source, numbers in tensors would become symbols.
        return mode.from_tensor(value, static_shapes=True)
    source = ConstantSource(f"argument{number}")
    return mode.from_tensor(value, symbolic_context=_context(value, source), source=source)


def _context(value: torch.Tensor, source: ConstantSource) -> StatelessSymbolicContext[Any, Any]:
    """Which sizes of a tensor, of its parts and of what it is a view of are symbols: lengths.

    A jagged tensor made of a list is a view of its values; without a context of their own they
    would have symbols for sizes.
    """
    base = _context(value._base, source) if value._base is not None else None
    if not is_jagged(value):
        return StatelessSymbolicContext(
            dynamic_sizes=[DimDynamic.STATIC] * value.dim(),
            constraint_sizes=[None] * value.dim(),
            view_base_context=base,
        )
    jagged: Any = value
    names, _ = jagged.__tensor_flatten__()
    return SubclassSymbolicContext(
        dynamic_sizes=[
            DimDynamic.DYNAMIC if d == jagged._ragged_idx else DimDynamic.STATIC
            for d in range(value.dim())
        ],
        constraint_sizes=[None] * value.dim(),
        view_base_context=base,
        inner_contexts={name: _context(getattr(value, name), source) for name in names},
        tensor_source=source,
    )
