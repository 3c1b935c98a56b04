"""A module that is compiled where it is, and stays usable by libraries that hook into modules."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from neuronxcc.progress import report

# Sizes, dtypes, adapters and their scales are part of what a program is compiled for. A pipeline
# that is tried out with many of them is no reason to stop, as PyTorch does after 8.
RECOMPILE_LIMIT = 64


class CompiledCall:
    """The call of a compiled module; stands where `Module.compile()` puts one.

    `nn.Module` looks for it with every call, doesn't copy or pickle it (a deep copy of a module is
    not compiled), and loading, saving and moving the module never meet it.

    accelerate's offloading replaces a module's `forward` by one that fetches the weights before it
    calls the original. Weights cannot be moved from within a compiled graph, so then only the
    original is compiled.

    Args:
        module: What to compile.
        name: Names its programs, in the cache and in messages.
        fullgraph: As for `torch.compile`.
    """

    def __init__(self, module: torch.nn.Module, name: str, *, fullgraph: bool) -> None:
        self.module = module
        self.name = name
        self.fullgraph = fullgraph
        self._plain = self._compile(module._call_impl)
        self._original: Callable[..., Any] | None = None
        self._hooked = self._plain

    def install(self) -> None:
        """Let the module's calls come here."""
        _install_recorders(self.module)
        self.module._compiled_call_impl = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module.

        Raises:
            RuntimeError: its weights are not there when it is called.
        """
        report(self.name)  # for the line that `neuron_warmup` shows
        first = next(self.module.parameters(), None)
        if first is not None and first.is_meta:
            raise RuntimeError(
                f"{self.name!r} is compiled, but its weights are fetched layer by layer, which no "
                "compiled program can do\n"
                "  remedy: enable_model_cpu_offload() instead of enable_sequential_cpu_offload(), "
                "or don't compile this model (model_names=...)"
            )
        original = vars(self.module).get("_old_forward")
        if original is None:
            return self._plain(*args, **kwargs)
        if original is not self._original:
            self._original, self._hooked = original, self._compile(original)
        # What accelerate put into `forward` looks the original up in every call.
        vars(self.module)["_old_forward"] = self._hooked
        try:
            return self.module._call_impl(*args, **kwargs)
        finally:
            vars(self.module)["_old_forward"] = original

    def _compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(  # type: ignore[call-overload]
            function,
            backend="neuron",
            fullgraph=self.fullgraph,
            dynamic=False,  # as on hardware: a program has one shape
            options={"model_name": self.name},
            # All modules share the code of `_call_impl`; each is to count for itself.
            isolate_recompiles=True,
            recompile_limit=RECOMPILE_LIMIT,
        )
        return compiled


def _install_recorders(module: torch.nn.Module) -> None:
    """Let models of transformers record hidden states from their first call on.

    transformers 5 installs the hooks for that when hidden states are first asked for, under a lock
    that Dynamo cannot trace, so the first call of a compiled text encoder would fail.

    A model installs them in the models in it too, also where those have them from a call of their
    own before: each hidden state would be recorded twice. So what is added to modules that have
    recorders is taken off again.
    """
    if "transformers" not in sys.modules:
        return
    try:
        from transformers import PreTrainedModel  # noqa: PLC0415 - it is optional
        from transformers.utils.output_capturing import maybe_install_capturing_hooks  # noqa: PLC0415
    except ImportError:  # releases before 5 have no hooks and no lock
        return
    home = maybe_install_capturing_hooks.__module__

    def recorders(part: torch.nn.Module) -> set[int]:
        hooks = part._forward_hooks.items()
        return {key for key, hook in hooks if getattr(hook, "__module__", "") == home}

    for model in module.modules():
        if isinstance(model, PreTrainedModel):
            before = {part: keys for part in model.modules() if (keys := recorders(part))}
            maybe_install_capturing_hooks(model)
            for part, keys in before.items():
                for key in recorders(part) - keys:
                    del part._forward_hooks[key]
