"""How long device programs take: their sections on one timeline, and what each of them adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.perf import MODEL_VERSION, Parameters, Prediction, Stream, model_of
from neuronxcc.perf import predict as predict_stream
from neuronxcc.perf.parameters import CALIBRATED, STATED_ERROR
from neuronxcc.targets import Target
from nki.device.exchanges import Job
from nki.device.joined import joined
from nki.device.sections import Section
from nki.perf.streams import stream_of
from nki.recording import Recording

__all__ = ["ProgramPrediction", "SectionTime", "predicted", "time_of"]

_US = 1e6
_MOST = 4096  # recordings of which streams and times are kept


class SectionTime(NamedTuple):
    """What is predicted of one section.

    Attributes:
        section: the section.
        device_us: microseconds that it adds, next to what runs beside the section before.
        prediction: of its recording by itself; None where it has none.
        begin_us: when it begins, in microseconds from the program's begin.
        end_us: when it ends. A collective that runs beside others adds less than lies between.
    """

    section: Section
    device_us: float
    prediction: Prediction | None
    begin_us: float = 0.0
    end_us: float = 0.0

    @property
    def estimated(self) -> bool:
        """The time is one of bytes, operations and links, not of instructions."""
        return self.prediction is None


@dataclass(frozen=True, slots=True)
class ProgramPrediction:
    """How long a device program would take.

    The fields that `neuronxcc.perf.Prediction` has as well mean the same.

    Attributes:
        name: of the graph.
        target: name of the chip.
        cores: physical cores.
        model: version of the model.
        calibrated: the model's parameters were fitted to measurements of this chip.
        device_us: microseconds of all sections.
        launch_us: what running a program costs besides.
        load_us: microseconds of what runs when the program is loaded; not in `device_us`.
        interval_us: where the truth is expected, of `latency_us`.
        instructions: how many run.
        busy_us: by engine, "dma", and "cc" for collectives of a job: microseconds that it works.
        moved_bytes: by DMA.
        hbm_bytes: of these, those that HBM gives or takes.
        spilled_bytes: of these, those that are there because memory on the chip is too small.
        flops: multiplications and additions of products.
        sections: what is predicted of each section, in order.
        notes: what is not modelled.
    """

    name: str
    target: str
    cores: int
    model: int
    calibrated: bool
    device_us: float
    launch_us: float
    load_us: float
    interval_us: tuple[float, float]
    instructions: int
    busy_us: dict[str, float]
    moved_bytes: int
    hbm_bytes: int
    spilled_bytes: int
    flops: int
    sections: tuple[SectionTime, ...]
    notes: tuple[str, ...]

    @property
    def latency_us(self) -> float:
        """Microseconds from asking for the program until it has ended."""
        return self.device_us + self.launch_us

    @property
    def utilisation(self) -> dict[str, float]:
        """By engine, and "dma": the share of the device's time that it works."""
        total = self.device_us
        return {name: busy / total if total else 0.0 for name, busy in self.busy_us.items()}

    @property
    def bound_by(self) -> str:
        """The busiest engine or "dma"; "latency" where none works half of the time."""
        name, most = max(self.utilisation.items(), key=lambda pair: pair[1], default=("", 0.0))
        return name if most >= 0.5 else "latency"

    @property
    def estimated_us(self) -> float:
        """Microseconds of the sections that have no instructions."""
        return sum(time.device_us for time in self.sections if time.estimated)


class _Known:
    """What is known of recordings: streams and times; of so many that were met last."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Recording, dict[object, Any]]] = {}

    def of(self, recording: Recording, key: object, make: Callable[[], Any]) -> Any:
        """Return what was made for a recording under a key, made when it is first asked for."""
        found = self._of.get(id(recording))
        if found is None or found[0] is not recording:
            found = self._of[id(recording)] = (recording, {})
            while len(self._of) > _MOST:
                self._of.pop(next(iter(self._of)))  # what was met first
        if key not in found[1]:
            found[1][key] = make()
        return found[1][key]


_KNOWN = _Known()


def _stream(recording: Recording) -> Stream:
    made: Stream = _KNOWN.of(
        recording, "stream", lambda: stream_of(recording, compiled=recording.compiled)
    )
    return made


def time_of(
    recording: Recording, target: Target, parameters: Parameters | None = None
) -> Prediction:
    """Return the time of a section by itself."""
    made: Prediction = _KNOWN.of(
        recording,
        (target.name, parameters),
        lambda: predict_stream(_stream(recording), target, parameters=parameters),
    )
    return made


def _added(
    before: Section, section: Section, target: Target, parameters: Parameters | None
) -> float:
    """Return microseconds by which a section makes a program longer that ends with another one."""
    first, second = before.recording, section.recording
    assert first is not None
    assert second is not None
    links = tuple(
        (before.outputs.index(node), number)
        for number, node in enumerate(section.inputs)
        if node in before.outputs
    )

    def added() -> float:
        both = joined((_stream(first), _stream(second)), (first, second), links)
        made = predict_stream(both, target, parameters=parameters)
        more = max(0.0, made.device_us - time_of(first, target, parameters).device_us)
        # What is loaded ahead may delay what the second section waits for: then it isn't.
        return min(more, time_of(second, target, parameters).device_us)

    # The first recording is kept by the key, so that its id is no other one's.
    found: float = _KNOWN.of(second, (target.name, parameters, _Same(first), links), added)
    return found


def _overlap(before: Section, section: Section) -> bool:
    """Return whether a section begins while another one ends; kernels of users begin after it."""
    return before.recording is not None and "kernel" not in (before.kind, section.kind)


class _Same:
    """A recording as a part of keys: equal to itself alone."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.recording is other.recording

    def __hash__(self) -> int:
        return id(self.recording)


def predicted(
    sections: Sequence[Section], name: str, target: Target, parameters: Parameters | None,
    job: Job | None = None,
    *,
    beside: bool = False,
) -> ProgramPrediction:  # fmt: skip
    """Return what is predicted of sections on one timeline.

    A section overlaps with the one before it, but not with earlier ones. A collective begins when
    what it sends is there and the one before it has ended, and who comes behind it waits; or, if it
    runs beside the others, who needs what it brings.
    """
    clock = _Clock(target, parameters, job, beside=beside)
    for section in sections:
        clock.run(section)
    return clock.prediction(name)


class _Clock:
    """The time of a program, section by section."""

    def __init__(
        self, target: Target, parameters: Parameters | None, job: Job | None, *, beside: bool
    ) -> None:
        self._target, self._parameters, self._job = target, parameters, job
        self._beside = beside
        self._model = model_of(target, parameters)
        self._times: list[SectionTime] = []
        self._busy: dict[str, float] = {}
        self._notes: dict[str, None] = {}
        self._at = self._load = 0.0
        self._totals = dict.fromkeys(("moved_bytes", "hbm_bytes", "spilled_bytes", "flops"), 0)
        self._instructions, self._cores = 0, 1
        self._before: Section | None = None
        self._link = _Link()

    def run(self, section: Section) -> None:
        """Let a section run behind those before it."""
        if section.once:
            if section.recording is not None:
                self._load += time_of(section.recording, self._target, self._parameters).device_us
            return
        if section.kind == "collective":
            self._exchange(section)
            return
        there = self._link.wait(section.inputs, self._at, self._times)
        if there > self._at:
            self._at, self._before = there, None
        made = None
        if section.recording is not None:
            made = time_of(section.recording, self._target, self._parameters)
            spent = self._spent(section, made)
            self._count(made)
        else:
            spent = self._bounded(section)
            reason = f"{section.operator}: {section.reason}; its time is that of its bytes"
            self._notes[reason] = None
        self._times.append(SectionTime(section, spent, made, self._at, self._at + spent))
        self._at += spent
        self._before = section

    def _spent(self, section: Section, made: Prediction) -> float:
        before = self._before
        if before is None or not _overlap(before, section):
            return made.device_us
        return _added(before, section, self._target, self._parameters)

    def _count(self, made: Prediction) -> None:
        for engine, us in made.busy_us.items():
            self._busy[engine] = self._busy.get(engine, 0.0) + us
        for name in self._totals:
            self._totals[name] += getattr(made, name)
        self._instructions += made.instructions
        self._cores = max(self._cores, made.cores)
        self._notes.update(dict.fromkeys(made.notes))

    def _bounded(self, section: Section) -> float:
        return _bounded(section, self._model.hbm_gbps, self._model.dma_gbps, self._target)

    def _exchange(self, section: Section) -> None:
        """Ask for a collective, and wait for it if nothing runs beside it."""
        link = self._link
        if self._job is None:
            us = self._bounded(section)
            self._notes[f"{section.operator}: of no job; its time is that of its bytes"] = None
        else:
            us, note = _exchanged(section, self._job)
            self._notes[note] = None
            self._busy["cc"] = self._busy.get("cc", 0.0) + us
        if section.reason:
            self._notes[f"{section.operator} is no instruction: {section.reason}"] = None
        self._instructions += section.instructions
        link.ask(section, len(self._times), self._at, us)
        self._times.append(SectionTime(section, 0.0, None, link.begin, link.free))
        if not self._beside:
            self._at = link.wait(section.outputs, self._at, self._times)
            self._before = None

    def prediction(self, name: str) -> ProgramPrediction:
        """Return what is predicted, when all sections have run."""
        at = self._link.wait(tuple(self._link.brought), self._at, self._times)
        # What is hidden behind neighbours twice is not hidden: the busiest engine has to work.
        at = max(at, max(self._busy.values(), default=0.0))
        launch = self._model.launch / _US
        latency = at + launch
        return ProgramPrediction(
            name=name,
            target=self._target.name,
            cores=self._cores,
            model=MODEL_VERSION,
            calibrated=self._target.name in CALIBRATED,
            device_us=at,
            launch_us=launch,
            load_us=self._load,
            interval_us=(latency / (1 + STATED_ERROR), latency * (1 + STATED_ERROR)),
            instructions=self._instructions,
            busy_us=self._busy,
            sections=tuple(self._times),
            notes=tuple(self._notes),
            **self._totals,
        )


class _Link:
    """The cores of collectives: one collective after the other.

    Attributes:
        begin: when the last one begins.
        free: when it has ended.
        brought: by node the collective's number among the times, and when its result is there.
    """

    def __init__(self) -> None:
        self.begin = self.free = 0.0
        self.brought: dict[Node, tuple[int, float]] = {}

    def ask(self, section: Section, number: int, at: float, us: float) -> None:
        """Begin a collective as soon as may be."""
        needs = [self.brought[node][1] for node in section.inputs if node in self.brought]
        self.begin = max([at, self.free, *needs])
        self.free = self.begin + us
        self.brought.update(dict.fromkeys(section.outputs, (number, self.free)))

    def wait(self, nodes: Sequence[Node], at: float, times: list[SectionTime]) -> float:
        """Return when nodes are there; what that takes longer is the time of who brings them."""
        for node in nodes:
            number, there = self.brought.get(node, (0, 0.0))
            if there > at:
                made = times[number]
                times[number] = made._replace(device_us=made.device_us + there - at)
                at = there
        return at


def _exchanged(section: Section, job: Job) -> tuple[float, str]:
    """Return microseconds of a collective, and what they are."""
    us = job.us(section.nodes[0])
    if us is None:
        return 0.0, f"{section.operator}: nothing is published about a link that it crosses"
    return us, f"collectives by bytes and links ({job.era})"


def _bounded(section: Section, hbm: float, dma: float, target: Target) -> float:
    """Return microseconds of a section without instructions: its bytes, or its products."""
    nbytes = sum(t.nbytes for node in (*section.inputs, *section.outputs) for t in node.types)
    products = sum(_products(node) for node in section.nodes)
    rate = target.core.tensor.peak_tflops.get("bfloat16", 1.0)
    return max(nbytes / min(hbm, dma) / 1e3, products / rate / 1e6)


def _products(node: Node) -> int:
    if node.op is Op.CONVOLUTION:
        weights = node.srcs[1].type.size
        features = max(1, node.shape[node["out_spec"][1]])
        return int(2 * node.type.size * weights // features)
    return 0
