"""Settings of the `torch.compile` backend, in the module that existing code imports them from."""

from __future__ import annotations

from neuronxcc.options import Options

__all__ = ["get_model_name", "program_name", "set_model_name"]

_model = {"name": ""}


def set_model_name(name: str) -> None:
    """Name the programs that are compiled from now on, in the compile cache and in their NEFFs.

    The name is for people: it finds the files of a model and stands in messages. It has no part in
    the cache's key, so a program that two models share keeps the name it got first.

    `torch.compile` compiles when its function is first called, so that is when the name counts.
    Where several models are wrapped before the first is called, name each by
    `torch.compile(..., options={"model_name": "unet"})` instead, which wins.

    Args:
        name: The name; "" for none.

    Raises:
        TypeError: it is no text.
    """
    if not isinstance(name, str):
        raise TypeError(f"a model name is a str, got {type(name).__name__}")
    _model["name"] = name


def get_model_name() -> str:
    """The name given last, "" if there is none."""
    return _model["name"]


def program_name(graph: str, options: Options) -> str:
    """Name of a graph's program: that of its model, if it has one, and of the graph."""
    model = options.wrapper.model_name or get_model_name()
    return f"{model}.{graph}" if model else graph
