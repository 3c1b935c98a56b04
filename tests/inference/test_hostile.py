"""Saved traces whose inner parts were changed: an error that says so, never a crash.

A longer search than the test's: `python -m tests.inference.test_hostile --minutes 5`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_neuronx
from tests.fuzz.mutate import NUMBERS, TEXTS, mutate_bytes, mutate_neff

# PyTorch deprecates TorchScript, which is how traced models are saved.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

State = tuple[str, list[torch.Tensor], list[int]]
KINDS = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64)


class Counter(torch.nn.Module):
    """A weight, a state, an input that is passed on as a view, and a product."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(2, dtype=torch.int32))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.calls += 1
        return torch.softmax(self.layer(x), 1), x.t(), (y + self.calls[0]).sum()


def models() -> list[tuple[torch.jit.ScriptModule, tuple[torch.Tensor, ...]]]:
    torch.manual_seed(0)
    examples = (torch.rand(2, 4), torch.ones(2, dtype=torch.int32))
    stateful = torch_neuronx.trace(Counter().eval(), examples)
    plain = torch_neuronx.trace(torch.nn.Linear(4, 3).eval(), examples[:1])
    return [(stateful, examples), (torch_neuronx.dynamic_batch(plain), examples[:1])]


def state_of(model: Any) -> State:
    state: State = model._get_method("__getstate__")()
    return state


def load_state(state: State) -> Any:
    """A `neuron::Model` of a state, as torch.jit.load makes it."""
    made = torch.classes.neuron.Model("", torch.empty(0), [], [])
    made._get_method("__setstate__")(state)
    return made


# ---- mutations ---------------------------------------------------------------------------------


def mutate_json(text: str, rng: random.Random) -> str:
    """Change one value of a document, or its text."""
    try:
        document = json.loads(text)
    except ValueError:  # an earlier change was to the text
        document = None
    if not isinstance(document, dict) or rng.random() < 0.1:
        changed = mutate_bytes(text.encode("utf-8", "surrogatepass"), rng)
        return changed.decode("utf-8", "replace")
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            places.append((value, key))
            if isinstance(value[key], dict | list):
                visit(value[key])

    visit(document)
    holder, key = rng.choice(places)
    value = holder[key]
    match rng.randrange(4):
        case 0:
            holder[key] = rng.choice((*NUMBERS, *TEXTS, None, True, [], {}, "\ud800", 1.5))
        case 1 if isinstance(value, int):
            holder[key] = value + rng.choice((-1, 1))
        case 2 if isinstance(holder, list):
            holder.insert(key, json.loads(json.dumps(value)))
        case 3 if isinstance(holder, list):
            del holder[key]
        case _:
            other, place = rng.choice(places)
            holder[key] = json.loads(json.dumps(other[place])) if _is_there(other, place) else 0
    return json.dumps(document)


def _is_there(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def mutate_tensor(tensor: torch.Tensor, rng: random.Random) -> torch.Tensor:  # noqa: PLR0911
    """Other memory, sizes or types, also such that PyTorch's own constructors would refuse."""
    size = tensor.untyped_storage().nbytes()
    sizes, strides = [1], [1]
    if tensor.dim():
        sizes, strides = list(tensor.shape), list(tensor.stride())
    match rng.randrange(9):
        case 0:
            return beyond(tensor, rng.randrange(1 + size), sizes, strides, 0)
        case 1:
            return beyond(tensor, size, sizes, strides, rng.choice((1, 7, 1 << 20)))
        case 2:
            sizes[rng.randrange(len(sizes))] += rng.choice((1, 5, 1 << 10))
            return beyond(tensor, size, sizes, strides, 0)
        case 3:
            strides[rng.randrange(len(strides))] = rng.choice((0, 2, 9, 1 << 12))
            return beyond(tensor, size, sizes, strides, 0)
        case 4:
            return tensor.to(rng.choice(KINDS))
        case 5:
            return tensor.to("meta")
        case 6:
            return tensor.float().reshape(-1, 1).to_sparse()
        case 7:
            return tensor.reshape(-1)[: tensor.numel() // 2].clone()
        case _:
            return tensor.to(torch.complex64).conj()


def beyond(like: torch.Tensor, kept: int, sizes: Any, strides: Any, at: int) -> torch.Tensor:
    """A tensor whose storage has only `kept` bytes, as an unpickler makes it of forged numbers."""
    end = min(1 << 22, at + sum(max(0, n - 1) * s for n, s in zip(sizes, strides, strict=True)) + 1)
    made = torch.zeros(end, dtype=like.dtype)
    if at + sum(max(0, n - 1) * s for n, s in zip(sizes, strides, strict=True)) + 1 > end:
        return made
    view = made.as_strided(sizes, strides, at)
    view.untyped_storage().resize_(kept)
    return view


def mutate_state(state: State, others: list[State], rng: random.Random) -> State:
    """Change the manifest, the NEFF, a tensor, or the numbers."""
    manifest, tensors, numbers = state[0], list(state[1]), list(state[2])
    match rng.randrange(8) if tensors and numbers else 0:
        case 0 | 1 | 2:
            manifest = mutate_json(manifest, rng)
        case 3 | 4:
            content = rng.choice(others)[1][0].numpy().tobytes()  # others are not changed
            change = mutate_neff if rng.random() < 0.8 else mutate_bytes
            changed = bytearray(change(content, rng)) or bytearray(1)
            tensors[0] = torch.frombuffer(changed, dtype=torch.uint8).clone()
        case 5:
            place = rng.randrange(len(tensors))
            tensors[place] = mutate_tensor(rng.choice(rng.choice(others)[1]), rng)
        case 6:
            place = rng.randrange(len(tensors) + 1)
            other = rng.choice(others)[1]
            tensors[place : place + rng.randrange(2)] = rng.choices(other, k=rng.randrange(3))
        case _:
            numbers[rng.randrange(len(numbers))] = rng.choice(NUMBERS)
            if rng.random() < 0.2:
                numbers = numbers[: rng.randrange(len(numbers) + 1)]
    return manifest, tensors, numbers


# ---- the search --------------------------------------------------------------------------------


def search(seed: int, more: Callable[[int], bool]) -> dict[str, int]:
    """Load changed states, and call those that load; how often what came out.

    Raises:
        AssertionError: Something else than a RuntimeError or ValueError with a text.
    """
    rng = random.Random(seed)  # noqa: S311 - no secret
    made = models()
    states = [state_of(traced.neuron_model) for traced, _ in made]
    found = {"refused": 0, "loaded": 0, "ran": 0}
    number = 0
    while more(number):
        number += 1
        place = rng.randrange(len(states))
        state = states[place]
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            state = mutate_state(state, states, rng)
        try:
            model = load_state(state)
            found["loaded"] += 1
            for _ in range(2):
                results = torch.ops.neuron.forward_v2(list(made[place][1]), model)
                sum(float(result.double().sum()) for result in results if result.numel() < 1 << 20)
            found["ran"] += 1
        except (RuntimeError, ValueError, NotImplementedError, IndexError) as error:
            text = str(error)[:200]
            unclear = ("AttributeError", "TypeError:", "KeyError", "IndexError:", "AssertionError")
            if not text or any(word in text for word in unclear):
                raise AssertionError(f"case {number}: {text!r}") from error
            found["refused"] += 1
    # What was not changed still works.
    for traced, examples in made:
        traced(*examples)
    return found


def test_changed_states() -> None:
    found = search(6, lambda number: number < 150)
    assert found["refused"] > 60, found
    assert found["ran"] > 3, found


def test_a_tensor_beyond_its_memory() -> None:
    (_, _), (traced, _) = models()
    manifest, tensors, numbers = state_of(traced.neuron_model)
    for place, text in ((0, "has no NEFF"), (1, "'weight' .* reaches beyond its memory")):
        forged = list(tensors)
        like = tensors[place]
        forged[place] = beyond(like, 4, list(like.shape), list(like.stride()), 0)
        with pytest.raises(RuntimeError, match=text):
            load_state((manifest, forged, numbers))


def test_a_dynamic_batch_that_cannot_be() -> None:
    (traced, _), _ = models()
    manifest, tensors, numbers = state_of(traced.neuron_model)
    with pytest.raises(RuntimeError, match="has a dynamic batch, but the model updates the state"):
        load_state((manifest, tensors, [1, *numbers[1:]]))


def test_changed_files(traced_file: Path) -> None:
    """A byte anywhere in the file: an error, or a model."""
    rng = random.Random(1)  # noqa: S311 - no secret
    content = traced_file.read_bytes()
    for _ in range(60):
        traced_file.write_bytes(mutate_bytes(content, rng))
        try:
            torch.jit.load(traced_file)(torch.rand(2, 4))
        except (RuntimeError, ValueError, IndexError) as error:  # the last one is torch.jit.load's
            assert str(error)  # noqa: PT017 - any text will do


@pytest.fixture
def traced_file(tmp_path: Path) -> Path:
    traced = torch_neuronx.trace(torch.nn.Linear(4, 3).eval(), torch.rand(2, 4))
    torch.jit.save(traced, tmp_path / "model.pt")
    return tmp_path / "model.pt"


def main() -> None:
    parser = argparse.ArgumentParser(description="Search for states that do harm.")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    end = time.monotonic() + 60 * options.minutes
    sys.stdout.write(f"{search(options.seed, lambda _: time.monotonic() < end)}\n")


if __name__ == "__main__":
    main()
