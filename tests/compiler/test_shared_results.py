"""Results that share memory: what one of them, or the caller, writes, the others show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from torch_neuronx import neuron

Step = Callable[[torch.Tensor], torch.Tensor]

MAKERS: dict[str, Step] = {
    "argument": lambda x: x,
    "sum": lambda x: x + 1,
    "transposed": lambda x: (x * 2).t(),
    "complex": lambda x: torch.complex(x, x * 2),
    "conjugated": lambda x: torch.complex(x, x + 1).conj(),
    "pairs": lambda x: torch.view_as_complex(x.view(4, 2, 2) + 0),
    "spectrum": torch.fft.ifft,
    "narrow": lambda x: (x + 1).bfloat16(),
    "integers": lambda x: (x * 3).int(),
    "rows": lambda x: torch.complex(x, x)[1:],
    "constant": lambda x: torch.ones(4, 4, device=x.device),
}

VIEWS: dict[str, Step] = {
    "transpose": lambda x: x.transpose(0, -1),
    "slice": lambda x: x[1:],
    "select": lambda x: x.select(-1, 0),
    "flat": lambda x: x.view(-1),
    "expand": lambda x: x.unsqueeze(0).expand(2, *x.shape),
    "diagonal": torch.diagonal,
    "chunk": lambda x: x.chunk(2, -1)[-1],
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "view_as_real": torch.view_as_real,
    "view_as_complex": torch.view_as_complex,
    "int64": lambda x: x.view(torch.int64),
    "bfloat16": lambda x: x.view(torch.bfloat16),
    "conj": torch.conj,
    "mH": lambda x: x.transpose(-2, -1).conj(),
    "neg": torch._neg_view,
    "detach": torch.detach,
}


@st.composite
def chains(draw: st.DrawFn, x: torch.Tensor) -> list[Step]:
    """Views of views, as far as PyTorch allows them."""
    chain: list[Step] = []
    for name in draw(st.lists(st.sampled_from(list(VIEWS)), max_size=3)):
        try:
            made = VIEWS[name](x)
        except (RuntimeError, IndexError):
            continue
        if made.numel():
            x = made
            chain.append(VIEWS[name])
    return chain


def elements(x: torch.Tensor) -> tuple[Any, ...]:
    """Shape, type and bytes."""
    plain = torch.empty(x.shape, dtype=x.dtype).copy_(x.detach())
    return plain.shape, plain.dtype, plain.view(-1).view(torch.uint8).tolist()


def outcome(function: Callable[..., Any], device: str, gradients: bool) -> list[Any]:
    """What is returned; for each result, what all show after it was written to."""
    x = torch.arange(16.0, device=device).view(4, 4).requires_grad_(gradients)
    results = function(x)
    found = [[elements(y) for y in results]]
    for y in results:
        if all(s > 0 for s, n in zip(y.stride(), y.shape, strict=True) if n > 1):
            y.detach().mul_(2)
        found.append([elements(z) for z in (*results, x)])
    return [found, [y.requires_grad for y in results]]


@pytest.mark.slow
@given(st.data(), st.booleans())
@settings(max_examples=40)
def test_what_is_written_to_one_result_the_others_show(
    data: st.DataObject, gradients: bool
) -> None:
    make = MAKERS[data.draw(st.sampled_from(list(MAKERS)))]
    example = make(torch.arange(16.0).view(4, 4))
    branches = data.draw(st.lists(chains(example), min_size=1, max_size=4))

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = make(x)
        results = []
        for chain in branches:
            y = made
            for step in chain:
                y = step(y)
            results.append(y)
        return tuple(results)

    torch.compiler.reset()
    try:
        expected = outcome(torch.compile(function, backend="aot_eager"), "cpu", gradients)
    except (RuntimeError, AssertionError):
        # Of complex results in training it makes views of the wrong type, or of the wrong part.
        reject()
    torch.compiler.reset()
    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    assert outcome(compiled, "neuron", gradients) == expected


@pytest.mark.parametrize("view", ["conj", "neg", "mH", "view_as_real", "imag", "int64"])
def test_a_result_beside_a_view_of_it_that_reads_it_otherwise(view: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.complex(x, x + 1)
        return y, VIEWS[view](y)

    x = torch.arange(16.0).view(4, 4)
    expected = function(x)
    found = torch.compile(function, backend="neuron")(x.to("neuron"))
    for one, other in ((found, expected), (expected, found)):
        assert [elements(y) for y in one] == [elements(y) for y in other]
        assert [y.is_conj() for y in one] == [y.is_conj() for y in other]
        assert [y.is_neg() for y in one] == [y.is_neg() for y in other]
    for y, _ in (found, expected):
        y.add_(1)
    assert elements(found[1]) == elements(expected[1])


def test_views_of_another_type_of_an_argument_that_begins_elsewhere_next_time() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # AOTAutograd makes views of arguments itself, but not of one of several views.
        return torch.view_as_complex(x.chunk(2)[1]), x

    memory = torch.arange(20.0)
    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    for begin in (2, 6, 0):
        x, y = (t.narrow(0, begin, 8).view(4, 2) for t in (memory, memory.to("neuron")))
        expected, found = function(x.requires_grad_()), compiled(y.requires_grad_())
        for result in (expected, found):
            result[0].detach().mul_(3)
        assert [elements(t) for t in found] == [elements(t) for t in expected]


def test_views_of_an_argument_of_which_events_have_made_several() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, _, third = x.unbind(-1)
        event = neuron.Event()
        event.record()
        line = first.flatten()
        event.record()
        one, other = third.tensor_split(2)
        return one, other, line.flip(0)

    x = torch.arange(24.0, device="neuron").view(4, 2, 3).requires_grad_()
    results = torch.compile(function, backend="neuron", fullgraph=True)(x)
    with torch.no_grad():
        x.detach().zero_()
        assert [float(y.sum()) for y in results] == [0.0, 0.0, 84.0]
