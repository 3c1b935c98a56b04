"""From graphs to device programs: groups are recorded, equal ones once."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from neuronxcc.ir.graph import Graph, Loc
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.places import patterns_of
from neuronxcc.options import Options
from neuronxcc.passes import autocast, pipeline
from neuronxcc.targets import DEFAULT_TARGET, Target, get_target
from nki.device.beside import hoisted
from nki.device.calls import without_calls
from nki.device.chains import (
    Chain,
    chains_of,
    cut_of,
    inner_of,
    neighbours,
    pairs_of,
    residents_of,
    run_chain,
)
from nki.device.constants import without_wide_constants
from nki.device.control import without_control
from nki.device.emitter import Emitter, NoLoweringError, require_form
from nki.device.exchanged import exchange_section, plain_collectives
from nki.device.exchanges import COLLECTIVES
from nki.device.fixed import prepared
from nki.device.groups import Group, fused
from nki.device.kernel_calls import Kernels, section_of
from nki.device.prediction import time_of
from nki.device.program import DeviceProgram
from nki.device.resident import NotResidentError, Resident
from nki.device.schedule import scheduled
from nki.device.sections import Section, count
from nki.device.types import HELD, has_form, stored_shape
from nki.errors import NkiError
from nki.language import ndarray, private_hbm, program_id, shared_hbm
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
    kernels: Kernels | None = None,
) -> DeviceProgram:
    """Lower a graph to instructions of a NeuronCore.

    Args:
        graph: as a front end made it.
        target: the chip, by default that of the options.
        options: of the compiler.
        passes: run the compiler's passes first; False for a graph that went through them.
        weights: numbers of the parameters that never change: what depends on them alone is computed
            when the program is loaded.
        kernels: gives the recordings of NKI's kernels that the graph calls.

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
    graph = plain_collectives(without_control(graph))
    calls = any(node.op in (Op.CUSTOM_CALL, Op.HOST_CALL) for node in graph.nodes())
    graph = without_wide_constants(without_calls(graph))
    if calls and options.auto_cast_type != "tf32":
        # The products of what was a call are cast as others are.
        graph = autocast.cast(graph, options.auto_cast, options.auto_cast_type)
    lnc = options.lnc if options.lnc in chip.supported_lnc else chip.default_lnc
    graph, fixed = prepared(graph, weights)
    alone = frozenset(node for node in graph.nodes() if not _has_forms(node))
    called = _called(graph, kernels)
    exchanges = frozenset(node for node in graph.nodes() if node.op in COLLECTIVES)
    while True:
        groups, sources = fused(
            graph, alone, fixed, fuse=options.optlevel >= _FUSED, whole=exchanges | called.keys()
        )
        results = {node for r in graph.results for node in (r, sources.of(r).source)}
        users = _Users(groups, frozenset(results))
        chained = options.optlevel >= _FUSED
        groups = neighbours(groups) if chained else groups
        keys = [_key((g,), _inputs((g,)), tuple(g.outputs)) for g in groups]
        made: list[tuple[Section, Node | None]] = []
        for chain in chains_of(groups, keys, chained=chained):
            whole = _whole(chain[0], called, chip, graph.locs)
            made += [(whole, None)] if whole else _sections(chain, users, chip, graph.locs, lnc)
        # What has no instructions must not keep others from theirs.
        culprits = {culprit for _, culprit in made if culprit is not None} - alone
        if not culprits:
            break
        alone |= culprits
    sections = tuple(section for section, _ in made)
    if options.distribution_strategy:
        sections = tuple(hoisted(sections, graph))
    found = ((node, sources.of(node)) for node in graph.nodes())
    views = {node: use for node, use in found if use.source is not node}
    notes = (*_notes(options, chip, lnc), *_alone(sections, lnc))
    program = DeviceProgram(graph, chip, options, sections, views, lnc, notes)
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
    if options.model_type != "generic":
        found.append(f"--model-type {options.model_type} changes no instruction of device programs")
    if options.enable_saturate_infinity:
        found.append("--enable-saturate-infinity changes no instruction of device programs")
    if options.stochastic_rounding:
        found.append("stochastic rounding: its 64-bit hashes are computed in 32 bits, and differ")
    return tuple(found)


def _alone(sections: Sequence[Section], cores: int) -> tuple[str, ...]:
    """Return a note about sections that one of several cores does alone."""
    if cores == 1:
        return ()
    known = [s for s in sections if s.recording is not None and s.kind != "collective"]
    alone = [s for s in known if s.recording and len({t.core for t in s.recording.templates}) == 1]
    if not alone:
        return ()
    names = ", ".join(sorted({section.operator for section in alone}))
    return (
        (
            f"--lnc {cores}: one core alone does {len(alone)} of {len(known)} sections, which have "
            f"too few rows for more or write in an order that more would not keep: {names}"
        ),
    )


def _called(graph: Graph, kernels: Kernels | None) -> dict[Node, Recording]:
    """Return the recordings of kernels that a graph calls, by call."""
    found: dict[Node, Recording] = {}
    if kernels is None:
        return found
    for node in graph.nodes():
        if node.op is Op.CUSTOM_CALL:
            recording = kernels(node)
            if recording is not None:
                found[node] = recording
    return found


def _whole(
    group: Group, called: Mapping[Node, Recording], target: Target, locs: Mapping[Node, Loc]
) -> Section | None:
    """Return the section of a collective or of a kernel that the graph calls, None for others."""
    node = group.nodes[0]
    if node.op in COLLECTIVES:
        return exchange_section(group, target, locs)
    return section_of(group, called[node], locs) if node in called else None


def _has_forms(node: Node) -> bool:
    return all(has_form(t.dtype) for part in (node, *node.srcs) for t in part.types)


class _Users:
    """Who needs what of groups."""

    def __init__(self, groups: Sequence[Group], results: frozenset[Node]) -> None:
        self._results = results
        self._groups: dict[Node, set[Group]] = {}
        for group in groups:
            for node in group.inputs():
                self._groups.setdefault(node, set()).add(group)

    def outside(self, chain: Chain) -> tuple[Node, ...]:
        """Return what a chain makes that others need, or the caller."""
        mine = set(chain)
        return tuple(
            node
            for group in chain
            for node in group.outputs
            if len(chain) == 1 or node in self._results or self._groups.get(node, mine) - mine
        )


def _inputs(chain: Chain) -> tuple[Node, ...]:
    """Return what comes from elsewhere, once each."""
    mine = {node for group in chain for node in group.outputs}
    found = (node for group in chain for node in group.inputs())
    return tuple(dict.fromkeys(node for node in found if node not in mine))


def _sections(
    chain: Chain, users: _Users, target: Target, locs: Mapping[Node, Loc], cores: int
) -> list[tuple[Section, Node | None]]:
    """Return sections, and of each the node because of which it has no instructions, if any.

    Several cores share them, unless one core alone is done with a chain sooner: if there are so few
    rows that cores would have to exchange all that stays on the chip of one.
    """
    shared = _parts(chain, users, target, locs, cores)
    inner, _ = inner_of(chain, frozenset())
    if cores == 1 or not any(Resident.may(n) and not Resident.may(n, cores) for n in inner):
        return shared
    alone = _parts(chain, users, target, locs, 1)
    return min(shared, alone, key=lambda made: _us(made, target))


def _us(made: Sequence[tuple[Section, Node | None]], target: Target) -> float:
    """Return microseconds of sections one after the other; those without instructions take long."""
    recordings = [section.recording for section, _ in made]
    return sum(time_of(one, target).device_us if one else math.inf for one in recordings)


def _parts(
    chain: Chain, users: _Users, target: Target, locs: Mapping[Node, Loc], cores: int
) -> list[tuple[Section, Node | None]]:
    """Return sections, and of each the node because of which it has no instructions, if any.

    A chain is cut where nothing stays in SBUF from one group to the next, and in halves if it does
    not fit.
    """
    inputs, outputs = _inputs(chain), users.outside(chain)
    nodes = tuple(node for group in chain for node in (*group.nodes, *group.stored))
    known = {node: locs[node] for node in nodes if node in locs}
    key = (id(target), cores, _key(chain, inputs, outputs))
    found = _RECORDED.get(key)
    if found is None:
        try:
            made = _fitting(chain, inputs, outputs, target, known, cores)
            found = (made, 0 if isinstance(made, int) else count(made), "", "", None, target)
        except NoLoweringError as error:
            computed = [node for group in chain for node in group.nodes]
            place = computed.index(error.node) if error.node in computed else 0
            found = (None, 0, error.reason, error.code, place, target)
        _RECORDED.put(key, found)
    # The target is kept because its id is in the key.
    recording, instructions, reason, code, place, _ = found
    if len(chain) > 1 and not isinstance(recording, Recording):
        half = recording or len(chain) // 2
        return [
            one
            for part in (chain[:half], chain[half:])
            for one in _parts(part, users, target, locs, cores)
        ]
    section = Section(
        nodes, chain[0].kind if len(chain) == 1 else "chain", inputs, outputs, recording, reason,
        code, known, instructions, chain[0].once,
    )  # fmt: skip
    computed = [node for group in chain for node in group.nodes]
    alone = place is None or len(computed) == 1
    return [(section, None if alone else computed[place])]


def _key(chain: Chain, inputs: tuple[Node, ...], outputs: tuple[Node, ...]) -> Any:
    """Return what is equal for chains whose instructions are the same."""
    made = [node for group in chain for node in (*group.nodes, *group.stored)]
    numbers = {node: number for number, node in enumerate((*inputs, *made))}
    rows: list[Any] = [tuple(node.types for node in inputs)]
    for group in chain:
        rows += [group.kind, tuple(group.spaces)]
        for node in group.nodes:
            uses = []
            for source, view in group.uses[node]:
                known: Any = numbers.get(source)
                if known is None:
                    known = (source.types, source["literal"])
                uses.append((known, view))
            attrs = tuple((k, type(v), repr(v) if isinstance(v, float) else v)
                          for k, v in node.attrs.items() if k != "sequence")  # fmt: skip
            # Places that constants say are in the instructions, not in an operand.
            places = patterns_of(node) if node.op is Op.GATHER else None
            rows.append((node.op, node.types, attrs, tuple(uses), places))
        rows.append(tuple(_output(node, group, numbers) for node in group.outputs))
        rows.append(tuple(sorted(numbers[node] for node in group.lines)))
    known_ = {node: group for group in chain for node in group.outputs}
    rows.append(tuple(_output(node, known_[node], numbers) for node in outputs))
    return tuple(rows)


def _output(node: Node, group: Group, numbers: Mapping[Node, Any]) -> Any:
    stored = group.stored.get(node)
    if stored is not None:
        return numbers[stored.source], stored.view, node.types
    if node.op is Op.GET:
        return numbers[node.srcs[0]], node["index"]
    return numbers[node]


def _fitting(
    chain: Chain,
    inputs: tuple[Node, ...],
    outputs: tuple[Node, ...],
    target: Target,
    locs: Mapping[Node, Loc],
    cores: int,
) -> Recording | int:
    """Record a chain with as much in SBUF between its groups as can be.

    Returns:
        The recording, or the number of a group before which nothing stays.

    Raises:
        NoLoweringError: there are no instructions, or it does not fit.
    """
    if len(chain) == 1:
        return _recorded(chain, inputs, outputs, {}, target, locs, cores)
    inner, _ = inner_of(chain, frozenset(outputs))
    without: set[Node] = set()
    while True:
        stays = residents_of(chain, inner, frozenset(without), cores)
        cut = cut_of(chain, inner, stays, cores)
        if cut:
            return cut
        try:
            return _recorded(chain, inputs, outputs, stays, target, locs, cores)
        except NotResidentError as error:
            without.add(error.node)
        except NoLoweringError as error:
            largest = max(stays.values(), key=lambda r: r.bytes, default=None)
            if "NKI220" not in error.reason or largest is None:
                raise
            without.add(largest.node)


def _recorded(
    chain: Chain,
    inputs: tuple[Node, ...],
    outputs: tuple[Node, ...],
    stays: Mapping[Node, Resident],
    target: Target,
    locs: Mapping[Node, Loc],
    cores: int,
) -> Recording:
    for node in (*inputs, *outputs):
        require_form(node.dtype)
    e = Emitter(target, {node: (loc.file, loc.line) for node, loc in locs.items()})
    single = frozenset(pairs_of(chain).values())

    grid = (cores,) if cores > 1 else ()
    e.cores = cores

    def kernel(*tensors: Any) -> Any:
        e.core = program_id(0) if grid else 0
        results = {
            node: ndarray(stored_shape(node.type), dtype=HELD[node.dtype], buffer=shared_hbm)
            for node in outputs
        }
        places: dict[Node, Any] = dict(results)
        for group in chain:
            for node in group.outputs:
                if node in stays:
                    here = stays[node].of_core(e.core, any_row=node in single)
                    here.hbm = results.get(node)
                    places[node] = here
                elif node not in places:
                    shape, kind = stored_shape(node.type), HELD[node.dtype]
                    places[node] = ndarray(shape, dtype=kind, buffer=private_hbm)
        run_chain(e, chain, dict(zip(inputs, tensors, strict=True)), places)
        return tuple(results[node] for node in outputs)

    kernel.__name__ = chain[0].nodes[0].op.value
    slots = tuple(
        Slot(i, f"arg{i}", stored_shape(node.type), HELD[node.dtype])
        for i, node in enumerate(inputs)
    )
    try:
        recording = record(kernel, [(slots, {})], target=target, grid=grid)
        return recording if chain[0].kind in _WRITTEN_TWICE else scheduled(recording, target)
    except NoLoweringError as error:
        error.node = e.node
        raise
    except NkiError as error:
        refused = NoLoweringError(f"{error.what} [{error.code}]")
        refused.node = e.node
        raise refused from error
