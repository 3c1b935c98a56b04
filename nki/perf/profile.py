"""The profile of a kernel, predicted: a page, a trace and a summary as files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neuronxcc.files import write_whole
from neuronxcc.perf import Parameters, Prediction, explorer, page, trace
from nki.perf.kernels import predict

__all__ = ["profile", "profile_paths", "write_profile"]


def profile(
    kernel: Callable[..., Any],
    *args: Any,
    folder: str | os.PathLike[str],
    name: str = "profile",
    parameters: Parameters | None = None,
    tables: bool = False,
    **kwargs: Any,
) -> Prediction:
    """Predict a kernel's time, and write what there is to look at.

    Args:
        kernel: of either generation, see `nki.perf.predict`.
        args: as in a call.
        folder: where ``NAME.html`` (one page, without a network), ``NAME.json`` (a trace for
            https://ui.perfetto.dev) and ``NAME.txt`` (the summary) are written.
        name: stem of the files.
        parameters: of the model.
        tables: write Neuron Explorer's tables, too, into the folder ``NAME``; `neuron-explorer view
            -d` shows them.
        kwargs: as in a call.

    Raises:
        NkiError: the kernel breaks a rule.
        ModuleNotFoundError: tables are wanted, and pyarrow is not installed.
    """
    made = predict(kernel, *args, parameters=parameters, **kwargs)
    write_profile(made, Path(folder), name)
    if tables:
        explorer.save(made, Path(folder, name))
    return made


def profile_paths(folder: Path, name: str) -> tuple[Path, Path, Path]:
    """Return the files of a profile: the page, the trace and the summary."""
    html, json, text = (folder / f"{name}.{kind}" for kind in ("html", "json", "txt"))
    return html, json, text


def write_profile(made: Prediction, folder: Path, name: str) -> tuple[Path, Path, Path]:
    """Write a prediction's files, which are replaced if they exist; return them."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = profile_paths(folder, name)
    page.save(made, paths[0])
    trace.save(made, paths[1])
    write_whole(paths[2], f"{made}\n".encode())
    return paths
