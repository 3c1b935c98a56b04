"""Compiling what the thread of a core has found to come again: regions of enqueued operators.

`torch_neuronx/csrc/program/regions.cpp` finds them, says what is wanted, and runs the result. This
module makes an FX graph of a region and a program of that, in a thread of its own, so that nothing
waits for it: until a program is there, the operators of a region run one by one.
"""

from __future__ import annotations

import atexit
import functools
import logging
import threading
from typing import TYPE_CHECKING, Any, Final

import torch

from torch_neuronx import _C

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOG = logging.getLogger(__name__)
aten = torch.ops.aten

#: (operator, overload, arguments, number of the type of the result, its sizes and strides, the
#: number of the input in whose memory it lies, or -1)
Call = tuple[str, str, list[Any], int, tuple[int, ...], tuple[int, ...], int]
#: (number of the type, sizes, strides)
Input = tuple[int, tuple[int, ...], tuple[int, ...]]


#: PyTorch's numbers of the types that regions have (c10/core/ScalarType.h).
TYPES_BY_NUMBER: Final = {5: torch.float16, 6: torch.float32, 11: torch.bool, 15: torch.bfloat16}

#: Whatever NEURON_CC_FLAGS asks of compiled functions, a region computes what its operators do.
_AS_EAGER: Final = {"auto_cast": "none", "enable_mixed_precision_accumulation": True}


class _Maker:
    """The FX graph of a region in the making; nodes carry fake tensors in ``meta["val"]``."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.places: list[torch.fx.Node] = []
        self.values: list[torch.fx.Node] = []

    def input(
        self, core: int, dtype: int, sizes: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        node = self.graph.placeholder(f"arg{len(self.places)}_1")
        node.meta["val"] = torch.empty_strided(
            sizes, strides, dtype=TYPES_BY_NUMBER[dtype], device=torch.device("neuron", core)
        )
        self.places.append(node)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        known = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        node.meta["val"] = target(*known, **kwargs)
        return node

    def operator(self, name: str, overload: str, arguments: list[Any], wanted: torch.Size) -> Any:
        """What one operator gives, `wanted` being the sizes of its result."""
        given = [self._argument(each) for each in arguments]
        if name == "copy_":  # all of a tensor by another one
            source = given[1]
            same = source.meta["val"].shape == wanted
            return source if same else self.call(aten.expand.default, source, list(wanted))
        # What writes in place gives what it would give elsewhere.
        target = getattr(getattr(aten, name.removesuffix("_")), overload or "default")
        named = list(zip(target._schema.arguments, given, strict=True))  # noqa: SLF001
        return self.call(
            target,
            *(value for about, value in named if not about.kwarg_only),
            **{about.name: value for about, value in named if about.kwarg_only},
        )

    def result(self, call: Call) -> None:
        name, overload, arguments, dtype, sizes, *_ = call
        wanted = TYPES_BY_NUMBER[dtype]
        node = self.operator(name, overload, arguments, torch.Size(sizes))
        if name == "copy_" or (name.endswith("_") and node.meta["val"].dtype != wanted):
            node = self.call(
                aten._to_copy.default,  # noqa: SLF001
                node,
                dtype=wanted,
                memory_format=torch.contiguous_format,
            )
        value = node.meta["val"]
        if (value.dtype, tuple(value.shape)) != (wanted, sizes):
            raise ValueError(f"{name} gives {value.dtype}{list(value.shape)}, not {sizes}")
        self.values.append(node)

    def _argument(self, given: Any) -> Any:
        if isinstance(given, list):
            return [self._argument(each) for each in given]
        if isinstance(given, tuple):
            kind, number = given
            return (self.places if kind == "input" else self.values)[number]
        return given


def region_graph(
    core: int, inputs: Sequence[Input], calls: Sequence[Call], outputs: Sequence[int]
) -> torch.fx.GraphModule:
    """Make the functional graph of a region; nodes carry fake tensors in ``meta["val"]``.

    Args:
        core: Where its tensors lie.
        inputs: Tensors from outside of the region.
        calls: In their order. Arguments are numbers, None, ``("input", i)``, ``("value", i)`` for
            the result of call `i`, and lists of these.
        outputs: The calls whose results are wanted. Those that lie in the memory of an input are
            copied to it at the end, the others are returned.

    Raises:
        ValueError: PyTorch says that a call gives another type or shape than it gave.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415 - loads much

    maker = _Maker()
    with FakeTensorMode():
        for each in inputs:
            maker.input(core, *each)
        for call in calls:
            maker.result(call)
        for number in outputs:
            if (place := calls[number][-1]) >= 0:
                maker.call(aten.copy_.default, maker.places[place], maker.values[number])
    maker.graph.output(tuple(maker.values[n] for n in outputs if calls[n][-1] < 0))
    return torch.fx.GraphModule({}, maker.graph)


def compile_region(
    number: int,
    core: int,
    inputs: Sequence[Input],
    calls: Sequence[Call],
    outputs: Sequence[int],
) -> Any:
    """Return the program (`_C.Program`) of a region, or None if there is none that fits."""
    from torch_neuronx.dynamo.importer import import_graph  # noqa: PLC0415 - the compiler
    from torch_neuronx.dynamo.native import compile_native  # noqa: PLC0415
    from torch_neuronx.dynamo.outputs import Output  # noqa: PLC0415

    imported = import_graph(region_graph(core, inputs, calls, outputs), f"region{number}")
    returned = sum(calls[number][-1] < 0 for number in outputs)
    plain = tuple(Output("result", i) for i in range(returned))
    if tuple(imported.arguments) != tuple(range(len(inputs))) or tuple(imported.outputs) != plain:
        return None
    return compile_native(imported, _AS_EAGER).executable.run


def _compile_all() -> None:
    while (wanted := _C.next_region()) is not None:
        program = None
        try:
            program = compile_region(*wanted)
        except Exception:  # noqa: BLE001 - whatever it is, it is told, and the operators run one by one as before
            _LOG.warning("a region of operators could not be compiled", exc_info=True)
        _C.finish_region(wanted[0], program)


@functools.cache
def start() -> None:
    """Start the thread that compiles, once."""
    thread = threading.Thread(target=_compile_all, name="neuron-regions", daemon=True)
    thread.start()

    def stop() -> None:
        _C.stop_regions()
        thread.join()

    atexit.register(stop)
