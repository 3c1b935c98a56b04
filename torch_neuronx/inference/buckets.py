"""`bucket_model_trace`: one model for several shapes of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.jit._recursive import create_script_module

from torch_neuronx.inference.errors import TraceError
from torch_neuronx.inference.placement import ATTRIBUTE
from torch_neuronx.inference.trace import Arguments, trace_with_source


@dataclass(frozen=True, slots=True, init=False)
class BucketModelConfig:
    """How a bucket is chosen for the inputs of a call.

    Attributes:
        bucket_kernel: Returns a function made by `torch.jit.script`, from the list of input tensors
            to (the list of tensors for the bucket, a tensor with the number of the bucket).
        func_kwargs: Keyword arguments for the function that makes the model: one dictionary, or one
            for every bucket.
    """

    bucket_kernel: Callable[[], Any]
    func_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None

    def __init__(
        self,
        bucket_kernel: Callable[[], Any],
        *_: Any,
        shared_state_buffer: Sequence[torch.Tensor] | None = None,
        shared_state_buffer_preprocessor: Callable[..., Any] | None = None,
        func_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Keep the configuration.

        Raises:
            NotImplementedError: For a state that buckets share.
        """
        if _:
            raise TypeError("BucketModelConfig takes one positional argument")
        if shared_state_buffer is not None or shared_state_buffer_preprocessor is not None:
            raise NotImplementedError(
                "buckets that share a state are not implemented: pass the state as an input, which "
                "input_output_aliases can update in place"
            )
        object.__setattr__(self, "bucket_kernel", bucket_kernel)
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
        ValueError: There is no bucket.
        TraceError: Buckets take or return different structures.
    """
    if not example_inputs:
        raise ValueError("example_inputs has no bucket")
    module = torch.nn.Module()
    texts = set()
    types: dict[str, Any] = {}
    for number, kwargs in enumerate(bucket_config.kwargs_of(len(example_inputs))):
        model, aliases = func(**kwargs)
        folder = None if compiler_workdir is None else Path(compiler_workdir) / f"bucket_{number}"
        traced, source = trace_with_source(
            model,
            example_inputs[number],
            input_output_aliases=aliases,
            compiler_workdir=folder,
            compiler_args=compiler_args,
        )
        module.add_module(f"bucket_{number}", traced)
        texts.add(source.text)
        types = source.types
    if len(texts) > 1:
        raise TraceError("all buckets must take and return the same structure of tensors")
    module.eval()
    script = create_script_module(module, lambda _: [], share_types=False)
    types = {**types, "bucket_kernel": bucket_config.bucket_kernel()}
    define = script._c._define  # noqa: SLF001
    define(script._concrete_type, _choose(len(example_inputs)), types.get)  # noqa: SLF001
    text = texts.pop().format(call="self.run_bucket", rest="")
    define(script._concrete_type, text, types.get)  # noqa: SLF001
    return script


def _choose(count: int) -> str:
    lines = [
        "def run_bucket(self, inputs: List[Tensor]) -> List[Tensor]:",
        "    given, number = bucket_kernel(inputs)",
        "    bucket = int(number)",
    ]
    for number in range(count):
        model = f"self.bucket_{number}.{ATTRIBUTE}"
        lines += [
            f"    if bucket == {number}:",
            f"        return torch.ops.neuron.forward_v2(given, {model})",
        ]
    text = f"bucket_kernel chose bucket {{}} of {count}"
    lines += [f"    raise ValueError({text!r}.format(bucket))"]
    return "\n".join(lines) + "\n"
