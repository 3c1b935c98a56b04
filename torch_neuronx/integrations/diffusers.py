"""Pipelines of diffusers whose models are compiled for NeuronCores.

    from torch_neuronx.integrations.diffusers import enable_neuron_compile, neuron_warmup

    pipe = pipe.to("neuron")
    enable_neuron_compile(pipe)
    neuron_warmup(pipe, "a dog", num_inference_steps=2)
    image = pipe("a dog").images[0]

Names and parameters are those of huggingface/diffusers pull request 13289, which has both as
methods of `DiffusionPipeline`; `add_pipeline_methods` makes them that. diffusers needs none of this
to run on the device in eager mode.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch.utils import _pytree as pytree

from neuronxcc.environment.compilation import TORCH_NEURONX_NEFF_CACHE_DIR
from neuronxcc.extras import install_command
from neuronxcc.progress import Progress
from torch_neuronx.integrations.compiled import CompiledCall

__all__ = ["add_pipeline_methods", "enable_neuron_compile", "neuron_warmup"]

_MODULE = "torch_neuronx.integrations.diffusers"
# An autoencoder is called by `encode` and `decode`, which cut images into tiles and slices in
# Python; these children do the work.
_AUTOENCODER = ("encoder", "decoder")


def enable_neuron_compile(
    pipe: Any,
    model_names: str | Iterable[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    fullgraph: bool = True,
) -> None:
    """Have a pipeline's models compiled by `torch.compile(backend="neuron")`, in place.

    A model stays the object it is: its class, configuration, dtype, weights, adapters, hooks and
    how it is saved don't change. It is compiled when it is first called, once for each shape. Of an
    autoencoder the encoder and the decoder are compiled, so tiling and slicing go on working.
    Enabling a model again replaces what was set for it.

    Args:
        pipe: A `DiffusionPipeline`.
        model_names: Which components, `["unet", "vae.decoder"]` for instance; None for all models.
            Components that are None are passed over if no names are given.
        cache_dir: Where to keep compiled programs, for this whole process: sets
            TORCH_NEURONX_NEFF_CACHE_DIR. None leaves that as it is.
        fullgraph: Whether a model that cannot be captured as one graph is an error.

    Raises:
        ImportError: diffusers is not installed.
        TypeError: `pipe` is no pipeline.
        ValueError: a name that isn't a model of the pipeline, or a model that `torch.compile`
            wraps.
    """
    models = _models(pipe)
    chosen = _chosen(pipe, models, model_names)
    for name in chosen:
        _check_not_wrapped(name, pipe.components[name.partition(".")[0]])
    if cache_dir is not None:
        TORCH_NEURONX_NEFF_CACHE_DIR.set(os.fspath(_directory(cache_dir)))
    for name in chosen:
        CompiledCall(models[name], name, fullgraph=fullgraph).install()


def neuron_warmup(pipe: Any, *args: Any, **kwargs: Any) -> None:
    """Run a pipeline once, so that everything is compiled before a run that counts.

    The run is `pipe(*args, **kwargs)`. Programs are made for shapes, so sizes, the number of images
    and whether there is guidance must be those of later runs; the number of steps need not. What
    the run returns is dropped, and it leaves no traces: random generators, schedulers and tensors
    that are passed are afterwards as before. Callbacks that are passed are called.

    Work of more than two seconds shows how far it is (TORCH_NEURONX_PROGRESS=0 switches that off).

    Args:
        pipe: A `DiffusionPipeline`.
        args: As for the pipeline.
        kwargs: As for the pipeline.

    Raises:
        ImportError: diffusers is not installed.
        TypeError: `pipe` is no pipeline.
    """
    _check_pipeline(pipe)
    args, kwargs = pytree.tree_map(_own_copy, (args, kwargs))
    title = f"warming {type(pipe).__name__} up"
    with ExitStack() as stack:
        stack.enter_context(_random_state())
        for component in pipe.components.values():
            if hasattr(component, "set_timesteps"):
                stack.enter_context(_scheduler_state(component))
        progress = stack.enter_context(Progress(title))
        stack.enter_context(_shown_by(pipe, progress))
        pipe(*args, **kwargs)
        torch.neuron.synchronize()  # type: ignore[attr-defined]


def add_pipeline_methods() -> None:
    """Make `enable_neuron_compile` and `neuron_warmup` methods of `DiffusionPipeline`.

    They stay until the process ends. Calling it again changes nothing.

    Raises:
        ImportError: diffusers is not installed.
        RuntimeError: diffusers has methods of these names itself.
    """
    pipeline = _pipeline_class()
    methods = {"enable_neuron_compile": enable_neuron_compile, "neuron_warmup": neuron_warmup}
    for name, method in methods.items():
        there = getattr(pipeline, name, None)
        if there is not None and there is not method:
            raise RuntimeError(
                f"DiffusionPipeline.{name} exists: this diffusers has the method itself\n"
                f"  remedy: use it, or call {_MODULE}.{name}(pipe, ...)"
            )
    for name, method in methods.items():
        setattr(pipeline, name, method)


def _pipeline_class() -> Any:
    try:
        from diffusers import DiffusionPipeline  # noqa: PLC0415 - seconds, and optional
    except ImportError as error:
        raise ImportError(
            f"{_MODULE} needs diffusers, which cannot be imported: {error}\n"
            f"  remedy: {install_command('diffusers')}"
        ) from error
    return DiffusionPipeline


def _check_pipeline(pipe: Any) -> None:
    if isinstance(pipe, _pipeline_class()):
        return
    remedy = ""
    if isinstance(pipe, torch.nn.Module):
        remedy = '\n  remedy: a model by itself is compiled by model.compile(backend="neuron")'
    raise TypeError(f"expected a DiffusionPipeline, got {type(pipe).__name__}{remedy}")


def _models(pipe: Any) -> dict[str, torch.nn.Module]:
    """The modules of a pipeline to compile, by name: components or parts ("vae.decoder")."""
    _check_pipeline(pipe)
    found: dict[str, torch.nn.Module] = {}
    for name, component in pipe.components.items():
        if not isinstance(component, torch.nn.Module):
            continue
        if hasattr(component, "encode") and hasattr(component, "decode"):
            parts = {part: getattr(component, part, None) for part in _AUTOENCODER}
            modules = {p: m for p, m in parts.items() if isinstance(m, torch.nn.Module)}
            found |= {f"{name}.{part}": module for part, module in modules.items()}
        else:
            found[name] = component
    return found


def _chosen(
    pipe: Any, models: Mapping[str, object], model_names: str | Iterable[str] | None
) -> list[str]:
    """The keys of `models` that `model_names` asks for, in order, each once."""
    if model_names is None:
        return list(models)
    names = [model_names] if isinstance(model_names, str) else list(model_names)
    chosen: dict[str, None] = {}
    for name in names:
        matching = [key for key in models if name in {key, key.partition(".")[0]}]
        if not matching:
            empty = (
                " has no" if pipe.components.get(name, pipe) is None else "'s models do not include"
            )
            raise ValueError(
                f"this {type(pipe).__name__}{empty} {name!r}\n  allowed: {', '.join(models)}"
            )
        chosen |= dict.fromkeys(matching)
    return list(chosen)


def _check_not_wrapped(name: str, component: torch.nn.Module) -> None:
    original = getattr(component, "_orig_mod", None)
    if isinstance(original, torch.nn.Module):
        part = name.partition(".")[0]
        raise ValueError(  # noqa: TRY004 - the pipeline's state is wrong, not an argument's type
            f"{part!r} is the result of torch.compile(), which compiles it already\n"
            f"  remedy: pipe.{part} = pipe.{part}._orig_mod, then enable_neuron_compile(pipe)"
        )


def _directory(cache_dir: str | os.PathLike[str]) -> str | Path:
    """A place for the cache that doesn't change its meaning with the working directory."""
    text = os.fspath(cache_dir)
    return text if "://" in text else Path(text).expanduser().absolute()


def _own_copy(value: Any) -> Any:
    """An argument for a run that may change it."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, torch.Generator):
        return value.clone_state()
    return value


@contextmanager
def _random_state() -> Iterator[None]:
    """Put the generators of PyTorch (CPU and all cores), NumPy and Python back at the end."""
    cores = range(torch.neuron.device_count())  # type: ignore[attr-defined]
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 - it is saved
    try:
        with torch.random.fork_rng(cores, device_type="neuron"):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002


@contextmanager
def _scheduler_state(scheduler: Any) -> Iterator[None]:
    """Put a scheduler's timesteps, counters and past model outputs back at the end."""
    # The configuration is frozen, and refuses to be copied.
    config = {k: v for k, v in vars(scheduler).items() if k == "_internal_dict"}
    state = deepcopy({k: v for k, v in vars(scheduler).items() if k not in config})
    try:
        yield
    finally:
        vars(scheduler).clear()
        vars(scheduler).update(config | state)


@contextmanager
def _shown_by(pipe: Any, progress: Progress) -> Iterator[None]:
    """Show the pipeline's steps on the line of `progress` and not by bars of their own."""
    own = vars(pipe).get("progress_bar")

    class Bar:
        """The attributes of tqdm's bars that a pipeline uses."""

        def __init__(self, iterable: Iterable[Any] | None = None, total: int | None = None) -> None:
            self.items = list(iterable) if iterable is not None else []
            self.total = total if total is not None else len(self.items)
            self.done = 0

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *error: object) -> None:
            return None

        def __iter__(self) -> Iterator[Any]:
            for item in self.items:
                self.update(0)
                yield item
                self.update()

        def update(self, count: int = 1) -> None:
            self.done += count
            progress.report("step", self.done, self.total)

        def set_postfix(self, *_: object, **__: object) -> None:
            return None

    pipe.progress_bar = Bar
    try:
        yield
    finally:
        if own is None:
            del pipe.progress_bar
        else:
            pipe.progress_bar = own
