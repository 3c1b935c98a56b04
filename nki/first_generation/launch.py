"""Kernels of the first generation as objects that are called with arrays.

A kernel here is one of today's (`nki.Kernel`) around an adapter: the adapter turns the tensors of
today into those of the first generation, runs the function once for every program of the launch
grid, and turns the results back.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import os
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from neuronxcc.perf import Prediction
from neuronxcc.targets import Target, get_target
from nki import tracer
from nki.checks.capacity import Capacity, capacity_of
from nki.checks.flow import Times
from nki.context import current_core
from nki.errors import NkiError, NkiIndexError, NkiWarning
from nki.first_generation.language.creation import ndarray
from nki.first_generation.state import State, running, use_state
from nki.first_generation.syntax import spelled_out
from nki.first_generation.tensors import Tensor
from nki.first_generation.writes import copy, on_sbuf
from nki.frontends import Frontend
from nki.kernel import Kernel
from nki.memory import MemoryRegion
from nki.perf import predict_recording
from nki.perf.kernels import recorded
from nki.perf.profile import profile_paths, write_profile
from nki.recording import Recording, TileForm
from nki.tensor import NkiTensor

__all__ = ["FirstKernel", "baremetal", "benchmark", "jit", "profile", "simulate_kernel", "trace"]

_MODES = ("auto", "simulation", "baremetal", "benchmark", "jax", "torchxla", "trace")


class _Today(Kernel):
    """A kernel of today that may be built for a target of its own."""

    def __init__(self, function: Callable[..., Any], platform: str | None) -> None:
        super().__init__(function)
        self.platform = platform

    def target(self, frontend: Frontend, values: list[Any]) -> Target:
        """Return the target of the decorator, or else that of the arguments."""
        if self.platform is None:
            return super().target(frontend, values)
        return get_target(self.platform)

    def _record(self, *how: Any) -> Recording:
        return replace(super()._record(*how), compiled=True)


class FirstKernel:
    """A kernel of the first generation.

    ``kernel(...)`` runs one program, ``kernel[4, 2](...)`` one for every place of a launch grid.
    Results are what the function returns; arguments that it stores to are changed.

    Attributes:
        func: what was decorated.
        grid: programs along each axis; () without a grid.
        platform: target that it is built for; None is the default one.
    """

    def __init__(self, func: Callable[..., Any], platform: str | None = None) -> None:
        """Wrap a function."""
        functools.update_wrapper(self, func)
        self.func = func
        self.grid: tuple[int, ...] = ()
        self.platform = platform
        self._today: dict[tuple[tuple[int, ...], bool], _Today] = {}
        self._body = spelled_out(func)
        self.today()  # so that tracers of calls find it made

    def __getitem__(self, grid: Any) -> FirstKernel:
        """Return the kernel with a launch grid.

        Raises:
            NkiError: something that is no number of programs (NKI269).
        """
        sizes = grid if isinstance(grid, tuple) else (grid,)
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        try:
            made.grid = tuple(int(n) for n in sizes)
        except (TypeError, ValueError):
            made.grid = (0,)
        if min(made.grid) < 1:
            raise NkiError(
                "NKI269",
                f"{self.func.__name__}[{grid!r}]",
                "give a number of at least 1, nl.nc(n) or nl.spmd_dim(...) for every axis",
            )
        made.today()
        return made

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind like a function, so that methods can be kernels."""
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel; within another one, run its function.

        Raises:
            IndexError: an index is out of bounds, in NumPy's words, which is what the simulator of
                this generation is documented to raise; its cause is the NkiIndexError, with the
                user's line and what to do.
        """
        # A tracer that reads this code may know no context variables, and is outside of kernels.
        if not tracer.is_active() and running():
            return self._body(*args, **kwargs)
        kernel = self.today()
        try:
            return kernel(*args, **kwargs)
        except NkiIndexError as error:
            raise _in_numpys_words(error, kernel) from error

    def capacity(self, *args: Any, **kwargs: Any) -> Capacity:
        """Return how much of SBUF and PSUM a call with these arguments takes.

        Tensors count from their first to their last instruction, in the order of the kernel. What
        does not fit is named: the compiler of this generation would spill it, unless it can avoid
        that by fusing or reordering loops, so it is the most that is spilled. The kernel is
        recorded for that, and not run.

        Raises:
            NkiError: the kernel breaks a rule; or tensors with explicit addresses leave no room for
                the others (NKI220, NKI221).
        """
        recording = self.today().record(*args, **kwargs)
        return capacity_of(recording, Times(recording, lambda _: 0))

    def predict(self, *args: Any, **kwargs: Any) -> Prediction:
        """Return how long a call with these arguments would take on hardware, by the model.

        The kernel is recorded for that, and not run. The programs of a grid run one after the
        other on one core.

        Raises:
            NkiError: the kernel breaks a rule.
        """
        return self._predictor(args, kwargs)()

    def _predictor(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Prediction]:
        """Return what predicts the time of a call; it keeps none of the arguments."""
        recording, shape = recorded(self.today(), args, kwargs)
        return functools.cache(lambda: predict_recording(recording, compiled=True, shape=shape))

    def __fingerprint__(self) -> tuple[Any, ...]:
        """Return what it consists of, for the cache on disk."""
        return self.func, self.grid, self.platform, bool(getattr(self, "ignores_addresses", False))

    def today(self) -> Kernel:
        """Return the kernel of today that it is."""
        key = (self.grid, bool(getattr(self, "ignores_addresses", False)))
        found = self._today.get(key)
        if found is None:
            adapter = _adapter(self._body, self.func, self.grid, addresses=not key[1])
            found = self._today[key] = _Today(adapter, self.platform)
        return found


_OUT_OF_BOUNDS = re.compile(r"index (-?\d+) is out of bounds: it must be from 0 to below (\d+)")


def _in_numpys_words(error: NkiIndexError, kernel: Kernel) -> IndexError:
    """Return what the simulator of this generation raised: it counted elements of the tensor."""
    match = _OUT_OF_BOUNDS.search(error.what)
    if match is None:
        return error
    index, bound = int(match[1]), int(match[2])
    step = next(_steps(kernel, error.where, bound), 1)
    return IndexError(f"index {index * step} is out of bounds for axis 0 with size {bound * step}")


def _steps(kernel: Kernel, where: tuple[str, int], bound: int) -> Iterator[int]:
    """Elements from one index to the next, of what a line of the kernel accesses by indices."""
    for launch in kernel.launches():
        recording = launch.recording
        for event in recording.events():
            if recording.locations[event.location] == where:
                forms = [form for _, form, _ in event.operands() if isinstance(form, TileForm)]
                moved = [form.indirect for form in forms if form.indirect is not None]
                yield from (found.stride for found in moved if found.bound == bound)


def _adapter(
    body: Callable[..., Any], func: Callable[..., Any], grid: tuple[int, ...], *, addresses: bool
) -> Callable[..., Any]:
    """Return a function of today's tensors that runs all programs."""

    def adapter(*args: Any, **kwargs: Any) -> Any:
        given = _map(args, NkiTensor, lambda t: Tensor((t,)))
        named = _map(kwargs, NkiTensor, lambda t: Tensor((t,)))
        result = None
        with use_state(State(grid, addresses=addresses)) as state, _placed_by_a_compiler():
            for number, program in enumerate(itertools.product(*map(range, grid))):
                state.program, state.created = program, 0
                returned = body(*given, **named)
                state.flush()
                if number == 0:
                    result = returned
            if math.prod(grid) > 1:
                _check_shared(result)
            return _map(result, Tensor, _returned)

    functools.update_wrapper(adapter, func)
    adapter.__signature__ = inspect.signature(func)  # type: ignore[attr-defined]
    return adapter


@contextmanager
def _placed_by_a_compiler() -> Iterator[None]:
    """Let tiles be larger than there is room for: the compiler of this generation spills."""
    core = current_core()
    before, core.spills = core.spills, True
    try:
        yield
    finally:
        core.spills = before


def _map(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, (tuple, list)):
        items = [_map(item, kind, function) for item in value]
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {key: _map(item, kind, function) for key, item in value.items()}
    return value


def _check_shared(result: Any) -> None:
    """Refuse results that the programs of a grid do not share."""

    def check(tensor: Tensor) -> Tensor:
        if tensor.region is not MemoryRegion.shared_hbm:
            raise NkiError(
                "NKI269",
                f"a kernel on a grid returns a tensor of shape {tensor.shape} in "
                f"{tensor.region.name}, which every program has of its own",
                "create it with buffer=nl.shared_hbm",
            )
        return tensor

    _map(result, Tensor, check)


def _returned(tensor: Tensor) -> NkiTensor:
    """Return a result in shared HBM, where today's kernels have theirs."""
    if tensor.region is MemoryRegion.shared_hbm:
        return tensor.tile()
    source = on_sbuf(tensor.tile())
    made = ndarray(source.shape, tensor.dtype, buffer=MemoryRegion.shared_hbm).tile()
    copy(made, source)
    return made


# --- decorators ----------------------------------------------------------------------------------


def jit(
    func: Any = None, mode: str = "auto", platform_target: str | None = None, **options: Any
) -> Any:
    """Make a function a kernel.

    Args:
        func: the function, or a kernel to build for another target.
        mode: ``auto``, ``simulation``, ``baremetal``, ``jax`` or ``torchxla``, which all run it
            here; ``benchmark`` measures it too.
        platform_target: ``trn1``, ``inf2``, ``trn2`` or ``trn3``.
        options: of the compiler; they change nothing.

    Raises:
        NkiError: an unknown mode (NKI268).
        neuronxcc.targets.UnknownTargetError: an unknown target.
    """
    if mode not in _MODES:
        raise NkiError(
            "NKI268", f"nki.jit was given mode={mode!r}", f"use one of {', '.join(_MODES)}"
        )
    if func is None:
        return functools.partial(jit, mode=mode, platform_target=platform_target, **options)
    if mode == "benchmark":
        return benchmark(func, platform_target=platform_target, **options)
    plain = func.func if isinstance(func, FirstKernel) else func
    if platform_target is not None:
        get_target(platform_target)
    made = FirstKernel(plain, platform_target)
    if getattr(func, "ignores_addresses", False):
        made.ignores_addresses = True  # type: ignore[attr-defined]
    return made


def trace(func: Any = None, **options: Any) -> Any:
    """Make a function a kernel for `simulate_kernel`; the same as `jit`."""
    return jit(func, **options) if func is not None else functools.partial(trace, **options)


def simulate_kernel(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a kernel, or a function, on NumPy arrays; arguments that it stores to are changed."""
    made = kernel if isinstance(kernel, FirstKernel) else jit(kernel)
    return made(*args, **kwargs)


_FILES = ("save_neff_name", "save_trace_name", "artifacts_dir")


def _no_files(name: str, options: dict[str, Any]) -> None:
    asked = [key for key in _FILES if options.get(key) is not None]
    if asked:
        warnings.warn(
            f"nki.{name} writes no files here, so {', '.join(asked)} has no effect [NKI268]",
            NkiWarning,
            stacklevel=3,
        )


def baremetal(kernel: Any = None, **options: Any) -> Any:
    """Make a function a kernel that is called with NumPy arrays; no files are written."""
    if kernel is None:
        return functools.partial(baremetal, **options)
    _no_files("baremetal", options)
    return jit(kernel, platform_target=options.get("platform_target"))


class Latency:
    """Latencies of some runs.

    Attributes:
        samples: microseconds, in the order of the runs.
    """

    kind = "on this computer"

    def __init__(self, samples: list[float]) -> None:
        self.samples = samples

    def get_latency_percentile(self, percentile: int) -> int:
        """Return a percentile in microseconds.

        Raises:
            NkiError: it is none of 0 to 100 (NKI268).
        """
        if not 0 <= percentile <= 100:
            raise NkiError(
                "NKI268", f"percentile {percentile} was asked for", "use one from 0 to 100"
            )
        ordered = sorted(self.samples)
        at = min(len(ordered) - 1, round(percentile / 100 * (len(ordered) - 1)))
        return round(ordered[at])

    def __repr__(self) -> str:
        middle = statistics.median(self.samples)
        runs = f"{len(self.samples)} runs {self.kind}"
        return f"{type(self).__name__}({runs}, median {middle:.0f} us)"


class NcLatency(Latency):
    """What a NeuronCore would take by the performance model: all percentiles are equal.

    Attributes:
        prediction: where the number comes from, and how far it may be off.
    """

    def __init__(self, prediction: Prediction) -> None:
        super().__init__([prediction.latency_us])
        self.prediction = prediction

    def __repr__(self) -> str:
        made = self.prediction
        kind = "calibrated" if made.calibrated else "not calibrated"
        low, high = made.interval_us
        return (
            f"NcLatency(predicted {made.latency_us:.0f} us on {made.target}, {low:.0f} to "
            f"{high:.0f} us, model {made.model}, {kind})"
        )


class BenchmarkResult:
    """The results of `benchmark`.

    Attributes:
        host_latency: of the runs on this computer, with the transfer of arguments.
    """

    def __init__(self, host_latency: Latency, predict: Callable[[], Prediction]) -> None:
        """Keep the measurements, and what predicts the time on hardware when it is asked for."""
        self.host_latency = host_latency
        self._predict = predict

    @functools.cached_property
    def nc_latency(self) -> NcLatency:
        """What a NeuronCore would take, predicted; see docs/performance.md."""
        return NcLatency(self._predict())


class BenchmarkedKernel(FirstKernel):
    """A kernel that is measured when it is called.

    Attributes:
        warmup: runs before measuring.
        iters: runs that are measured.
    """

    def __init__(
        self, func: Callable[..., Any], platform: str | None, warmup: int, iters: int
    ) -> None:
        """Wrap a function."""
        super().__init__(func, platform)
        self.warmup = warmup
        self.iters = iters
        # One for all grids: ``kernel[4](x)`` leaves its result in `kernel` too.
        self._results: list[BenchmarkResult] = []

    @property
    def benchmark_result(self) -> BenchmarkResult | None:
        """Of the last call, on any grid; None before it."""
        return self._results[-1] if self._results else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel on its arguments, then measure it on copies."""
        if running():
            return super().__call__(*args, **kwargs)
        predicted = self._predictor(args, kwargs)
        result = super().__call__(*args, **kwargs)
        copies = _map(args, object, _copied), _map(kwargs, object, _copied)
        samples: list[float] = []
        for run in range(self.warmup + self.iters):
            start = time.perf_counter()
            super().__call__(*copies[0], **copies[1])
            if run >= self.warmup:
                samples.append((time.perf_counter() - start) * 1e6)
        self._results[:] = [BenchmarkResult(Latency(samples), predicted)]
        return result


def _copied(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_copied(item) for item in value)
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return value.copy() if hasattr(value, "dtype") and hasattr(value, "copy") else value


def benchmark(kernel: Any = None, *, warmup: int = 10, iters: int = 100, **options: Any) -> Any:
    """Make a function a kernel that measures itself when it is called.

    ``kernel.benchmark_result.nc_latency.get_latency_percentile(50)`` is what a NeuronCore of the
    target would take by the performance model, with the launch; all percentiles are equal.
    ``host_latency`` is the time of the emulator on this computer, with the transfer of arguments.

    Args:
        kernel: the function.
        warmup: runs before measuring.
        iters: runs that are measured, at least 1.
        options: of the compiler; names of files have no effect, and a warning says so.
    """
    if kernel is None:
        return functools.partial(benchmark, warmup=warmup, iters=iters, **options)
    _no_files("benchmark", options)
    plain = kernel.func if isinstance(kernel, FirstKernel) else kernel
    return BenchmarkedKernel(plain, options.get("platform_target"), warmup, max(1, iters))


class ProfiledKernel(FirstKernel):
    """A kernel that is put on a timeline when it is called.

    Attributes:
        folder: where its profile is written, None if it is not.
        stem: of the files' names.
    """

    def __init__(
        self, func: Callable[..., Any], platform: str | None, folder: Path | None, stem: str
    ) -> None:
        """Wrap a function."""
        super().__init__(func, platform)
        self.folder = folder
        self.stem = stem
        # One for all grids: ``kernel[4](x)`` leaves its result in `kernel` too.
        self._results: list[Callable[[], Prediction]] = []

    @property
    def prediction(self) -> Prediction | None:
        """The profile of the last call by the performance model; None before it."""
        return self._results[-1]() if self._results else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel, and remember what it did."""
        if tracer.is_active() or running():
            return super().__call__(*args, **kwargs)
        predicted = self._predictor(args, kwargs)
        result = super().__call__(*args, **kwargs)
        self._results[:] = [predicted]
        if self.folder is not None:
            write_profile(predicted(), self.folder, self.stem)
        return result


_UNUSED = ("save_neff_name", "additional_compile_opt", "profile_nth")


def profile(
    func: Any = None,
    *,
    working_directory: str | os.PathLike[str] | None = None,
    save_trace_name: str | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Any:
    """Make a function a kernel that keeps the profile of its last call.

    ``kernel.prediction`` is how long a NeuronCore would take by the performance model, by engine
    and by line. There is no profile of hardware in the vendor's format: what is written instead,
    if a directory or a name is given, is one HTML page, a trace for https://ui.perfetto.dev and
    the summary, as ``NAME.html``, ``NAME.json`` and ``NAME.txt``.

    Args:
        func: the function.
        working_directory: where the files are written; the current directory if only a name is
            given.
        save_trace_name: its stem is that of the files; by default "profile".
        overwrite: files of these names that exist are replaced.
        options: of the compiler; those without effect are named in a warning.

    Raises:
        FileExistsError: a file exists, and `overwrite` is false.
    """
    if func is None:
        return functools.partial(
            profile,
            working_directory=working_directory,
            save_trace_name=save_trace_name,
            overwrite=overwrite,
            **options,
        )
    asked = [name for name in _UNUSED if options.get(name) is not None]
    if asked:
        warnings.warn(
            "nki.profile predicts, and each run is predicted alike: "
            f"{', '.join(asked)} has no effect [NKI268]",
            NkiWarning,
            stacklevel=2,
        )
    folder = None
    stem = Path(save_trace_name or "profile").stem
    if working_directory is not None or save_trace_name is not None:
        folder = Path(working_directory or ".")
        there = [path for path in profile_paths(folder, stem) if path.exists()]
        if there and not overwrite:
            raise FileExistsError(f"{there[0]} exists; pass overwrite=True to replace it")
    plain = func.func if isinstance(func, FirstKernel) else func
    return ProfiledKernel(plain, options.get("platform_target"), folder, stem)
