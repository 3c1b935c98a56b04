"""`NeuronProfiler`: writes what torch.profiler recorded into the documented output directory."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from neuron_tools.explorer import session as files
from neuron_tools.explorer.session import Event, Session
from neuronxcc.files import write_whole
from torch_neuronx import __version__, _config
from torch_neuronx.profiling.config import NeuronConfig, ProfileMode
from torch_neuronx.profiling.recording import predicted
from torch_neuronx.profiling.sampling import Sampler

# Kineto's names of activity types, and how a profile's files call them.
_KINDS = {"gpu_memcpy": "copy", "gpu_user_annotation": "program", "privateuse1_runtime": "issue"}
_FIRST_GROUP = 1000  # rows of a core from here on are groups of ranks (csrc/device/profiler.cpp)


class NeuronProfiler:
    """Exports profiles of torch.profiler.

        config = NeuronConfig(modes=[ProfileMode.DEVICE, ProfileMode.RUNTIME])
        exporter = NeuronProfiler(config)
        with torch.profiler.profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1],
            experimental_config=config,
            on_trace_ready=exporter.export_trace,
        ):
            step()

    An older form is a context manager that is the profiler, too; it takes the keywords below and no
    configuration. It also writes `framework_mapping_<time>.json`: what each program ran.

    Args:
        config: What is observed. The host is sampled from here to the last export.
        pytorch_activities: Older form: activities of torch.profiler; by default all.
        record_shapes: Older form: as of torch.profiler.
        pytorch_trace_file: Older form: name of the trace, "pytorch_trace.json" if not given.
        neuron_output_dir: Older form: the output directory.
        event_filters: Older form: `{"nc": [cores], "types": [kinds of events]}` to keep.
    """

    def __init__(
        self,
        config: NeuronConfig | None = None,
        *,
        pytorch_activities: Iterable[ProfilerActivity] | None = None,
        record_shapes: bool = False,
        pytorch_trace_file: str | None = None,
        neuron_output_dir: str = "./output",
        event_filters: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        filters = dict(event_filters or {})
        unknown = set(filters) - {"nc", "types"}
        if unknown:
            raise ValueError(f"event_filters has {sorted(unknown)}; it can have 'nc' and 'types'")
        if config is None:
            cores = ",".join(map(str, filters.get("nc", ())))
            config = NeuronConfig(
                capture_enabled_for_nc=cores, profile_output_dir=neuron_output_dir
            )
        self.config = config
        self._types = frozenset(filters["types"]) if "types" in filters else None
        self._trace_file = pytorch_trace_file
        self._own: profile | None = None
        self._activities = set(
            (ProfilerActivity.CPU, ProfilerActivity.PrivateUse1)
            if pytorch_activities is None
            else pytorch_activities
        )
        self._record_shapes = record_shapes
        self._sampler: Sampler | None = None
        self._sample()
        self.folder: Path | None = None

    def _sample(self) -> None:
        cpu = ProfileMode.CPU_UTIL in self.config.modes
        memory = ProfileMode.HOST_MEMORY in self.config.modes
        if cpu or memory:
            self._sampler = Sampler(cpu=cpu, memory=memory)

    def export_trace(self, profiler: profile) -> None:
        """Write a profile; to be given to torch.profiler as `on_trace_ready`.

        The directory is `<profile_output_dir>/<host>_pid_<pid>/<time>`, and `folder` afterwards.
        """
        assert profiler.profiler is not None
        results = profiler.profiler.kineto_results
        assert results is not None
        events = [event for each in results.events() if (event := self._event(each)) is not None]
        found = Session(events=events, info=information(self.config))
        if self._sampler is not None:
            self._sampler.stop()
            start = results.trace_start_ns()
            found.cpu = [sample for sample in self._sampler.cpu if sample.time >= start]
            found.memory = [sample for sample in self._sampler.memory if sample.time >= start]
            self._sample()
        self.folder = files.new_folder(self.config.profile_output_dir)
        profiler.export_chrome_trace(str(self.folder / files.TRACE_FILE))
        files.write(
            found,
            self.folder,
            device=ProfileMode.DEVICE in self.config.modes,
            runtime=ProfileMode.RUNTIME in self.config.modes,
        )

    def _event(self, each: Any) -> Event | None:
        if each.device_type() == DeviceType.PrivateUse1:
            kind = _KINDS.get(each.activity_type(), "kernel")
            if kind == "kernel" and each.device_resource_id() >= _FIRST_GROUP:
                kind = "communication"
            core, row = each.device_index(), each.device_resource_id()
        else:
            kind = _KINDS.get(each.activity_type(), "operator")
            if each.is_user_annotation():
                kind = "annotation"
            core, row = -1, each.start_thread_id()
        if self._types is not None and kind not in self._types:
            return None
        facts = _facts(each.metadata_json()) | predicted(each.name(), kind)
        if each.linked_correlation_id():
            facts["operator"] = each.linked_correlation_id()
        elif kind in {"operator", "annotation"}:
            facts["id"] = each.correlation_id()
        start = each.start_ns()
        return Event(each.name(), kind, start, max(start, each.end_ns()), core, row, facts)

    def __enter__(self) -> Self:
        self._own = profile(
            activities=self._activities,
            record_shapes=self._record_shapes,
            experimental_config=self.config,
        )
        self._own.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._own is not None
        own, self._own = self._own, None
        own.__exit__(kind, error, traceback)
        self.export_trace(own)
        assert self.folder is not None
        (self.folder / files.TRACE_FILE).rename(
            self.folder / (self._trace_file or "pytorch_trace.json")
        )
        now = time.time_ns()
        stamp = time.strftime("%Y%m%d_%H%M%S", time.localtime(now // 10**9))
        write_whole(
            self.folder / f"framework_mapping_{stamp}_{now // 10**6 % 1000:03}.json",
            json.dumps(mapping_of(files.read(self.folder).events), indent=1).encode(),
        )
        self.close()

    def close(self) -> None:
        """End sampling the host."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None


def information(config: NeuronConfig | None = None) -> dict[str, Any]:
    """Return what a profile says of the process and its machine."""
    machine = _config.machine()
    return {
        "target": machine.target.name,
        "lnc": machine.lnc,
        "cores": machine.device_count,
        "hbm_bytes": machine.hbm_bytes,
        "version": __version__,
        "time": "host",  # measured on the host that emulates; no prediction
        "modes": sorted(mode.value for mode in config.modes) if config is not None else [],
    }


def mapping_of(events: Iterable[Event]) -> dict[str, Any]:
    """Return for each program, and each kind of fused region, the operators that it ran."""
    programs: dict[str, dict[str, None]] = {}
    for event in events:
        program, operators = event.facts.get("program"), event.facts.get("operators")
        if program is not None:
            programs.setdefault(str(program), {})[event.name] = None
        elif operators is not None:
            programs.setdefault(f"region of {operators}", {}).update(
                dict.fromkeys(str(operators).split(", "))
            )
    return {"programs": [{"name": n, "operators": list(ops)} for n, ops in programs.items()]}


def _facts(text: str) -> dict[str, Any]:
    """Read what Kineto says of an event: the inside of an object of JSON."""
    if not text:
        return {}
    try:
        found = json.loads(f"{{{text}}}")
    except ValueError:
        return {"metadata": text}
    return {
        key: int(value) if isinstance(value, str) and value.isdecimal() else value
        for key, value in found.items()
    }
