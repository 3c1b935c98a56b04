"""`bucket_model_trace`: one model for several shapes of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.jit._recursive import create_script_module

from torch_neuronx.inference.errors import TraceError
from torch_neuronx.inference.manifest import TensorFacts
from torch_neuronx.inference.placement import ATTRIBUTE
from torch_neuronx.inference.trace import Arguments, trace_with_source

Shapes = list[list[list[int]]]  # for every bucket the shape of every shared state
_STATE = "shared_state_{}"  # buffers of the module


@dataclass(frozen=True, slots=True, init=False)
class BucketModelConfig:
    """How a bucket is chosen for the inputs of a call, and what buckets share.

    Attributes:
        bucket_kernel: Returns a function made by `torch.jit.script`, from the list of input tensors
            to (the list of tensors for the bucket, a tensor with the number of the bucket).
        shared_state_buffer: First values of the states that all buckets read and update: one tensor
            for every state among the `input_output_aliases` of the models, in their order.
        shared_state_buffer_preprocessor: Returns a function made by `torch.jit.script`, from
            (shapes of the states for every bucket, the shared states, a tensor with the number of
            the bucket) to the list of states for that bucket. What it returns should be views of
            the shared states: a bucket updates them in place. None: the shared states as they are.
        func_kwargs: Keyword arguments for the function that makes the model: one dictionary, or one
            for every bucket.
    """

    bucket_kernel: Callable[[], Any]
    shared_state_buffer: Sequence[torch.Tensor] | None
    shared_state_buffer_preprocessor: Callable[[], Any] | None
    func_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None

    def __init__(
        self,
        bucket_kernel: Callable[[], Any],
        *_: Any,
        shared_state_buffer: Sequence[torch.Tensor] | None = None,
        shared_state_buffer_preprocessor: Callable[[], Any] | None = None,
        func_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Keep the configuration.

        Raises:
            TypeError: More than one argument by place; a shared state that is no tensor.
        """
        if _:
            raise TypeError("BucketModelConfig takes one positional argument")
        for number, state in enumerate(shared_state_buffer or ()):
            if not isinstance(state, torch.Tensor):
                raise TypeError(f"shared_state_buffer[{number}] is a {type(state).__name__}")
        object.__setattr__(self, "bucket_kernel", bucket_kernel)
        object.__setattr__(self, "shared_state_buffer", shared_state_buffer)
        object.__setattr__(
            self, "shared_state_buffer_preprocessor", shared_state_buffer_preprocessor
        )
        object.__setattr__(self, "func_kwargs", func_kwargs)

    def kwargs_of(self, count: int) -> list[dict[str, Any]]:
        """Keyword arguments for every one of `count` buckets.

        Raises:
            ValueError: There are not so many.
        """
        if self.func_kwargs is None:
            return [{} for _ in range(count)]
        if isinstance(self.func_kwargs, Mapping):
            return [dict(self.func_kwargs) for _ in range(count)]
        if len(self.func_kwargs) != count:
            raise ValueError(f"func_kwargs has {len(self.func_kwargs)} entries for {count} buckets")
        return [dict(kwargs) for kwargs in self.func_kwargs]


def bucket_model_trace(
    func: Callable[..., tuple[Any, Mapping[torch.Tensor, int]]],
    example_inputs: Sequence[Any],
    bucket_config: BucketModelConfig,
    compiler_workdir: str | Path | None = None,
    compiler_args: Arguments = None,
) -> torch.jit.ScriptModule:
    """Trace a model once for every shape, and choose among them at every call.

    Args:
        func: Returns the model and its `input_output_aliases`; called once for every bucket.
        example_inputs: For every bucket what `trace` takes.
        bucket_config: How a bucket is chosen.
        compiler_workdir: Directory for the graphs, "bucket_0" and so on.
        compiler_args: As for `trace`.

    Raises:
        ValueError: There is no bucket; the shared states do not fit a bucket's.
        TraceError: Buckets take or return different structures.
    """
    if not example_inputs:
        raise ValueError("example_inputs has no bucket")
    module = torch.nn.Module()
    shared = bucket_config.shared_state_buffer
    texts = set()
    types: dict[str, Any] = {}
    lent: list[tuple[TensorFacts, ...]] = []
    for number, kwargs in enumerate(bucket_config.kwargs_of(len(example_inputs))):
        model, aliases = func(**kwargs)
        folder = None if compiler_workdir is None else Path(compiler_workdir) / f"bucket_{number}"
        traced, source, states = trace_with_source(
            model,
            example_inputs[number],
            input_output_aliases=aliases,
            compiler_workdir=folder,
            compiler_args=compiler_args,
            lend=shared is not None,
        )
        module.add_module(f"bucket_{number}", traced)
        texts.add(source.text)
        types = source.types
        lent.append(states)
    if len(texts) > 1:
        raise TraceError("all buckets must take and return the same structure of tensors")
    types = {**types, "bucket_kernel": bucket_config.bucket_kernel()}
    shapes: Shapes = [[list(facts.shape) for facts in states] for states in lent]
    if shared is not None:
        maker = bucket_config.shared_state_buffer_preprocessor
        preprocessor = None if maker is None else maker()
        _check_states(lent, shapes, shared, preprocessor)
        for i, state in enumerate(shared):
            module.register_buffer(_STATE.format(i), state.detach().contiguous().clone())
        if preprocessor is not None:
            types["state_preprocessor"] = preprocessor
    module.eval()
    script = create_script_module(module, lambda _: [], share_types=False)
    define = script._c._define  # noqa: SLF001
    text = _choose(
        len(example_inputs),
        shapes,
        None if shared is None else len(shared),
        preprocess="state_preprocessor" in types,
    )
    define(script._concrete_type, text, types.get)  # noqa: SLF001
    text = texts.pop().format(call="self.run_bucket", rest="")
    define(script._concrete_type, text, types.get)  # noqa: SLF001
    return script  # type: ignore[no-any-return]


def _check_states(
    lent: Sequence[Sequence[TensorFacts]],
    shapes: Shapes,
    shared: Sequence[torch.Tensor],
    preprocessor: Callable[[Shapes, list[torch.Tensor], torch.Tensor], Any] | None,
) -> None:
    """Check that every bucket gets the states that it was traced with."""
    for number, states in enumerate(lent):
        if len(states) != len(shared):
            raise ValueError(
                f"shared_state_buffer has {len(shared)} tensors, but bucket {number} has "
                f"{len(states)} states among its input_output_aliases"
            )
        given = list(shared)
        if preprocessor is not None:
            given = preprocessor(
                shapes, [state.clone() for state in shared], torch.tensor([number])
            )
        if len(given) != len(states):
            raise ValueError(
                f"shared_state_buffer_preprocessor returns {len(given)} states for bucket "
                f"{number}, which has {len(states)}"
            )
        for i, (facts, state) in enumerate(zip(states, given, strict=True)):
            found = TensorFacts.of(facts.name, state)
            if found == facts:
                continue
            remedy = "" if preprocessor else "; a shared_state_buffer_preprocessor can cut it out"
            raise ValueError(
                f"bucket {number} was traced with the state {facts.name!r} as {facts}, but gets "
                f"shared state {i} as {found}{remedy}"
            )


def _choose(count: int, shapes: Shapes, states: int | None, *, preprocess: bool) -> str:
    """A method that runs the bucket that the kernel chooses."""
    lines = [
        "def run_bucket(self, inputs: List[Tensor]) -> List[Tensor]:",
        "    given, number = bucket_kernel(inputs)",
        "    bucket = int(number)",
        f"    if bucket < 0 or bucket >= {count}:",
        "        torch.ops.neuron.refuse(",
        f"            'bucket_kernel chose bucket {{}} of {count}'.format(bucket))",
    ]
    if states is not None:
        held = ", ".join(f"self.{_STATE.format(i)}" for i in range(states))
        lines.append(f"    states = torch.jit.annotate(List[Tensor], [{held}])")
    if preprocess:
        lines += [
            f"    shapes = torch.jit.annotate(List[List[List[int]]], {_typed(shapes)})",
            "    states = state_preprocessor(shapes, states, number)",
        ]
    for number in range(count):
        model = f"self.bucket_{number}.{ATTRIBUTE}"
        call = "forward_v2(given, " if states is None else "forward_states(given, states, "
        lines += [
            f"    if bucket == {number}:",
            f"        return torch.ops.neuron.{call}{model})",
        ]
    lines.append("    return given")
    return "\n".join(lines) + "\n"


def _typed(shapes: Shapes) -> str:
    """The shapes in TorchScript, in which an empty list is one of tensors unless told."""
    buckets = []
    for states in shapes:
        items = [str(shape) if shape else "torch.jit.annotate(List[int], [])" for shape in states]
        inner = f"[{', '.join(items)}]"
        buckets.append(inner if items else "torch.jit.annotate(List[List[int]], [])")
    return f"[{', '.join(buckets)}]"
