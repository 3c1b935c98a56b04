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

#: (operator, overload, arguments, number of the type of the result, its sizes)
Call = tuple[str, str, list[Any], int, tuple[int, ...]]
#: (number of the type, sizes, strides)
Input = tuple[int, tuple[int, ...], tuple[int, ...]]


#: PyTorch's numbers of the types that regions have (c10/core/ScalarType.h).
TYPES_BY_NUMBER: Final = {5: torch.float16, 6: torch.float32, 11: torch.bool, 15: torch.bfloat16}


def region_graph(
    core: int, inputs: Sequence[Input], calls: Sequence[Call], outputs: Sequence[int]
) -> torch.fx.GraphModule:
    """Make the functional graph of a region; nodes carry fake tensors in ``meta["val"]``.

    Args:
        core: Where its tensors lie.
        inputs: Tensors from outside of the region.
        calls: In their order. Arguments are numbers, None, ``("input", i)``, ``("value", i)`` for
            the result of call `i`, and lists of these.
        outputs: The calls whose results are wanted.

    Raises:
        ValueError: PyTorch says that a call gives another type or shape than it gave.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415 - loads much

    graph = torch.fx.Graph()
    device = torch.device("neuron", core)
    places: list[torch.fx.Node] = []
    values: list[torch.fx.Node] = []

    def argument(given: Any) -> Any:
        if isinstance(given, list):
            return [argument(each) for each in given]
        if isinstance(given, tuple):
            kind, number = given
            return (places if kind == "input" else values)[number]
        return given

    def call(target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = graph.call_function(target, args, kwargs)
        known = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        node.meta["val"] = target(*known, **kwargs)
        return node

    with FakeTensorMode():
        for i, (dtype, sizes, strides) in enumerate(inputs):
            node = graph.placeholder(f"arg{i}_1")
            node.meta["val"] = torch.empty_strided(
                sizes, strides, dtype=TYPES_BY_NUMBER[dtype], device=device
            )
            places.append(node)
        for name, overload, arguments, dtype, sizes in calls:
            if name == "copy_":  # all of a tensor by another one
                source = argument(arguments[1])
                if tuple(source.meta["val"].shape) != sizes:
                    source = call(aten.expand.default, source, list(sizes))
                node = call(
                    aten._to_copy.default,  # noqa: SLF001
                    source,
                    dtype=TYPES_BY_NUMBER[dtype],
                    memory_format=torch.contiguous_format,
                )
            else:
                target = getattr(getattr(aten, name), overload or "default")
                schema = target._schema.arguments  # noqa: SLF001
                named = list(zip(schema, map(argument, arguments), strict=True))
                node = call(
                    target,
                    *(value for about, value in named if not about.kwarg_only),
                    **{about.name: value for about, value in named if about.kwarg_only},
                )
            value = node.meta["val"]
            if (value.dtype, tuple(value.shape)) != (TYPES_BY_NUMBER[dtype], sizes):
                raise ValueError(f"{name} gives {value.dtype}{list(value.shape)}, not {sizes}")
            values.append(node)
    graph.output(tuple(values[number] for number in outputs))
    return torch.fx.GraphModule({}, graph)


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
    plain = tuple(Output("result", i) for i in range(len(outputs)))
    if tuple(imported.arguments) != tuple(range(len(inputs))) or tuple(imported.outputs) != plain:
        return None
    return compile_native(imported, {}).executable.run


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
