"""The manifest of a saved model: a small JSON document, read with every check.

It names the model's inputs, and says which tensor every argument of its program is and what its
program's results are to the caller.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn

import torch

from neuronxcc.program.memory import Buffer
from neuronxcc.program.program import Program
from torch_neuronx.inference.errors import ModelFormatError
from torch_neuronx.program.dtypes import TO_TORCH

FORMAT = 1
_KINDS = ("input", "weight", "state")
_MOST = 1 << 20  # entries of a list; more than any model has
_MOST_ELEMENTS = 1 << 40  # of a view, whose strides may be 0
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in TO_TORCH.values()}


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """Name, type ("float32") and shape of a tensor that a model takes or holds."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, value: torch.Tensor) -> TensorFacts:
        """Those of a tensor."""
        dtype = str(value.dtype).removeprefix("torch.")
        return cls(name, dtype, tuple(map(int, value.shape)))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type as PyTorch has it."""
        return _DTYPES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


Source = tuple[str, int]  # kind and number
View = tuple[tuple[int, ...], tuple[int, ...], int]  # sizes, strides, elements from its beginning


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a saved model.

    Attributes:
        name: For people.
        target: What it was compiled for.
        inputs: Tensors that every call brings.
        weights: Tensors that do not change.
        states: Tensors that calls update.
        sources: What every argument of the program is: ("input", 0), ("weight", 3), ("state", 0).
        outputs: What every output is, ("result", 0) or one of the above, and which view of it.
        separate_weights: The weights are not in the model; every call brings them.
    """

    name: str
    target: str
    inputs: tuple[TensorFacts, ...]
    weights: tuple[TensorFacts, ...]
    states: tuple[TensorFacts, ...]
    sources: tuple[Source, ...]
    outputs: tuple[tuple[Source, View | None], ...]
    separate_weights: bool = False
    format: int = FORMAT

    def to_json(self) -> str:
        """The document; equal manifests give equal texts."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    def tensors(self, kind: str) -> tuple[TensorFacts, ...]:
        """The inputs, weights or states."""
        return {"input": self.inputs, "weight": self.weights, "state": self.states}[kind]


def read_manifest(text: str) -> Manifest:
    """Read what `Manifest.to_json` wrote.

    Raises:
        ModelFormatError: It is something else.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        _refuse(f"the manifest is no JSON: {error}")
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        _refuse("the manifest has another format: save the model again with this version")
    fields = set(Manifest.__dataclass_fields__)
    if set(document) != fields:
        _refuse(f"the manifest has the fields {sorted(document)}, not {sorted(fields)}")
    tensors = {
        name: tuple(_tensor(item, name) for item in _list(document[name], name))
        for name in ("inputs", "weights", "states")
    }
    return Manifest(
        _text(document["name"], "name"),
        _text(document["target"], "target"),
        tensors["inputs"],
        tensors["weights"],
        tensors["states"],
        tuple(_source(item) for item in _list(document["sources"], "sources")),
        tuple(_output(item) for item in _list(document["outputs"], "outputs")),
        _truth(document["separate_weights"]),
    )


def lend_states(manifest: Manifest, names: Sequence[str]) -> Manifest:
    """The manifest with these states as its last inputs, in this order."""
    if not names:
        return manifest
    states = {facts.name: number for number, facts in enumerate(manifest.states)}
    lent = [states[name] for name in names]
    rest = [number for number in range(len(states)) if number not in lent]

    def place(source: Source) -> Source:
        kind, index = source
        if kind != "state":
            return source
        if index in lent:
            return "input", len(manifest.inputs) + lent.index(index)
        return "state", rest.index(index)

    return replace(
        manifest,
        inputs=(*manifest.inputs, *(manifest.states[number] for number in lent)),
        states=tuple(manifest.states[number] for number in rest),
        sources=tuple(map(place, manifest.sources)),
        outputs=tuple((place(source), view) for source, view in manifest.outputs),
    )


def check_against(manifest: Manifest, program: Program) -> None:
    """Check that a manifest and a program belong together.

    After this every tensor that has the facts of the manifest can be the argument that it stands
    for, and every view lies in its tensor.

    Raises:
        ModelFormatError: They do not.
    """
    arguments = sorted(
        (buffer for buffer in program.buffers if buffer.kind == "input"), key=lambda b: b.index
    )
    if len(arguments) != len(manifest.sources):
        _refuse(f"the program takes {len(arguments)} tensors, not {len(manifest.sources)}")
    for buffer, source in zip(arguments, manifest.sources, strict=True):
        facts = _find(manifest, source)
        _check_same(buffer, facts.dtype, facts.shape, f"{source[0]} {facts.name!r}")
    for number, (source, view) in enumerate(manifest.outputs):
        kind, index = source
        if kind == "result":
            if not 0 <= index < len(program.results):
                _refuse(f"output {number} is result {index} of {len(program.results)}")
            size = _elements(program.buffers[program.results[index]])
        else:
            size = math.prod(_find(manifest, source).shape)
        if view is not None:
            _check_view(number, view, size)


def refusal_of(manifest: Manifest, program: Program) -> str:
    """Why a model, which `check_against` has passed, cannot have a dynamic batch; "" if it can."""
    if not manifest.inputs:
        return "the model takes no tensor"
    if manifest.states:
        return f"the model updates the state {manifest.states[0].name!r}, which a batch must not"
    first = manifest.inputs[0]
    for facts in manifest.inputs:
        if not facts.shape or facts.shape[0] != first.shape[0]:
            return (
                "the first dimension of all inputs must have the same size; "
                f"{first.name!r} was traced as {first}, {facts.name!r} as {facts}"
            )
    if any(program.buffers[number].kind == "input" for number in program.results):
        return "the model updates an input in place"
    for number, ((kind, index), view) in enumerate(manifest.outputs):
        if kind == "result":
            shape = program.buffers[program.results[index]].shape
        else:
            shape = manifest.tensors(kind)[index].shape
        shape = shape if view is None else view[0]
        if not shape or shape[0] != first.shape[0]:
            return (
                f"output {number} has the shape {list(shape)}; its first dimension must be the "
                f"batch, which was traced as {first.shape[0]}"
            )
    return ""


def _find(manifest: Manifest, source: Source) -> TensorFacts:
    kind, index = source
    tensors = manifest.tensors(kind) if kind in _KINDS else ()
    if not 0 <= index < len(tensors):
        _refuse(f"there is no {kind} {index}")
    return tensors[index]


def _check_same(buffer: Buffer, dtype: str, shape: tuple[int, ...], what: str) -> None:
    strides = tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
    fits = TO_TORCH.get(buffer.dtype) == _DTYPES[dtype] and buffer.shape == shape
    dense = all(n == 1 or a == b for n, a, b in zip(shape, buffer.strides, strides, strict=False))
    if not fits or not (dense or 0 in shape):
        _refuse(
            f"{what} is {dtype}{list(shape)}, but the program takes {buffer.dtype.value}"
            f"{list(buffer.shape)} with the strides {list(buffer.strides)}"
        )


def _elements(buffer: Buffer) -> int:
    """How many elements the memory of a buffer holds."""
    if 0 in buffer.shape:
        return 0
    pairs = zip(buffer.shape, buffer.strides, strict=True)
    return sum((n - 1) * s for n, s in pairs) + 1


def _check_view(number: int, view: View, size: int) -> None:
    sizes, strides, offset = view
    if len(sizes) != len(strides) or min((*sizes, *strides, offset), default=0) < 0:
        _refuse(f"output {number} is a view of sizes {sizes} and strides {strides}")
    if math.prod(sizes) > _MOST_ELEMENTS:
        _refuse(f"output {number} is a view of sizes {sizes}")
    last = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    if 0 not in sizes and last >= size:
        _refuse(f"output {number} is a view that reaches element {last} of {size}")


def _refuse(text: str) -> NoReturn:
    raise ModelFormatError(f"NRT_INVALID (status 2): the saved model is damaged: {text}")


def _list(value: Any, what: str) -> Sequence[Any]:
    if not isinstance(value, list) or len(value) > _MOST:
        _refuse(f"{what} is no list, or too long")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        _refuse(f"{what} is no text")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        _refuse("separate_weights is neither true nor false")
    return value


def _whole(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value < 1 << 62:
        _refuse(f"{what} is no whole number")
    return value


def _numbers(value: Any, what: str) -> tuple[int, ...]:
    return tuple(_whole(item, what) for item in _list(value, what))


def _tensor(item: Any, what: str) -> TensorFacts:
    if not isinstance(item, Mapping) or set(item) != {"name", "dtype", "shape"}:
        _refuse(f"an entry of {what} has not name, dtype and shape")
    if _text(item["dtype"], "a dtype") not in _DTYPES:
        _refuse(f"there is no dtype {item['dtype']!r}")
    shape = _numbers(item["shape"], "a size")
    if min(shape, default=0) < 0:
        _refuse(f"a shape is {shape}")
    return TensorFacts(_text(item["name"], "a name"), item["dtype"], shape)


def _source(item: Any) -> Source:
    parts = _list(item, "a source")
    if len(parts) != 2 or parts[0] not in (*_KINDS, "result"):
        _refuse(f"a source is {parts!r}"[:200])
    return parts[0], _whole(parts[1], "the number of a source")


def _output(item: Any) -> tuple[Source, View | None]:
    parts = _list(item, "an output")
    if len(parts) != 2:
        _refuse("an output is not a source and a view")
    if parts[1] is None:
        return _source(parts[0]), None
    view = _list(parts[1], "a view")
    if len(view) != 3:
        _refuse("a view is not sizes, strides and offset")
    sizes, strides = _numbers(view[0], "a size"), _numbers(view[1], "a stride")
    return _source(parts[0]), (sizes, strides, _whole(view[2], "an offset"))
