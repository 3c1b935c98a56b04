"""From fused units to the program's steps, still over storages instead of buffers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neuronxcc.codegen.loop import scalars
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node, Operand
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.lowering.classify import CONTROL, origin
from neuronxcc.lowering.emission.kernel_calls import Callee, body_of, callee_of
from neuronxcc.lowering.emission.kernels import Emitted, emit
from neuronxcc.lowering.fusion.cluster import Cluster, Storage
from neuronxcc.lowering.fusion.convolve import ConvRegion, is_narrow, step_of
from neuronxcc.lowering.fusion.fuse import Fused
from neuronxcc.lowering.fusion.units import Home, Made, Opaque, Product, Tensor, Unit
from neuronxcc.lowering.geometry.layout import Layout, collapsed
from neuronxcc.lowering.geometry.products import matrix
from neuronxcc.program.memory import View
from neuronxcc.program.program import AnyStep, CallStep, Program
from neuronxcc.program.steps import made
from neuronxcc.program.steps.collective import CollectiveStep, WaitStep
from neuronxcc.program.steps.conv import ConvStep
from neuronxcc.program.steps.copy import CopyStep
from neuronxcc.program.steps.gemm import GemmStep
from neuronxcc.program.steps.loop import LoopStep
from neuronxcc.program.steps.operator import AtenStep

BufferOf = Callable[[Storage], int]


@dataclass(eq=False)
class Draft:
    """A step before buffers have numbers.

    Attributes:
        unit: What it came from.
        reads: Storages it reads.
        writes: Storages it writes.
        build: Makes the step, given the number of each storage's buffer.
    """

    unit: Unit
    reads: list[Storage]
    writes: list[Storage]
    build: Callable[[BufferOf], AnyStep]


@dataclass(eq=False)
class CollectiveDraft(Draft):
    """The start of a collective, or of a bucket of them.

    Attributes:
        node: The first one.
        windows: Of each its input and its result.
        loc: The user's line of the first.
        position: Of the step in the program, once that is known.
    """

    node: Node
    windows: list[tuple[Window, Window]]
    loc: str
    position: int = -1

    @classmethod
    def of(
        cls, unit: Unit, node: Node, windows: list[tuple[Window, Window]], loc: str
    ) -> CollectiveDraft:
        """The draft that starts collectives like `node`."""

        def build(buffer_of: BufferOf) -> AnyStep:
            inputs, outs = zip(*windows, strict=True)
            attrs = node.attrs
            return CollectiveStep(
                node.op.value,
                attrs["name"],
                attrs.get("group", ()),
                tuple(window.view(buffer_of) for window in inputs),
                tuple(window.view(buffer_of) for window in outs),
                attrs.get("kind", ""),
                attrs.get("root", 0),
                attrs.get("send", ()),
                attrs.get("receive", ()),
                attrs.get("pairs", ()),
                loc,
            )

        reads = [window.storage for window, _ in windows]
        writes = [window.storage for _, window in windows]
        return cls(unit, reads, writes, build, node, windows, loc)

    @classmethod
    def joined(cls, drafts: Sequence[CollectiveDraft]) -> CollectiveDraft:
        """One draft for several."""
        first = drafts[0]
        if len(drafts) == 1:
            return first
        windows = [pair for draft in drafts for pair in draft.windows]
        return cls.of(first.unit, first.node, windows, first.loc)


@dataclass(eq=False)
class WaitDraft(Draft):
    """Waits for a collective; a use of its memory, which nobody else may use in between."""

    start: CollectiveDraft

    @classmethod
    def of(cls, start: CollectiveDraft) -> WaitDraft:
        """The wait for a collective."""

        def build(_: BufferOf) -> AnyStep:
            return WaitStep(start.position, start.loc)

        return cls(start.unit, start.reads, start.writes, build, start)


def has_effect(draft: Draft) -> bool:
    """Return whether the order among such steps matters beyond what they read and write."""
    unit = draft.unit
    if not isinstance(unit, Opaque):
        return False
    if unit.node.get("sequence") is not None or has_collectives(draft):
        return True
    return any(_has(body, lambda n: n.get("sequence") is not None) for body in _bodies(unit.node))


def has_collectives(draft: Draft) -> bool:
    """Return whether it calls programs in which there are collectives."""
    bodies = _bodies(draft.unit.node) if isinstance(draft.unit, Opaque) else ()
    return any(_has(body, lambda node: node.op in Group.COLLECTIVE) for body in bodies)


def _has(graph: Graph, what: Callable[[Node], bool]) -> bool:
    return any(
        what(node) or any(_has(body, what) for body in _bodies(node)) for node in graph.nodes()
    )


@dataclass(frozen=True)
class Window:
    """A View over a storage."""

    storage: Storage
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def storages(self) -> tuple[Storage, ...]:
        """The storages that are read through it."""
        return (self.storage,)

    def view(self, buffer_of: BufferOf) -> View:
        """The same over a numbered buffer."""
        dtype = self.storage.node.dtype
        return View(buffer_of(self.storage), dtype, self.shape, self.strides, self.offset)


@dataclass(frozen=True)
class MadeWindow:
    """The same of an operand that is made."""

    emitted: Emitted
    dtype: DType
    shape: tuple[int, ...]
    by_columns: bool

    @property
    def storages(self) -> tuple[Storage, ...]:
        """The storages that are read."""
        return tuple(storage for storage, _ in self.emitted.operands)

    def view(self, buffer_of: BufferOf) -> made.Made:
        """The operand of a step."""
        operands = _numbered(self.emitted, buffer_of)
        return made.Made(self.emitted.kernel, operands, self.dtype, self.shape, self.by_columns)


class Drafter:
    """Makes the draft of every unit.

    Args:
        fused: What fusion made of the graph.
        lower_body: Lowers the graph of a body with these strides of parameters.
        loc: Of a node, as text.
        constant: Numbers of the parameters that are the same at many calls.
    """

    def __init__(
        self,
        fused: Fused,
        lower_body: Callable[..., Program],
        loc: Callable[[Node], str],
        constant: Collection[int],
    ) -> None:
        self.places = fused.places
        self.lower_body = lower_body
        self.loc = loc
        self._constant = {fused.graph.params[i] for i in constant}

    def window(self, operand: Tensor) -> Window:
        """The whole of a tensor."""
        if isinstance(operand, Storage):
            return Window(operand.resolve(), operand.shape, operand.strides, 0)
        storage, layout = self.places.place(operand)
        return Window(storage, operand.shape, layout.strides, layout.offset)

    def draft(self, unit: Unit) -> Draft | None:
        """The step of a unit; None if there is nothing to do."""
        if isinstance(unit, Cluster):
            return self._loop(unit)
        if isinstance(unit, Product):
            return self._product(unit)
        if isinstance(unit, Home):
            return self._home(unit)
        if unit.node.op in Group.COLLECTIVE:
            return self._collective(unit)
        return self._control(unit) if unit.node.op in CONTROL else self._call(unit)

    def _loop(self, cluster: Cluster) -> Draft | None:
        if not all(cluster.extents.values()):
            return None
        emitted = emit(cluster, self.places.place)
        reads, writes = _split(cluster, emitted)

        def build(buffer_of: BufferOf) -> AnyStep:
            return LoopStep(emitted.kernel, _numbered(emitted, buffer_of))

        return Draft(cluster, reads, writes, build)

    def _home(self, unit: Home) -> Draft | None:
        storage = unit.storage.resolve()
        param = self.places.params[unit.storage.home]
        if storage is param or not param.node.type.size:
            return None
        strides = param.strides
        windows = [Window(s, param.shape, strides, 0) for s in (storage, param)]

        def build(buffer_of: BufferOf) -> AnyStep:
            return CopyStep(windows[0].view(buffer_of), windows[1].view(buffer_of))

        return Draft(unit, [storage], [param], build)

    # ---- products -----------------------------------------------------------------------------

    def _product(self, unit: Product) -> Draft | None:
        region, cluster = unit.region, unit.cluster
        dot = region.dot
        if not dot.type.size or not cluster.writes:
            return None
        if isinstance(region, ConvRegion):
            return self._convolution(unit, region)
        k = _size(dot.srcs[0].shape[d] for d in dot["lhs_contract"])
        shapes = ((region.batch, region.m, k), (region.batch, k, region.n))
        a_view, b_view = (
            self._factor(dot, side, operand, shapes[side])
            for side, operand in enumerate(unit.operands)
        )
        rhs = unit.operands[1]
        constant = isinstance(rhs, Node) and origin(rhs) in self._constant
        reads = [*a_view.storages, *b_view.storages]
        out = self._plain_out(unit)
        if out is not None:

            def build(buffer_of: BufferOf) -> AnyStep:
                a, b = a_view.view(buffer_of), b_view.view(buffer_of)
                return GemmStep(a, b, out.view(buffer_of), constant_b=constant)

            return Draft(unit, reads, [out.storage], build)
        emitted = emit(cluster, self.places.place)
        more, writes = _split(cluster, emitted)

        def build_fused(buffer_of: BufferOf) -> AnyStep:
            return GemmStep(
                a_view.view(buffer_of),
                b_view.view(buffer_of),
                None,
                epilogue=emitted.kernel,
                epilogue_operands=_numbered(emitted, buffer_of),
                constant_b=constant,
            )

        return Draft(unit, [*reads, *more], writes, build_fused)

    def _convolution(self, unit: Product, region: ConvRegion) -> Draft:
        cluster, dot = unit.cluster, region.dot
        image, filters = unit.operands
        assert not isinstance(image, Made)
        assert not isinstance(filters, Made)
        x, w = self.window(image), self.window(filters)
        constant = isinstance(filters, Node) and origin(filters) in self._constant
        narrow, loc = is_narrow(region, cluster), self.loc(dot)

        def step(buffer_of: BufferOf, out: Window | None) -> ConvStep:
            view = None if out is None else out.view(buffer_of)
            operands = (x.view(buffer_of), w.view(buffer_of), view)
            return step_of(region, *operands, constant=constant, narrow=narrow, loc=loc)

        plain = len(cluster.writes) == 1 and cluster.writes[0].node is dot
        if plain and dot.dtype is dot.srcs[0].dtype:
            (write,) = cluster.writes
            out = Window(write.storage.resolve(), dot.shape, write.strides, write.offset)
            reads = [x.storage, w.storage]
            return Draft(unit, reads, [out.storage], lambda buffer_of: step(buffer_of, out))
        emitted = emit(cluster, self.places.place)
        more, writes = _split(cluster, emitted)

        def build(buffer_of: BufferOf) -> AnyStep:
            operands = _numbered(emitted, buffer_of)
            fused = step(buffer_of, None)
            return replace(fused, epilogue=emitted.kernel, epilogue_operands=operands)

        return Draft(unit, [x.storage, w.storage, *more], writes, build)

    def _factor(
        self, dot: Node, side: int, operand: Tensor | Made, shape: tuple[int, int, int]
    ) -> Window | MadeWindow:
        if isinstance(operand, Made):
            emitted = emit(operand.cluster, self.places.place)
            return MadeWindow(emitted, dot.srcs[side].dtype, shape, operand.by_columns)
        window = self.window(operand)
        strides = matrix(dot, side, Layout(window.strides))
        assert strides is not None
        batch, free, contract = strides
        ordered = (batch, contract, free) if side else (batch, free, contract)
        return Window(window.storage, shape, ordered, window.offset)

    def _plain_out(self, unit: Product) -> Window | None:
        """The matrix that takes the product as it is; None if a kernel has to store it."""
        dot, region = unit.region.dot, unit.region
        if len(unit.cluster.writes) != 1 or unit.cluster.writes[0].node is not dot:
            return None
        if dot.dtype is not dot.srcs[0].dtype:
            return None
        (write,) = unit.cluster.writes
        batch, rows = len(dot["lhs_batch"]), dot.srcs[0].type.rank - len(dot["lhs_contract"])
        strides = []
        for begin, end in ((0, batch), (batch, rows), (rows, dot.type.rank)):
            stride = collapsed(dot.shape[begin:end], write.strides[begin:end])
            if stride is None:
                return None
            strides.append(stride)
        if region.n == 1:
            strides[2] = 1
        if region.m == 1:
            strides[1] = region.n
        if strides[2] != 1 and strides[1] != 1:
            return None
        shape = (region.batch, region.m, region.n)
        return Window(write.storage.resolve(), shape, tuple(strides), write.offset)

    # ---- calls --------------------------------------------------------------------------------

    def _call(self, unit: Opaque) -> Draft:
        node = unit.node
        operands = [self.window(operand) for operand in unit.operands]
        # What the operator returns, in its order; `outs` says which result of the node each one is.
        places = node.get("outs", tuple(range(len(unit.outs))))
        wanted = [None if place is None else unit.outs[place] for place in places]
        outs = [None if out is None else self.window(out) for out in wanted]
        callee = callee_of(node)
        if callee is not None:
            return self._kernel(unit, callee, operands)
        loc = self.loc(node)

        def build(buffer_of: BufferOf) -> AnyStep:
            def filled(value: Any) -> Any:
                if isinstance(value, Operand):
                    return operands[value.index].view(buffer_of)
                return tuple(map(filled, value)) if isinstance(value, tuple) else value

            return AtenStep(
                node["target"],
                filled(node["args"]),
                {name: filled(value) for name, value in node["kwargs"]},
                tuple(None if out is None else out.view(buffer_of) for out in outs),
                host=node.op is Op.HOST_CALL,
                device=node["device"],
                loc=loc,
            )

        return Draft(
            unit,
            [window.storage for window in operands],
            [window.storage for window in outs if window is not None],
            build,
        )

    def _collective(self, unit: Opaque) -> Draft:
        """Its result has a place also if nobody wants it: the other ranks wait for this one."""
        (operand,), (out,) = unit.operands, unit.outs
        assert out is not None
        windows = [(self.window(operand), self.window(out))]
        return CollectiveDraft.of(unit, unit.node, windows, self.loc(unit.node))

    def _kernel(self, unit: Opaque, callee: Callee, operands: list[Window]) -> Draft:
        """The call of a program that was lowered elsewhere."""
        node = unit.node
        used = [None if out is None else out.type for out in unit.outs]
        places = [None if a is None else a.index for a in node["args"][0]]
        types = [None if i is None else node.srcs[i].type for i in places]
        strides = [None if i is None else operands[i].strides for i in places]
        body = body_of(callee, strides, types, used)
        outs = [self.window(out) for out in unit.outs if out is not None]

        def build(buffer_of: BufferOf) -> AnyStep:
            windows = tuple(window.view(buffer_of) for window in operands)
            return CallStep("call", (body,), windows, tuple(o.view(buffer_of) for o in outs))

        return Draft(unit, [w.storage for w in operands], [out.storage for out in outs], build)

    def _control(self, unit: Opaque) -> Draft:
        node = unit.node
        windows = [self.window(operand) for operand in unit.operands]
        selector = windows.pop(0) if node.op is Op.CONDITIONAL else None
        strides = [window.strides for window in windows]
        bodies = [self.lower_body(body, strides) for body in _bodies(node)]
        kind = {Op.WHILE: "while", Op.CONDITIONAL: "cond", Op.CALL: "call"}[node.op]
        outs = [self.window(out) for out in unit.outs if out is not None]

        def build(buffer_of: BufferOf) -> AnyStep:
            return CallStep(
                kind,
                tuple(bodies),
                tuple(window.view(buffer_of) for window in windows),
                tuple(out.view(buffer_of) for out in outs),
                None if selector is None else selector.view(buffer_of),
            )

        reads = [window.storage for window in windows]
        reads += [] if selector is None else [selector.storage]
        return Draft(unit, reads, [out.storage for out in outs], build)


def _bodies(node: Node) -> tuple[Graph, ...]:
    if node.op is Op.WHILE:
        return (node["cond"], node["body"])
    if node.op is Op.CONDITIONAL:
        return tuple(node["branches"])
    return (node["body"],) if node.op is Op.CALL else ()


def _size(extents: Any) -> int:
    size = 1
    for extent in extents:
        size *= extent
    return size


def _split(cluster: Cluster, emitted: Emitted) -> tuple[list[Storage], list[Storage]]:
    """Storages of an emitted kernel that it reads, and those that it writes."""
    writes = list(dict.fromkeys(write.storage.resolve() for write in cluster.writes))
    # What is written in parts keeps its other elements, so it counts as read too.
    partly = {w.storage.resolve() for w in cluster.writes if cluster.has_updates or w.mask}
    reads = [s for s, _ in emitted.operands if s not in writes or s in partly]
    loaded = _loaded_slots(emitted)
    reads += [s for i, (s, _) in enumerate(emitted.operands) if i in loaded and s not in reads]
    return reads, writes


def _loaded_slots(emitted: Emitted) -> set[int]:
    shift = len(emitted.kernel.slots) - len(emitted.operands)
    return {s.access.slot - shift for s in scalars(emitted.kernel) if s.access is not None}


def _numbered(emitted: Emitted, buffer_of: BufferOf) -> tuple[tuple[int, int], ...]:
    return tuple((buffer_of(storage), start) for storage, start in emitted.operands)
