"""From graphs to device programs: groups are recorded, equal ones once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any

from neuronxcc.ir.graph import Graph, Loc
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.options import Options
from neuronxcc.passes import pipeline
from neuronxcc.targets import DEFAULT_TARGET, Target, get_target
from nki.device.calls import without_calls
from nki.device.emitter import Emitter, NoLoweringError, require_form
from nki.device.fixed import prepared
from nki.device.groups import Group, fused
from nki.device.kernels import run_group
from nki.device.program import DeviceProgram
from nki.device.schedule import scheduled
from nki.device.sections import Section, count
from nki.device.types import HELD, has_form, stored_shape
from nki.errors import NkiError
from nki.language import ndarray, program_id, shared_hbm
from nki.launch import Slot, record
from nki.recording import Recording

__all__ = ["InstructionLimitError", "lower"]

# Kernels that write some elements of their result twice. The performance model follows no order of
# writes to HBM that nobody reads, so these stay as they are.
_WRITTEN_TWICE = frozenset({"pad", "dynamic_update_slice", "scatter"})
_FUSED = 2  # the level of optimisation from which on operators are in groups
_MOST = 4096  # recordings that are kept


class _Kept:
    """Recordings by what they are of; those that were used longest ago go first."""

    def __init__(self) -> None:
        self._known: OrderedDict[Any, Any] = OrderedDict()

    def get(self, key: Any) -> Any:
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
        return found

    def put(self, key: Any, value: Any) -> None:
        self._known[key] = value
        while len(self._known) > _MOST:
            self._known.popitem(last=False)


_RECORDED = _Kept()


def lower(
    graph: Graph,
    target: str | Target | None = None,
    options: Options | None = None,
    *,
    passes: bool = True,
    weights: Collection[int] = (),
) -> DeviceProgram:
    """Lower a graph to instructions of a NeuronCore.

    Args:
        graph: as a front end made it.
        target: the chip, by default that of the options.
        options: of the compiler.
        passes: run the compiler's passes first; False for a graph that went through them.
        weights: numbers of the parameters that never change: what depends on them alone is computed
            when the program is loaded.

    Raises:
        InstructionLimitError: there are more instructions than an option allows (NCC_EBVF030).
    """
    if options is None:
        chosen = get_target(target or DEFAULT_TARGET) if not isinstance(target, Target) else target
        options = Options(target=chosen.name, lnc=chosen.default_lnc)
    if target is None:
        target = options.target
    chip = get_target(target) if isinstance(target, str) else target
    if passes:
        graph = pipeline.run(graph, options)
    graph = without_calls(graph)
    lnc = options.lnc if options.lnc in chip.supported_lnc else chip.default_lnc
    graph, fixed = prepared(graph, weights)
    alone = frozenset(node for node in graph.nodes() if not _has_forms(node))
    while True:
        groups, sources = fused(graph, alone, fixed, fuse=options.optlevel >= _FUSED)
        made = [_section(group, chip, graph.locs, lnc) for group in groups]
        # What has no instructions must not keep others from theirs.
        culprits = {culprit for _, culprit in made if culprit is not None} - alone
        if not culprits:
            break
        alone |= culprits
    sections = tuple(section for section, _ in made)
    found = ((node, sources.of(node)) for node in graph.nodes())
    views = {node: use for node, use in found if use.source is not node}
    program = DeviceProgram(graph, chip, options, sections, views, lnc, _notes(options, chip, lnc))
    most = options.max_instructions
    if most is not None and program.instructions > most:
        raise InstructionLimitError(program.instructions, most)
    return program


class InstructionLimitError(ValueError):
    """A graph has more instructions than the compiler's option allows.

    Attributes:
        code: the documented code.
        instructions: how many there are.
        limit: how many are allowed.
    """

    code = "NCC_EBVF030"

    def __init__(self, instructions: int, limit: int) -> None:
        self.instructions, self.limit = instructions, limit
        super().__init__(
            f"[{self.code}] number of instructions generated exceeds the limit: {instructions}, "
            f"allowed are {limit} (--internal-max-instruction-limit). Split the model: pipeline or "
            "tensor parallelism, or several smaller graphs"
        )


def _notes(options: Options, target: Target, lnc: int) -> tuple[str, ...]:
    """Return what the user should know of options that change no instruction here."""
    found = []
    if options.lnc != lnc:
        found.append(
            f"--lnc {options.lnc} does not exist on {target.name}: {lnc} physical core(s) are used"
        )
    if options.optlevel > _FUSED:
        found.append(
            f"--optlevel {options.optlevel} has the groups of level {_FUSED}: no tensor stays in "
            "SBUF from one section to the next"
        )
    if options.model_type != "generic":
        found.append(f"--model-type {options.model_type} changes no instruction of device programs")
    if options.distribution_strategy:
        found.append(
            f"--distribution-strategy {options.distribution_strategy} changes no instruction of "
            "device programs: they have no collectives"
        )
    if options.enable_saturate_infinity:
        found.append("--enable-saturate-infinity changes no instruction of device programs")
    if options.stochastic_rounding:
        found.append("stochastic rounding: its 64-bit hashes are computed in 32 bits, and differ")
    return tuple(found)


def _has_forms(node: Node) -> bool:
    return all(has_form(t.dtype) for part in (node, *node.srcs) for t in part.types)


def _section(
    group: Group, target: Target, locs: Mapping[Node, Loc], cores: int
) -> tuple[Section, Node | None]:
    """Return a section, and the node because of which it has no instructions if it has others."""
    inputs = tuple(group.inputs())
    outputs = tuple(group.outputs)
    known = {node: locs[node] for node in group.nodes if node in locs}
    key = (id(target), cores, _key(group, inputs, outputs))
    found = _RECORDED.get(key)
    if found is None:
        try:
            recording = _recorded(group, inputs, outputs, target, known, cores)
            found = (recording, count(recording), "", "", None, target)
        except NoLoweringError as error:
            place = group.nodes.index(error.node) if error.node in group.nodes else 0
            found = (None, 0, error.reason, error.code, place, target)
        _RECORDED.put(key, found)
    # The target is kept because its id is in the key.
    recording, instructions, reason, code, place, _ = found
    section = Section(
        (*group.nodes, *group.stored), group.kind, inputs, outputs, recording, reason, code, known,
        instructions, group.once,
    )  # fmt: skip
    return section, None if place is None or len(group.nodes) == 1 else group.nodes[place]


def _key(group: Group, inputs: tuple[Node, ...], outputs: tuple[Node, ...]) -> Any:
    """Return what is equal for groups whose instructions are the same."""
    numbers = {node: number for number, node in enumerate((*inputs, *group.nodes))}
    rows: list[Any] = [group.kind, tuple(group.spaces), tuple(node.types for node in inputs)]
    for node in group.nodes:
        uses = []
        for source, view in group.uses[node]:
            known: Any = numbers.get(source)
            if known is None:
                known = (source.types, source["literal"])
            uses.append((known, view))
        attrs = tuple((k, type(v), repr(v) if isinstance(v, float) else v)
                      for k, v in node.attrs.items())  # fmt: skip
        rows.append((node.op, node.types, attrs, tuple(uses)))
    rows.append(tuple(_output(node, group, numbers) for node in outputs))
    rows.append(tuple(sorted(numbers[node] for node in group.lines)))
    return tuple(rows)


def _output(node: Node, group: Group, numbers: Mapping[Node, Any]) -> Any:
    stored = group.stored.get(node)
    if stored is not None:
        return numbers[stored.source], stored.view, node.types
    if node.op is Op.GET:
        return numbers[node.srcs[0]], node["index"]
    return numbers[node]


def _recorded(
    group: Group,
    inputs: tuple[Node, ...],
    outputs: tuple[Node, ...],
    target: Target,
    locs: Mapping[Node, Loc],
    cores: int,
) -> Recording:
    for node in (*inputs, *outputs):
        require_form(node.dtype)
    e = Emitter(target, {node: (loc.file, loc.line) for node, loc in locs.items()})

    grid = (cores,) if cores > 1 else ()
    e.cores = cores

    def kernel(*tensors: Any) -> Any:
        e.core = program_id(0) if grid else 0
        results = {
            node: ndarray(stored_shape(node.type), dtype=HELD[node.dtype], buffer=shared_hbm)
            for node in outputs
        }
        run_group(e, group, dict(zip(inputs, tensors, strict=True)), results)
        return tuple(results[node] for node in outputs)

    kernel.__name__ = group.nodes[0].op.value
    slots = tuple(
        Slot(i, f"arg{i}", stored_shape(node.type), HELD[node.dtype])
        for i, node in enumerate(inputs)
    )
    try:
        recording = record(kernel, [(slots, {})], target=target, grid=grid)
        return recording if group.kind in _WRITTEN_TWICE else scheduled(recording, target)
    except NoLoweringError as error:
        error.node = e.node
        raise
    except NkiError as error:
        refused = NoLoweringError(f"{error.what} [{error.code}]")
        refused.node = e.node
        raise refused from error
