"""Compiling what the thread of a core has found to come again: regions of enqueued operators.

`torch_neuronx/csrc/program/regions.cpp` finds them, says what is wanted, and runs the result. This
module makes an FX graph of a region and a program of that, in a thread of its own, so that nothing
waits for it: until a program is there, the operators of a region run one by one.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import logging
import math
import threading
from typing import TYPE_CHECKING, Any, Final

import torch

from torch_neuronx import _C

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neuronxcc.ir.graph import Graph
    from torch_neuronx.program.executable import Executable

_LOG = logging.getLogger(__name__)
aten = torch.ops.aten

#: (operator, overload, arguments, number of the type of the result, its sizes and strides, the
#: number of the input in whose memory it lies, or -1, and which result of the operator it is: those
#: of one follow each other, and only the first has the arguments)
Call = tuple[str, str, list[Any], int, tuple[int, ...], tuple[int, ...], int, int]
#: (number of the type, sizes, strides)
Input = tuple[int, tuple[int, ...], tuple[int, ...]]


def _place(call: Call) -> int:
    """The number of the input in whose memory the result lies, or -1."""
    return call[6]


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
        self.several: list[torch.fx.Node] = []  # all results of the last operator

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
        """What one operator gives, `wanted` being the sizes of its (first) result."""
        given = [self._argument(each) for each in arguments]
        if name == "copy_":  # all of a tensor by another one
            source = given[1]
            same = source.meta["val"].shape == wanted
            return source if same else self.call(aten.expand.default, source, list(wanted))
        if name == "native_dropout":  # behind the drawing: of what, the mask, the factor
            x, keep, scale = given
            dtype = x.meta["val"].dtype
            kept = self.call(aten.mul.Tensor, x, self._cast(keep, dtype))
            # The eager kernel rounds the factor to the type first.
            return self.call(aten.mul.Tensor, kept, _rounded(scale, dtype))
        if name == "native_layer_norm":
            return self._layer_norm(*given)
        # What writes in place gives what it would give elsewhere.
        target = getattr(getattr(aten, name.removesuffix("_")), overload or "default")
        named = list(zip(target._schema.arguments, given, strict=True))  # noqa: SLF001
        return self.call(
            target,
            *(value for about, value in named if not about.kwarg_only),
            **{about.name: value for about, value in named if about.kwarg_only},
        )

    def result(self, call: Call) -> None:
        name, overload, arguments, dtype, sizes, _, _, number = call
        wanted = TYPES_BY_NUMBER[dtype]
        if number == 0:
            made = self.operator(name, overload, arguments, torch.Size(sizes))
            self.several = made if isinstance(made, list) else [made]
        node = self.several[number]
        if name == "copy_" or (name.endswith("_") and node.meta["val"].dtype != wanted):
            node = self._cast(node, wanted)
        value = node.meta["val"]
        if (value.dtype, tuple(value.shape)) != (wanted, sizes):
            raise ValueError(f"{name} gives {value.dtype}{list(value.shape)}, not {sizes}")
        self.values.append(node)

    def _layer_norm(
        self,
        x: torch.fx.Node,
        normalized: list[int],
        weight: torch.fx.Node | None,
        bias: torch.fx.Node | None,
        eps: float,
    ) -> list[torch.fx.Node]:
        """Return result, mean and 1 / deviation, as `norm_row` (kernels/norm_impl.h) makes them."""
        dtype = x.meta["val"].dtype
        over = [-1 - d for d in range(len(normalized))]
        wide = self._cast(x, torch.float32)
        mean = self.call(aten.mean.dim, wide, over, True)  # noqa: FBT003 - keepdim
        centred = self.call(aten.sub.Tensor, wide, mean)
        squares = self.call(aten.mul.Tensor, centred, centred)
        total = self.call(aten.sum.dim_IntList, squares, over, True)  # noqa: FBT003
        variance = self.call(
            aten.div.Tensor, self._cast(total, torch.float64), float(math.prod(normalized))
        )
        rounded = _rounded(eps, torch.float32)
        deviation = self.call(aten.sqrt.default, self.call(aten.add.Tensor, variance, rounded))
        scale = self._cast(self.call(aten.reciprocal.default, deviation), torch.float32)
        y = self.call(aten.mul.Tensor, centred, scale)
        if weight is not None:
            y = self.call(aten.mul.Tensor, y, self._cast(weight, torch.float32))
        if bias is not None:
            y = self.call(aten.add.Tensor, y, self._cast(bias, torch.float32))
        return [self._cast(y, dtype), mean, scale]

    def _cast(self, node: torch.fx.Node, dtype: torch.dtype) -> torch.fx.Node:
        return self.call(
            aten._to_copy.default,  # noqa: SLF001
            node,
            dtype=dtype,
            memory_format=torch.contiguous_format,
        )

    def _argument(self, given: Any) -> Any:
        if isinstance(given, list):
            return [self._argument(each) for each in given]
        if isinstance(given, tuple):
            kind, number = given
            return (self.places if kind == "input" else self.values)[number]
        return given


def _rounded(number: float, dtype: torch.dtype) -> float:
    from torch._subclasses.fake_tensor import unset_fake_temporarily  # noqa: PLC0415 - loads much

    with unset_fake_temporarily():
        return torch.tensor(number, dtype=dtype).item()


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
            if (place := _place(calls[number])) >= 0:
                maker.call(aten.copy_.default, maker.places[place], maker.values[number])
    maker.graph.output(tuple(maker.values[n] for n in outputs if _place(calls[n]) < 0))
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
    returned = sum(_place(calls[number]) < 0 for number in outputs)
    plain = tuple(Output("result", i) for i in range(returned))
    if tuple(imported.arguments) != tuple(range(len(inputs))) or tuple(imported.outputs) != plain:
        return None
    executable = compile_native(imported, _AS_EAGER).executable
    return executable.run if _sums_as_eager(imported.graph, executable) else None


def _sums_as_eager(graph: Graph, executable: Executable) -> bool:
    """Whether machine code adds up each row in the order of the eager kernel.

    Both have one order for rows of a length (`neuronxcc/codegen/llvm/reduction.py`). Not if the
    lanes lie otherwise, or if few long rows are added up in parts.
    """
    from neuronxcc.codegen.llvm.host import Host  # noqa: PLC0415 - the compiler
    from neuronxcc.codegen.llvm.reduction import adds_rows  # noqa: PLC0415
    from neuronxcc.ir.op import Op  # noqa: PLC0415
    from neuronxcc.lowering.preparation.rewrites import is_divided  # noqa: PLC0415

    sums = [node for node in graph.nodes() if node.op is Op.REDUCE]
    if not sums:
        return True
    host = Host.detect()
    if any(map(is_divided, sums)) or host.lanes != _C.kernel_lanes():
        return False
    wanted = {node.srcs[0].type.size // max(node.type.size, 1) for node in sums} - {1}
    found = {adds_rows(kernel, host) for kernel in executable.kernels} - {0}
    return found == wanted


def _compile_all() -> None:
    while (wanted := _C.next_region()) is not None:
        program = None
        try:
            program = compile_region(*wanted)
        except Exception:  # noqa: BLE001 - whatever it is, it is told, and the operators run one by one as before
            _LOG.warning("a region of operators could not be compiled", exc_info=True)
        _C.finish_region(wanted[0], program)


#: What compiling imports, packages before what is in them.
_NEEDED: Final = ("torch._dynamo", "torch_neuronx.dynamo.importer", "torch_neuronx.dynamo.native")


@functools.cache
def start() -> None:
    """Start the thread that compiles, once, in a process that uses the device.

    What it imports is imported by the thread that asks for it, or uses the device first. Two
    threads that import modules which import each other see half of these: Python would rather
    give them than wait for ever. Whoever imported Dynamo then, for torch.compile, could fail.
    """
    if _C.is_initialized():
        _start()
    else:
        _C.call_at_first_use(_start)


def _start() -> None:
    for name in _NEEDED:
        importlib.import_module(name)
    thread = threading.Thread(target=_compile_all, name="neuron-regions", daemon=True)
    thread.start()

    def stop() -> None:
        _C.stop_regions()
        thread.join()

    atexit.register(stop)
