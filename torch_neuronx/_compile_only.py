"""Compile without running, also for another target: `torch_neuronx.compile_only`.

The state belongs to the process and not to a thread, since autograd compiles and runs backward
graphs in threads of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from neuronxcc.environment.compilation import NEURON_EXTRACT_GRAPHS_ONLY

# This file is imported by `import torch`; the compiler is not until it is needed.
if TYPE_CHECKING:
    from neuronxcc.cache.cache import CompileCache, Compiled
    from neuronxcc.options import Options


class CompileOnlyError(RuntimeError):
    """A program was compiled but there is no file to show for it."""

    __module__ = "torch_neuronx"


class CompileOnly:
    """The results of `compile_only`.

    Attributes:
        paths: The NEFF files of the graphs so far, each once, in the order of their compilation.
    """

    def __init__(self, overrides: Mapping[str, object]) -> None:
        self._overrides = dict(overrides)
        self._lock = threading.Lock()
        self.paths: list[Path] = []
        self._target = ""

    @property
    def target(self) -> str:
        """Name of the target that is compiled for.

        Raises:
            OptionError: The options are not possible.
        """
        if not self._target:
            self._target = self.options(None).target
        return self._target

    def options(self, given: Mapping[str, object] | None) -> Options:
        """Options of a compilation: NEURON_CC_FLAGS, then `torch.compile`'s, then ours.

        Raises:
            OptionError: They are not possible together.
        """
        from neuronxcc.options import from_environment  # noqa: PLC0415

        return from_environment({**_by_name(given or {}), **self._overrides})

    def cache(self, options: Options) -> CompileCache:
        """The cache to compile in."""
        from neuronxcc.cache.cache import open_cache  # noqa: PLC0415

        return open_cache(options.wrapper)

    def add(self, name: str, compiled: Compiled) -> None:
        """Note a graph's program.

        Raises:
            CompileOnlyError: It could not be kept.
        """
        if compiled.path is None:
            raise CompileOnlyError(
                f"{name} was compiled for {self.target}, but its NEFF could not be kept; pass "
                "compile_only(cache_dir=...) a directory that can be written to"
            )
        with self._lock:
            if compiled.path not in self.paths:
                self.paths.append(compiled.path)


class Collecting(CompileOnly):
    """The trial run of `neuron_parallel_compile`: graphs are kept in the cache, not compiled."""


# Those that are open, the innermost last. Compiled functions look at it with every call.
OPEN: list[CompileOnly] = []


def collecting() -> bool:
    """Return whether graphs are to be collected instead of compiled."""
    return bool(OPEN) and isinstance(OPEN[-1], Collecting)


def collect_if_asked() -> None:
    """Begin to collect if the environment asks for it."""
    if NEURON_EXTRACT_GRAPHS_ONLY.get() and not OPEN:
        OPEN.append(Collecting({}))


@contextmanager
def compile_only(
    target: str | None = None,
    *,
    cache_dir: str | Path | None = None,
    options: Mapping[str, object] | None = None,
) -> Iterator[CompileOnly]:
    """Inside, compiled functions are compiled and not run.

    Calling one writes the NEFFs of its graphs to the compile cache and returns tensors of the right
    shapes, dtypes, strides and devices **that hold zeros**; nothing is computed, tensors that would
    be updated in place keep their content, and no random numbers are drawn. What is not compiled
    runs as ever, in particular eager operators between graphs, and Python that looks at the zeros.
    To compile a backward pass, run it inside too.

    After the block the same functions run again as usual; nothing has to be reset.

    Args:
        target: Compile for this one, "trn3"; the emulated machine's if None.
        cache_dir: Directory or URL for the NEFFs instead of the usual cache.
        options: Further options, as in `torch.compile(options=...)`; they win over its own.

    Yields:
        What collects the files: `paths`, `target`.

    Raises:
        OptionError: The options are not possible, such as LNC=2 on trn1 (NCC_EARG001).
        CompileOnlyError: From the compiled function: its NEFF could not be written.
    """
    overrides: dict[str, object] = _by_name(options or {})
    if target is not None:
        overrides["target"] = target
    if cache_dir is not None:
        overrides["cache_dir"] = str(cache_dir)
    request = CompileOnly(overrides)
    request.target  # noqa: B018 - a wrong option is told at once
    OPEN.append(request)
    try:
        yield request
    finally:
        OPEN.remove(request)


def active() -> CompileOnly | None:
    """The innermost `compile_only` that is open in the process."""
    return OPEN[-1] if OPEN else None


def settings_of(options: Mapping[str, object]) -> Options:
    """Return the options of `torch.compile(options=...)`; those of an open `compile_only` win.

    Raises:
        OptionError: The options are not possible.
    """
    from neuronxcc.options import from_environment  # noqa: PLC0415

    return OPEN[-1].options(options) if OPEN else from_environment(options)


def _by_name(options: Mapping[str, object]) -> dict[str, object]:
    """Options under one spelling of their names, so that the later of two wins."""
    return {name.strip().lstrip("-").replace("-", "_"): value for name, value in options.items()}


collect_if_asked()
