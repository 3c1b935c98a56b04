"""`nki.jit` and `nki.simulate`: kernels as objects that are called with arrays."""

from __future__ import annotations

import copy
import enum
import functools
import inspect
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from neuronxcc.environment.kernels import (
    NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE,
    NKI_PRECISE_FP,
    TORCH_NEURONX_NKI_CHECKS,
    TORCH_NEURONX_NKI_EXECUTOR,
    TORCH_NEURONX_NKI_LINT,
    TORCH_NEURONX_NKI_VERSION,
)
from neuronxcc.environment.machine import NEURON_PLATFORM_TARGET_OVERRIDE
from neuronxcc.targets import Target
from nki import artifacts, tracer
from nki.context import current_run
from nki.errors import NkiError, NkiTypeError
from nki.fingerprint import fingerprint
from nki.frontends import Frontend, NumpyFrontend, frontend_of
from nki.launch import Launch, Slot, record
from nki.lint import check_arguments, check_python, enforce
from nki.lint.switch import mode
from nki.objects import copied, fields_of
from nki.recording import Grid, Recording
from nki.schedule import Edges, edges_of
from nki.store import prepare
from nki.trees import rebuilt

__all__ = ["Kernel", "jit", "kernel_of", "simulate"]

_CORES = (1, 2)
# Environment that changes what a recording is, so that it is part of every signature.
_ENVIRONMENT = (
    NEURON_PLATFORM_TARGET_OVERRIDE, NKI_PRECISE_FP, TORCH_NEURONX_NKI_LINT,
    TORCH_NEURONX_NKI_CHECKS, TORCH_NEURONX_NKI_EXECUTOR, TORCH_NEURONX_NKI_VERSION,
    NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE,
)  # fmt: skip


class Kernel:
    """A function of the kernel language that is called with arrays.

    It runs as Python once for each signature: shapes and types of arrays, all other arguments,
    target, number of cores. Within another kernel it is a plain function.

    Attributes:
        function: what was decorated.
        grid: programs along each axis of the launch grid, () without one.
        edges: what its schedule demands.
        handle: names it, whatever its grid, to those who trace programs (`nki.tracer`): a string is
            a constant to all of them.
    """

    def __init__(self, function: Callable[..., Any], grid: Grid = ()) -> None:
        """Wrap a function."""
        function = _named(function)
        functools.update_wrapper(self, function)
        self.function = function
        self.grid = grid
        self.edges: Edges = ()
        self._signature = inspect.signature(function)
        self._launches: dict[Any, Launch] = {}
        self._enrol()

    def _enrol(self) -> None:
        """Take a handle that no other kernel has; it stands for this one as long as that exists."""
        self.handle = f"{self.function.__name__}@{next(_NUMBERS)}"
        _KERNELS[self.handle] = self

    @property
    def func(self) -> Callable[..., Any]:
        """What was decorated, by the name that public code reads: its source is rewritten there."""
        return self.function

    def __getitem__(self, cores: Any) -> Kernel:
        """Return the kernel on a number of physical cores: ``kernel[2](...)``.

        Raises:
            NkiError: another number than 1 or 2 (NKI209).
        """
        grid = cores if isinstance(cores, tuple) else (cores,)
        if len(grid) != 1 or isinstance(grid[0], bool) or grid[0] not in _CORES:
            raise NkiError(
                "NKI209",
                f"{self.function.__name__}[{cores!r}]",
                "a logical core has one or two physical ones: use kernel[1] or kernel[2]",
            )
        return self.on(tuple(int(n) for n in grid))

    def on(self, grid: Grid) -> Kernel:
        """Return the kernel with a launch grid; what was recorded for it is kept."""
        made = copy.copy(self)
        made.grid = grid
        return made

    def with_schedule(self, edges: Any) -> Kernel:
        """Return the kernel with dependencies between named instructions.

        Args:
            edges: pairs of a name and a name, or a list of names, that it waits for. Instructions
                run here in program order, so edges are checked and change no result.

        Raises:
            NkiTypeError: no such pairs (NKI280).
        """
        made = copy.copy(self)
        made.edges = edges_of(edges)
        made._enrol()  # noqa: SLF001 (its own class)
        return made

    def __fingerprint__(self) -> tuple[Any, ...]:
        """Its parts, see `nki.fingerprint`."""
        return self.function, self.grid, self.edges

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind like a function, so that methods can be kernels."""
        return self if instance is None else BoundKernel(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel.

        Args:
            args: arrays, and values that are known when the kernel is built.
            kwargs: likewise, by name.

        Returns:
            What the function returns, with an array of the arguments' kind for every tensor.

        Raises:
            NkiError: the kernel or its arguments break a rule.
        """
        if tracer.is_active():
            return tracer.traced(self.handle, (self.grid, self.edges), args, kwargs)
        return tracer.run(self, args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the kernel now, whoever traces the program."""
        if current_run() is not None:
            return self.function(*args, **kwargs)
        launch, frontend, values = self.prepared([(args, kwargs)])
        if artifacts.wanted():
            target = self.target(frontend, values)
            artifacts.leave(launch.program, launch.written, target, self.grid, launch.predicted_us)
        return frontend.execute(launch, values)

    def record(self, *args: Any, **kwargs: Any) -> Recording:
        """Return what a call with these arguments does, without running it."""
        return self.prepared([(args, kwargs)])[0].recording

    def launches(self) -> tuple[Launch, ...]:
        """Return what was recorded or loaded so far and is kept."""
        return tuple(self._launches.values())

    def prepared(
        self, calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]
    ) -> tuple[Launch, Frontend, list[Any]]:
        """Return what runs the kernel, who runs it, and the arrays it runs on.

        Args:
            calls: positional and named arguments of each rank; a plain call is one rank.

        Raises:
            NkiError: the kernel or its arguments break a rule.
        """
        arguments = _Arguments()
        bound = [self._bound(arguments, *call) for call in calls]
        frontend = arguments.frontend()
        target = self.target(frontend, arguments.values)
        environment = tuple(variable.text() for variable in _ENVIRONMENT)
        key = (*arguments.key, len(calls), self.grid, self.edges, target.name, environment)
        launch = self._launches.get(key)
        if launch is None:
            # What other processes share: None if the kernel cannot be named for them.
            code = fingerprint(self.function, arguments.plain)
            parts = {
                "arrays": repr(arguments.arrays),
                "launch": repr((self.grid, self.edges, environment, arguments.ends)),
            }
            launch = prepare(
                self.function.__name__,
                None if code is None else {"kernel": code, **parts},
                target.name,
                lambda: self._record(bound, arguments, target),
            )
            launch.report()
            if launch.keep:
                self._launches[key] = launch
        return launch, frontend, arguments.values

    def _bound(
        self, arguments: _Arguments, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> inspect.BoundArguments:
        """Bind one rank's arguments, with slots in the places of arrays."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise NkiTypeError(
                "NKI207", f"{self.function.__name__}: {error}", f"it takes {self._signature}"
            ) from None
        # Which parameters are left out is not to be seen in the values of the others.
        arguments.key.append(tuple(bound.arguments))
        for name, value in bound.arguments.items():
            bound.arguments[name] = arguments.take(value, name)
        arguments.ends.append(len(arguments.values))
        return bound

    def target(self, frontend: Frontend, values: list[Any]) -> Target:
        """Return what a call with these arrays is checked for."""
        return frontend.target(values)

    def _record(
        self, bound: list[inspect.BoundArguments], arguments: _Arguments, target: Target
    ) -> Recording:
        owners, values = arguments.owners, arguments.values
        if mode() != "off":
            findings = check_python(self)
            for call in bound:
                findings = [*findings, *check_arguments(self, call.args, call.kwargs)]
            enforce(list(dict.fromkeys(findings)))
        spans = zip([0, *arguments.ends], arguments.ends, strict=False)

        def contents(begin: int, end: int) -> list[Any]:
            return [o.host(v) for o, v in zip(owners[begin:end], values[begin:end], strict=True)]

        return record(
            self.function,
            [(call.args, call.kwargs) for call in bound],
            target=target,
            grid=self.grid,
            edges=self.edges,
            values=[functools.partial(contents, *span) for span in spans],
        )


_KERNELS: weakref.WeakValueDictionary[str, Kernel] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def kernel_of(handle: str) -> Kernel:
    """Return the kernel of a handle."""
    return _KERNELS[handle]


class BoundKernel:
    """A kernel that is a method, with its object.

    Attributes:
        kernel: the kernel.
        __self__: the object, its first argument.
    """

    def __init__(self, kernel: Kernel, instance: Any) -> None:
        """Bind a kernel."""
        functools.update_wrapper(self, kernel.function)
        self.kernel = kernel
        self.__self__ = instance
        known = inspect.signature(kernel.function)
        self.__signature__ = known.replace(parameters=list(known.parameters.values())[1:])

    def __getitem__(self, cores: Any) -> BoundKernel:
        """Return the method on a number of physical cores, see :class:`Kernel`."""
        return BoundKernel(self.kernel[cores], self.__self__)

    def with_schedule(self, edges: Any) -> BoundKernel:
        """Return the method with dependencies, see :class:`Kernel`."""
        return BoundKernel(self.kernel.with_schedule(edges), self.__self__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the method, see :class:`Kernel`."""
        return self.kernel(self.__self__, *args, **kwargs)

    def record(self, *args: Any, **kwargs: Any) -> Recording:
        """Return what a call with these arguments does, without running it."""
        return self.kernel.record(self.__self__, *args, **kwargs)


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with a name for what has none: a partial, or an object that is called."""
    if hasattr(function, "__name__"):
        return function
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    if hasattr(inner, "__name__"):
        functools.update_wrapper(kernel, inner)
    else:
        functools.update_wrapper(kernel, type(inner).__call__)
        kernel.__name__ = type(inner).__name__
    kernel.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return kernel


class _Arguments:
    """The arguments of a call: arrays taken out, the rest a key.

    Attributes:
        values: the arrays, in order.
        owners: who knows them.
        key: equal for equal signatures.
        arrays: name, shape and type of each.
        plain: name and value of the arguments that are no arrays.
        ends: how many arrays the ranks up to each one have.
    """

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.owners: list[Frontend] = []
        self.key: list[Any] = []
        self.arrays: list[tuple[str, tuple[int, ...], str]] = []
        self.plain: list[tuple[str, Any]] = []
        self.ends: list[int] = []
        self._objects: dict[int, tuple[int, Any]] = {}  # by id of the caller's

    def frontend(self) -> Frontend:
        return max(self.owners, key=lambda owner: owner.rank, default=_NUMPY)

    def take(self, value: Any, name: str) -> Any:
        """Return what the recorder makes an argument of, and add to the key."""
        owner = frontend_of(value)
        if owner is not None:
            shape, dtype = owner.describe(value)
            self.key.append((owner.name, shape, dtype))
            self.arrays.append((name, shape, dtype))
            self.values.append(value)
            self.owners.append(owner)
            return Slot(len(self.values) - 1, name, shape, dtype)
        if isinstance(value, (tuple, list)):
            self.key.append((type(value), len(value)))
            items = [self.take(item, f"{name}[{i}]") for i, item in enumerate(value)]
            return rebuilt(value, items)
        if isinstance(value, dict):
            self.key.append((dict, *value))
            return {k: self.take(v, f"{name}[{k!r}]") for k, v in value.items()}
        fields = fields_of(value)
        if fields is not None:
            return self._object(value, fields, name)
        self.key.append(_frozen(value))
        self.plain.append((name, value))
        return value

    def _object(self, value: Any, fields: Mapping[str, Any], name: str) -> Any:
        known = self._objects.get(id(value))
        if known is not None:
            self.key.append(("again", known[0]))
            return known[1]
        made = copied(value, {})
        self._objects[id(value)] = len(self._objects), made
        self.key.append((type(value), *fields))
        self.plain.append((name, type(value)))
        for field, item in fields.items():
            vars(made)[field] = self.take(item, f"{name}.{field}")
        return made


def _frozen(value: Any) -> Any:
    """Return something hashable that is equal for equal values of compile-time arguments."""
    if isinstance(value, float):
        return float, repr(value)
    if isinstance(value, (bool, int, str, bytes, type(None), enum.Enum, type)):
        return type(value), value
    if isinstance(value, slice):  # hashable since Python 3.12
        return slice, _frozen(value.start), _frozen(value.stop), _frozen(value.step)
    try:
        hash(value)
    except TypeError:
        raise NkiTypeError(
            "NKI207",
            f"an argument of type {type(value).__name__} is neither an array nor hashable",
            "pass arrays, numbers, strings, tuples, enums, None, functions or data objects",
        ) from None
    return type(value), value


_NUMPY = NumpyFrontend()


@overload
def jit(fn: Callable[..., Any], **options: Any) -> Kernel: ...
@overload
def jit(fn: None = None, **options: Any) -> Callable[[Callable[..., Any]], Kernel]: ...
def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Make a function a kernel: ``@nki.jit`` or ``@nki.jit(...)``.

    Args:
        fn: the function, written with `nki.language` and `nki.isa`.
        options: accepted for kernels that were written for the compiler; they change nothing here
            (``mode``, ``debug_kernel``, ``show_compiler_tb``, ``experimental_flags``...).

    Raises:
        NkiError: ``platform_target``, which 0.3 and later refuse too (NKI207).
    """
    if "platform_target" in options:
        raise NkiError(
            "NKI207",
            "nki.jit does not take platform_target any more",
            "set NEURON_PLATFORM_TARGET_OVERRIDE=trn1, trn2 or trn3",
        )
    if fn is None:
        return lambda function: jit(function, **options)
    return fn if isinstance(fn, Kernel) else Kernel(fn)


def simulate(kernel: Callable[..., Any]) -> Kernel:
    """Return a kernel that runs on this computer, which here every kernel does.

    Args:
        kernel: a kernel, ``kernel[2]``, or a plain function.
    """
    return kernel if isinstance(kernel, Kernel) else Kernel(kernel)
