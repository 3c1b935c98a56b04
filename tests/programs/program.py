"""A generated program: text of Python, the inputs it wants, and how to run it on a device.

The text is the whole truth of a program, so a finding can be read, cut down and kept. Operators that
have no name in `torch` (PyTorch's tests wrap some in functions) are called as `op_<name>`.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.uses import USES
from torch_neuronx import neuron

#: name -> the function that a program calls by it; `operators.py` adds to it.
CALLABLES: dict[str, Any] = {}

#: Forms of statements whose results on the CPU say nothing of the device's: what is drawn, which
#: operators an autocast region casts (a table of the device's own, CUDA's), where a tensor is.
OWN = frozenset({"random", "autocast", "elsewhere"})


def under_autocast(function: Callable[..., Any], dtype: torch.dtype, *args: torch.Tensor) -> Any:
    """A call within an autocast region of its own."""
    with torch.autocast(args[0].device.type, dtype):
        return function(*args)


def aside(how: str, function: Callable[..., Any], *args: torch.Tensor) -> Any:
    """A call that streams, events or a break cut off from what is before and after it.

    Args:
        how: "stream" (another one, which waits for this one and is waited for), "events" (recorded
            around the call), "synchronized", or "break" (of Dynamo's graph); on the CPU there are
            breaks alone
        function: what is called
        args: its operands
    """
    if how == "break":
        torch._dynamo.graph_break()
    if how == "break" or args[0].device.type != "neuron":
        return function(*args)
    if how == "synchronized":
        neuron.synchronize()
        return function(*args)
    if how == "events":
        before, after = neuron.Event(), neuron.Event()
        before.record()
        result = function(*args)
        after.record()
        return result
    SIDE.wait_stream(neuron.current_stream())
    with neuron.stream(SIDE):
        result = function(*args)
    neuron.current_stream().wait_stream(SIDE)
    return result


SIDE = neuron.Stream()
CALLABLES |= {"under_autocast": under_autocast, "aside": aside}


@dataclass(frozen=True)
class Statement:
    """One line of a program.

    Attributes:
        outs: names that it binds, none for a statement with an effect only
        code: Python without the assignment
        form: what kind of statement, for counts
    """

    outs: tuple[str, ...]
    code: str
    form: str

    def text(self) -> str:
        """The line."""
        return (
            f"{', '.join(self.outs)}{', ' if len(self.outs) == 1 and self.form == 'unpack' else ''} = {self.code}"
            if self.outs
            else self.code
        )


@dataclass
class Program:
    """Inputs by name, modules by name, statements, and what is returned.

    Attributes:
        inputs: tensors on the CPU; those that require gradients are leaves
        modules: name -> text that makes the module
        autocast: dtype of an autocast region around everything, or None
        forward: it has no backward pass, although results may require gradients
        offset: elements in front of every input in its storage
        use: how it is called, and what becomes of its results: a name of `uses.USES`
    """

    inputs: dict[str, torch.Tensor]
    modules: dict[str, str] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    results: tuple[str, ...] = ()
    autocast: torch.dtype | None = None
    forward: bool = False
    offset: int = 0
    use: str = "plain"

    @property
    def truth(self) -> str:
        """The device whose eager mode says what compiled programs have to give."""
        own = self.autocast is not None or any(s.form in OWN for s in self.statements)
        return "neuron" if own else "cpu"

    def has(self, *forms: str) -> bool:
        """Whether there is a statement of one of some forms."""
        return any(s.form in forms for s in self.statements)

    def resized(self) -> Program:
        """The same with one more index in the first dimension of all inputs, the last one again."""
        return replace(self, inputs={n: _longer(x) for n, x in self.inputs.items()})

    def moved(self) -> Program:
        """The same with inputs that are views of larger storages, which hold other numbers, too."""
        return replace(self, offset=16)

    def text(self) -> str:
        """The function's source."""
        lines = [f"def program({', '.join(self.inputs)}):"]
        lines += [f"    {s.text()}" for s in self.statements]
        return "\n".join([*lines, f"    return [{', '.join(self.results)}]", ""])

    def describe(self) -> str:
        """Inputs, modules and autocast, a line each."""
        lines = [
            f"{n}: {tuple(x.shape)} {x.dtype} strides {x.stride()}{' requires grad' if x.requires_grad else ''}"
            for n, x in self.inputs.items()
        ]
        lines += [f"{n}: {text}" for n, text in self.modules.items()]
        return "\n".join([*lines, f"autocast {self.autocast}", f"use {self.use}"])

    def function(self, modules: Mapping[str, nn.Module]) -> Callable[..., list[torch.Tensor]]:
        """The program as a function, whose errors show its lines."""
        text = self.text()
        path = f"<program {hash(text)}>"
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        names: dict[str, Any] = {"torch": torch, "F": F, "inf": torch.inf, "nan": torch.nan}
        names |= {**CALLABLES, **modules}
        exec(compile(text, path, "exec"), names)
        function: Callable[..., list[torch.Tensor]] = names["program"]
        return function

    def built(self, device: str) -> dict[str, nn.Module]:
        """The modules with the same weights for every device."""
        made: dict[str, nn.Module] = {}
        for name, text in self.modules.items():
            torch.manual_seed(7)
            module = eval(text, {"nn": nn, "torch": torch})
            made[name] = module.to(device)
        return made

    def placed(self, device: str) -> list[torch.Tensor]:
        """New leaves on the device, with the strides of the inputs."""
        return [placed(x, device, self.offset) for x in self.inputs.values()]


def placed(x: torch.Tensor, device: str, offset: int = 0) -> torch.Tensor:
    """A new leaf on the device, with the strides of a tensor, and zeros in the holes between them.

    With an offset its storage has that many elements before it, and after it: the tensor's first.
    """
    span = max(0, 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)))
    span = 0 if not x.numel() else span
    with torch.no_grad():
        memory = torch.zeros(span + 2 * offset, dtype=x.dtype, device=device)
        if x.numel() and offset:
            around = x.detach().reshape(-1)[:1].to(device).expand(offset)
            memory[:offset] = around
            memory[-offset:] = around
        copy = memory.as_strided(x.shape, x.stride(), offset)
        copy.copy_(x.detach())
    return copy.detach().requires_grad_(x.requires_grad)


def _longer(x: torch.Tensor) -> torch.Tensor:
    if not x.dim() or not x.shape[0]:
        return x
    rows = torch.arange(x.shape[0] + 1).clamp(max=x.shape[0] - 1)
    made = x.detach().index_select(0, rows)
    if x.is_floating_point():
        made[-1].mul_(0.75)  # of two equal rows any may be the largest
    if not x.is_contiguous() and x.dim() > 1:
        made = made.transpose(-1, -2).contiguous().transpose(-1, -2)
    return made.requires_grad_(x.requires_grad)


@dataclass
class Outcome:
    """What a run gave: values by name, or the error that ended it.

    Attributes:
        values: results, then gradients and the inputs and buffers afterwards, on the CPU
        shared: pairs of results, and of results and inputs, that show the same memory
        error: the exception, or None
        stage: "forward" or "backward", where the error was
    """

    values: dict[str, torch.Tensor | None] = field(default_factory=dict)
    shared: frozenset[tuple[str, str]] = frozenset()
    error: Exception | None = None
    stage: str = "forward"

    @property
    def kind(self) -> str:
        """Name of the error's class, "" without one."""
        return type(self.error).__name__ if self.error is not None else ""


Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def run(
    program: Program, device: str, *, wrap: Wrapper | None = None,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext, backward: bool = True,
    seed: int = 3,
) -> Outcome:  # fmt: skip
    """Run the program once.

    Args:
        program: what to run
        device: where inputs and modules are
        wrap: makes another callable of the function, e.g. `torch.compile`
        around: a context for forward and backward
        backward: whether gradients are computed
        seed: of the random numbers that the program draws
    """
    modules = program.built(device)
    function = program.function(modules)
    if wrap is not None:
        function = wrap(function)
    args = program.placed(device)
    use = USES[program.use](function, args)
    outcome = Outcome()
    try:
        torch.manual_seed(seed)
        with around(), _autocast(program.autocast, device):
            results = next(use)
        outcome.values |= _values("result", results)
        outcome.shared = _shared(results, dict(zip(program.inputs, args, strict=True)))
        backward = backward and not program.forward
        if backward and any(r.requires_grad for r in results):
            outcome.stage = "backward"
            with around():
                for n, later in enumerate(use):
                    outcome.values |= _values(f"later {n}", later)
            outcome.values |= {
                f"gradient {n}": _kept(a.grad) for n, a in zip(program.inputs, args, strict=True)
            }
            for name, module in modules.items():
                outcome.values |= {
                    f"gradient {name}.{n}": _kept(p.grad) for n, p in module.named_parameters()
                }
    except Exception as error:  # noqa: BLE001 - it is compared with the CPU's
        outcome.error = error
        return outcome
    outcome.values |= {f"input {n}": _kept(a) for n, a in zip(program.inputs, args, strict=True)}
    for name, module in modules.items():
        outcome.values |= {f"buffer {name}.{n}": _kept(b) for n, b in module.named_buffers()}
    return outcome


def _autocast(dtype: torch.dtype | None, device: str) -> AbstractContextManager[Any]:
    return nullcontext() if dtype is None else torch.autocast(torch.device(device).type, dtype)


def _values(prefix: str, results: Sequence[torch.Tensor]) -> dict[str, torch.Tensor | None]:
    return {f"{prefix} {n}": _kept(r) for n, r in enumerate(results)}


def _shared(
    results: Sequence[torch.Tensor], inputs: Mapping[str, torch.Tensor]
) -> frozenset[tuple[str, str]]:
    """What a write to one of two tensors would show in the other."""
    named = {f"result {n}": r for n, r in enumerate(results)}
    named |= {f"input {name}": x for name, x in inputs.items()}
    places: dict[str, set[int]] = {}
    pairs = set()
    for (one, x), (other, y) in itertools.combinations(named.items(), 2):
        if one.startswith("input") or not (_has_memory(x) and _has_memory(y)):
            continue
        if x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr():
            continue
        for name, tensor in ((one, x), (other, y)):
            if name not in places:
                places[name] = _places(tensor)
        if places[one] & places[other]:
            pairs.add((one, other))
    return frozenset(pairs)


def _has_memory(x: torch.Tensor) -> bool:
    plain = x.layout is torch.strided and not x.is_nested and not x._is_zerotensor()
    return plain and x.numel() > 0


def _places(x: torch.Tensor) -> set[int]:
    """The bytes that a tensor shows, counted from where its storage begins."""
    starts = torch.tensor([x.storage_offset()])
    for extent, step in zip(x.shape, x.stride(), strict=True):
        starts = (starts.unsqueeze(1) + torch.arange(extent) * step).view(-1).unique()
    return set((starts.unsqueeze(1) * x.itemsize + torch.arange(x.itemsize)).view(-1).tolist())


def _kept(x: torch.Tensor | None) -> torch.Tensor | None:
    """A copy on the CPU with the same strides."""
    if x is None:
        return None
    layout = steps(x)
    if x.is_conj() or x.is_neg():
        x = x.resolve_conj().resolve_neg()  # a copy, with strides of its own
    if x.dtype.is_floating_point and x.itemsize == 1:
        # Nothing compares 8-bit floats but their bits, of which those of every NaN are made one's.
        x = x.detach().cpu()
        nan = torch.tensor(torch.nan).to(x.dtype)
        x = torch.where(x.float().isnan(), nan.view(torch.uint8), x.view(torch.uint8))
    copy = torch.empty(x.shape, dtype=x.dtype)
    # Strides of 0 can't be written through, and those of a view may leave holes: they are compared,
    # not copied.
    copy.copy_(x.detach())
    copy.layout_of = layout  # type: ignore[attr-defined]
    return copy


def words(text: str) -> set[str]:
    """The names in a piece of a program."""
    return set("".join(c if c.isalnum() or c == "_" else " " for c in text).split())


def steps(x: torch.Tensor) -> tuple[int, ...]:
    """The strides that say something: an extent of 1 may have any."""
    return tuple(s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1)
