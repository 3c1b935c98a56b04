"""A step that runs an operator of PyTorch's CPU library."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neuronxcc.ir.calls import CHECKS
from neuronxcc.program.errors import NeffError
from neuronxcc.program.memory import View
from neuronxcc.program.step import Maker, Spec, Step
from neuronxcc.program.words import value_text, view_text

if TYPE_CHECKING:
    from neuronxcc.program.checker import Checker
    from neuronxcc.program.machine import Machine

_TARGET = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*(\.\w+)?", re.ASCII)
# What steps are called where their operator says nothing to a user.
_TITLES = dict.fromkeys(CHECKS, "a check of numbers")


@dataclass(frozen=True, slots=True)
class AtenStep(Step):
    """Runs an ATen operator of PyTorch's CPU library on views of the program's memory.

    `args` and `kwargs` mirror the operator's schema; a View stands for a tensor, everything else is
    None, bool, int, float, str, a DType, or a tuple of these. Results go to `outs` (None: unused);
    the executor copies them unless the operator could write there.

    Attributes:
        target: Qualified name with overload, "aten::sort.stable".
        host: True if this step stands for an operator that has no lowering: counted, named in
            reports, refused in strict portability. False if ATen's kernel is merely how we execute
            an operation that a NeuronCore has (sort, convolution, random numbers).
        device: True to call it on neuron tensors (random operators: they take their numbers from
            the device's generator), False to call the CPU kernel on aliases.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outs: tuple[View | None, ...]
    host: bool = False
    device: bool = False
    loc: str = ""

    def check(self, checker: Checker) -> None:
        if not _TARGET.fullmatch(self.target):
            raise NeffError(f"{self.target!r} is no name of an operator")
        checker.outs(self.outs)
        checker.views(_views_in((self.args, tuple(self.kwargs.values()))))

    def lines(self, *, kernels: bool) -> Iterator[str]:
        del kernels
        args = [value_text(arg) for arg in self.args]
        args += [f"{name}={value_text(value)}" for name, value in sorted(self.kwargs.items())]
        outs = ", ".join("_" if out is None else view_text(out) for out in self.outs)
        where = " host" if self.host else " device" if self.device else ""
        yield f"aten{where} {self.target}({', '.join(args)}) -> {outs}"

    def run(self, machine: Machine) -> None:
        if machine.aten is None:
            raise NotImplementedError(f"{self.target}; pass `aten` to run it")

        def filled(value: Any) -> Any:
            if isinstance(value, View):
                return machine.array(value).copy()
            return tuple(map(filled, value)) if isinstance(value, tuple) else value

        kwargs = {name: filled(value) for name, value in self.kwargs.items()}
        results = machine.aten(self, filled(self.args), kwargs)
        for out, result in zip(self.outs, results, strict=True):
            if out is not None:
                machine.array(out)[...] = result

    def spec(self, maker: Maker) -> Spec:
        return {
            "kind": "aten",
            "name": _TITLES.get(self.target, self.target),
            "loc": self.loc,
            "target": self.target,
            "args": tuple(map(maker.value, self.args)),
            "kwargs": {name: maker.value(value) for name, value in self.kwargs.items()},
            "outs": tuple(map(maker.value, self.outs)),
            "host": self.host,
            "device": self.device,
        }


def _views_in(value: Any) -> Iterator[View]:
    """Views among the arguments of an operator."""
    if isinstance(value, View):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _views_in(item)
    elif isinstance(value, dict):
        yield from _views_in(tuple(value.values()))
