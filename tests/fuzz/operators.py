"""Calls of PyTorch's operators with arguments that they should refuse, in children that may crash.

`record` collects calls that are right, from PyTorch's own samples, `invent` makes some from
schemas; `hostile` changes them: sizes, strides, dtypes, numbers, indices. `run` makes the calls in
forked children, one after the other, and reports those that ended a child.
`tests/fuzz/operators_run.py` is the program, for a process whose arena has guard pages.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import math
import os
import random
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

SECONDS = 20  # more for one call is a finding
_MOST_BYTES = 1 << 16  # of a tensor of a call
_SAMPLES = 2  # of an OpInfo and a dtype, and calls kept of an operator

_DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
    torch.int8, torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip
_NUMBERS = (
    -1, 0, 1, 2, 3, -2, 7, 1000, -(1 << 31), (1 << 31) - 1, 1 << 31, 1 << 40,
    (1 << 63) - 1, -(1 << 63),
)  # fmt: skip
_FLOATS = (0.0, -1.0, 2.5, 1e38, math.inf, -math.inf, math.nan)


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor of a call: its geometry, and its elements if they matter (integers)."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    values: tuple[int, ...] | None = None

    def extent(self) -> int:
        """Elements from the first to behind the last."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator, "namespace::name.overload"."""

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        words = [show(a) for a in self.args] + [f"{k}={show(v)}" for k, v in self.kwargs]
        return f"{self.target}({', '.join(words)})"


def show(value: Any) -> str:
    """An argument as people read it."""
    if isinstance(value, Spec):
        plain = value.strides == contiguous(value.shape)
        text = f"{str(value.dtype)[6:]}{list(value.shape)}"
        text += "" if plain else f"/{list(value.strides)}"
        return text + ("" if value.values is None else f"={list(value.values[:8])}")
    if isinstance(value, tuple):
        return f"[{', '.join(map(show, value))}]"
    return repr(value)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor in order."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def operator(target: str) -> Callable[..., Any]:
    """The operator of a qualified name with overload."""
    namespace, rest = target.split("::")
    name, _, overload = rest.partition(".")
    found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    return found


def registered(*namespaces: str) -> list[str]:
    """All operators of namespaces that can be called; of TorchScript's, some are not there."""
    made = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        target = name if "." in name else f"{name}.default"
        if name.partition("::")[0] not in namespaces:
            continue
        with contextlib.suppress(AttributeError):
            operator(target)
            made.append(target)
    return sorted(made)


# Recording --------------------------------------------------------------------------------------


class _RefusedError(Exception):
    pass


def _spec(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        plain = type(value) in {torch.Tensor, torch.nn.Parameter}
        if not plain or value.layout != torch.strided or value.is_quantized or value.is_nested:
            raise _RefusedError
        if any(s < 0 for s in value.stride()):
            raise _RefusedError
        made = Spec(tuple(value.shape), value.stride(), value.dtype)
        if made.extent() * value.element_size() > _MOST_BYTES:
            raise _RefusedError
        if not (value.is_floating_point() or value.is_complex()):
            flat = (
                torch.as_strided(value, (made.extent(),), (1,))
                if made.extent()
                else value.flatten()
            )
            if value.is_conj() or value.is_neg():
                raise _RefusedError
            values = tuple(int(v) for v in flat.tolist())
            made = Spec(made.shape, made.strides, made.dtype, values)
        return made
    if isinstance(value, list | tuple):
        return tuple(map(_spec, value))
    if value is None or isinstance(
        value,
        bool
        | int
        | float
        | complex
        | str
        | torch.dtype
        | torch.layout
        | torch.memory_format
        | torch.device,
    ):
        return value
    raise _RefusedError


class _Recorder(TorchDispatchMode):
    def __init__(self, calls: dict[str, list[Call]], wanted: frozenset[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls, self.wanted = calls, wanted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.note(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def note(self, func: Any, args: Any, kwargs: Any) -> None:
        name, _, overload = func.name().partition(".")
        target = f"{name}.{overload or 'default'}"
        kept = self.calls.setdefault(target, [])
        if target not in self.wanted or len(kept) >= _SAMPLES:
            return
        with (
            contextlib.suppress(_RefusedError),
            torch.utils._python_dispatch._disable_current_modes(),
        ):
            call = Call(
                target, tuple(map(_spec, args)), tuple((k, _spec(v)) for k, v in kwargs.items())
            )
            if call not in kept:
                kept.append(call)


def record(wanted: frozenset[str], names: str = "") -> dict[str, list[Call]]:
    """Calls that PyTorch's samples make, forward and backward, by operator."""
    calls: dict[str, list[Call]] = {}
    for info in op_db:
        if names and names not in info.name:
            continue
        for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64):
            if dtype not in info.dtypes:
                continue
            grad = dtype is torch.float32 and info.supports_autograd
            with warnings.catch_warnings(), contextlib.suppress(Exception):
                warnings.simplefilter("ignore")
                torch.manual_seed(1)
                for _, sample in zip(
                    range(_SAMPLES + 4),
                    info.sample_inputs("cpu", dtype, requires_grad=grad),
                    strict=False,
                ):
                    with _Recorder(calls, wanted), contextlib.suppress(Exception):
                        out = info(sample.input, *sample.args, **sample.kwargs)
                        if grad:
                            flat = [
                                t
                                for t in torch.utils._pytree.tree_leaves(out)
                                if isinstance(t, torch.Tensor) and t.requires_grad
                            ]
                            if flat:
                                torch.autograd.backward(flat, [torch.ones_like(t) for t in flat])
    return {target: found for target, found in calls.items() if found}


# What schemas say -------------------------------------------------------------------------------


_WORDS = (
    "mean", "sum", "none", "constant", "reflect", "bilinear", "nearest", "linear", "ij", "L", "U",
    "fro", "right", "left", "valid", "same", "floor", "i,i->i", "tanh",
)  # fmt: skip
_INTEGRAL = ("ind", "offset", "length", "target", "batch_sizes", "bucket", "seqlen", "cum_seq")
_COMMON = (
    torch.float32, torch.float32, torch.float32, torch.int64, torch.bool, torch.float64,
    torch.complex64, torch.bfloat16,
)  # fmt: skip


class _Inventor:
    """Values of types of schemas, for one call: most tensors have one shape and dtype."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.size = rng.choice((1, 2, 3, 4))
        self.dims = rng.choice((0, 1, 1, 2, 2, 3, 3, 4, 4, 5))
        self.shape = tuple(rng.choice((self.size, self.size, 2, 3, 4)) for _ in range(self.dims))
        self.dtype = rng.choice(_COMMON)
        self.plain: dict[str, Callable[[], Any]] = {
            "IntType": self.number,
            "SymIntType": self.number,
            "BoolType": lambda: rng.random() < 0.5,
            "FloatType": self.real,
            "NumberType": self.real,
            "ComplexType": lambda: 1j,
            "ScalarTypeType": lambda: rng.choice((torch.float32, torch.int64, torch.float64)),
            "StringType": lambda: rng.choice(_WORDS),
            "DeviceObjType": lambda: torch.device("cpu"),
        }

    def number(self) -> int:
        return self.rng.choice((-1, 0, 1, 1, 2, 2, 3, self.size))

    def real(self) -> float:
        return self.rng.choice((0.5, 1.0, 2.0, 0.0))

    def tensor(self, word: str) -> Spec:
        rng, shape = self.rng, self.shape
        if rng.random() < 0.4:
            dims = rng.choice((0, 1, 1, 2, 3, 4))
            shape = tuple(rng.choice((self.size, 2, 3, 4)) for _ in range(dims))
        dtype = torch.int64 if any(part in word for part in _INTEGRAL) else self.dtype
        values = None
        if not (dtype.is_floating_point or dtype.is_complex):
            top = rng.choice((2, 2, 3, 5))
            values = tuple(rng.randrange(top) for _ in range(math.prod(shape)))
        return Spec(shape, contiguous(shape), dtype, values)

    def value(self, type_: Any, word: str) -> Any:
        kind = type_.kind()
        if kind == "OptionalType":
            empty = self.rng.random() < 0.4
            return None if empty else self.value(type_.getElementType(), word)
        if kind == "ListType":
            count = self.rng.choice((0, 1, 2, 2, 2, 3, self.dims))
            return tuple(self.value(type_.getElementType(), word) for _ in range(count))
        if kind == "TensorType":
            return self.tensor(word)
        return self.plain.get(kind, lambda: None)()


def invent(target: str, rng: random.Random) -> Call:
    """A call with arguments of the right types."""
    inventor = _Inventor(rng)
    args, kwargs = [], []
    for argument in operator(target)._schema.arguments:  # type: ignore[attr-defined]
        if argument.has_default_value() and rng.random() < 0.5:
            if argument.kwarg_only:
                continue
            made = argument.default_value
            made = tuple(made) if isinstance(made, list) else made
        else:
            made = inventor.value(argument.real_type, argument.name)
        if argument.kwarg_only:
            kwargs.append((argument.name, made))
        else:
            args.append(made)
    return Call(target, tuple(args), tuple(kwargs))


# Hostile arguments ------------------------------------------------------------------------------


def _repeated(spec: Spec, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Spec:
    """Another geometry, with the elements again and again if they matter."""
    made = Spec(tuple(shape), tuple(strides), dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return made
    source = spec.values or tuple(range(spec.extent())) or (0,)
    top = 2 if dtype is torch.bool else 100
    fits = dtype is spec.dtype
    values = (source[i % len(source)] for i in range(made.extent()))
    return replace(made, values=tuple(v if fits else abs(v) % top for v in values))


def _other_rank(spec: Spec, rng: random.Random) -> Spec:
    shape = list(spec.shape)
    if shape and rng.random() < 0.5:
        del shape[rng.randrange(len(shape))]
    else:
        shape.insert(rng.randrange(len(shape) + 1), rng.choice((0, 1, 2)))
    return _repeated(spec, shape, contiguous(shape), spec.dtype)


def _other_dtype(spec: Spec, rng: random.Random) -> Spec:
    return _repeated(spec, spec.shape, spec.strides, rng.choice(_DTYPES))


def _other_strides(spec: Spec, rng: random.Random) -> Spec:
    way = rng.choice(("zero", "turned", "gaps"))
    strides = [0 if way == "zero" else 2 * s for s in spec.strides]
    if way == "turned":
        order = rng.sample(range(len(spec.shape)), len(spec.shape))
        turned = contiguous([spec.shape[d] for d in order])
        for d, stride in zip(order, turned, strict=True):
            strides[d] = stride
    return _repeated(spec, spec.shape, strides, spec.dtype)


def _other_values(spec: Spec, rng: random.Random) -> Spec:
    if not spec.values:
        return _other_size(spec, rng)
    values = list(spec.values)
    low, high = (0, 1)
    if spec.dtype is not torch.bool:
        limits = torch.iinfo(spec.dtype)
        low, high = limits.min, limits.max
    for i in rng.sample(range(len(values)), rng.choice((1, len(values)))):
        values[i] = min(max(rng.choice(_NUMBERS), low), high)
    return replace(spec, values=tuple(values))


def _other_size(spec: Spec, rng: random.Random) -> Spec:
    shape = list(spec.shape) or [rng.choice((0, 2, 5))]
    for _ in range(rng.choice((1, 1, 2))):
        d = rng.randrange(len(shape))
        n = shape[d]
        shape[d] = rng.choice((0, 1, max(n - 1, 0), n + 1, 2 * n + 1, 17, 300))
    if math.prod(shape) > _MOST_BYTES // 8:
        shape = [min(n, 5) for n in shape]
    return _repeated(spec, shape, contiguous(shape), spec.dtype)


def _nothing(_spec: Spec, _rng: random.Random) -> None:
    return None


_CHANGES: tuple[Callable[[Spec, random.Random], Spec | None], ...] = (
    *(_other_size,) * 4, _other_rank, _other_dtype, _other_strides, *(_other_values,) * 2, _nothing,
)  # fmt: skip


def _hostile_items(items: list[Any], rng: random.Random) -> tuple[Any, ...]:
    if items and rng.random() < 0.7:
        i = rng.randrange(len(items))
        items[i] = _hostile(items[i], rng)
    elif items and rng.random() < 0.5:
        del items[rng.randrange(len(items))]
    else:
        items.append(items[-1] if items else rng.choice((0, 1, 2)))
    return tuple(items)


def _hostile(value: Any, rng: random.Random) -> Any:
    changes: tuple[tuple[type, Callable[[], Any]], ...] = (
        (Spec, lambda: rng.choice(_CHANGES)(value, rng)),
        (bool, lambda: not value),
        (int, lambda: rng.choice((value + 1, value - 1, *_NUMBERS))),
        (float, lambda: rng.choice(_FLOATS)),
        (tuple, lambda: _hostile_items(list(value), rng)),
        (torch.dtype, lambda: rng.choice(_DTYPES)),
    )
    return next((change() for kind, change in changes if isinstance(value, kind)), value)


def hostile(call: Call, rng: random.Random) -> Call:
    """The call with one to three of its arguments changed."""
    args, kwargs = list(call.args), [list(item) for item in call.kwargs]
    places: list[tuple[Any, Any]] = [(args, i) for i in range(len(args))] + [
        (item, 1) for item in kwargs
    ]
    if not places:
        return call
    # Tensors and numbers more often than modes.
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        where, i = rng.choice(places)
        where[i] = _hostile(where[i], rng)
    return Call(call.target, tuple(args), tuple((k, v) for k, v in kwargs))


# Running ----------------------------------------------------------------------------------------


def placed(spec: Spec, device: str, floats: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """A tensor whose storage ends with its last element: the integers that are named, or floats.

    Args:
        spec: the tensor
        device: where it is
        floats: makes so many numbers, which get the tensor's type
    """
    count = spec.extent()
    flat = (
        floats(count)
        if spec.values is None
        else torch.tensor(spec.values[:count], dtype=torch.int64)
    )
    return flat.to(spec.dtype).to(device).as_strided(spec.shape, spec.strides)


def materialise(value: Any, tensor: Callable[[Spec], torch.Tensor]) -> Any:
    """An argument with tensors in place of specs."""
    if isinstance(value, Spec):
        return tensor(value)
    if isinstance(value, tuple):
        return [materialise(v, tensor) for v in value]
    return value


@dataclass(frozen=True, slots=True)
class Finding:
    """A call that ended its child."""

    call: Call
    how: str


def run(
    calls: Sequence[Call],
    make: Callable[[Call], None],
    counts: dict[str, int],
    seconds: int = SECONDS,
) -> Iterator[Finding]:
    """Make the calls in children; what Python catches is no finding.

    Args:
        calls: The calls.
        make: Makes one; raises what the operator raises.
        counts: Filled with how many ran, were refused, and ended their child.
        seconds: Most for one call.
    """
    shared = torch.zeros(3, dtype=torch.int64).share_memory_()  # the place, ran, refused
    first = ended = 0
    while first < len(calls):
        shared[0] = first
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            _child(calls, first, make, shared, seconds)
        status = os.waitpid(child, 0)[1]
        at = int(shared[0])
        counts.update(ran=int(shared[1]), refused=int(shared[2]), ended=ended)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return
        ended += 1
        counts["ended"] = ended
        killed = os.WIFSIGNALED(status)
        code = os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)
        yield Finding(calls[at], signal.Signals(code).name if killed else f"exit {code}")
        first = at + 1


def _child(
    calls: Sequence[Call],
    first: int,
    make: Callable[[Call], None],
    shared: torch.Tensor,
    seconds: int,
) -> None:
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.disable()
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)  # what PyTorch says of odd arguments
        counts = shared.numpy()
        for number in range(first, len(calls)):
            counts[0] = number
            signal.alarm(seconds)
            try:
                make(calls[number])
            except Exception:  # noqa: BLE001 - a refusal, whatever its class
                counts[2] += 1
            else:
                counts[1] += 1
        code = 0
    finally:
        os._exit(code)
