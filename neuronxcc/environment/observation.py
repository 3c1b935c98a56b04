"""Variables that have a program observed, or disturbed."""

from __future__ import annotations

from neuronxcc.environment.variable import FLAG, PATH, TEXT, Reader, Section, number

_GUIDE = "Runtime configuration guide"

OBSERVATION = Section(
    "Profiles and faults",
    "[profiling.md](profiling.md) says what a profile has and where it is written, "
    "[faults.md](faults.md) has the table of faults. With `NEURON_RT_INSPECT_ENABLE` a process is "
    "observed from the import of PyTorch to its end; use it without `torch.profiler`.",
)

NEURON_RT_INSPECT_ENABLE = OBSERVATION.variable(
    "NEURON_RT_INSPECT_ENABLE", FLAG,
    "1: what the process does on its cores is written to a profile when it ends",
    default=False, source=_GUIDE, readers={Reader.DEVICE},
)  # fmt: skip
NEURON_RT_INSPECT_OUTPUT_DIR = OBSERVATION.variable(
    "NEURON_RT_INSPECT_OUTPUT_DIR", PATH,
    "Where profiles are written",
    default=None, source=_GUIDE, readers={Reader.DEVICE}, said="`./output`",
)  # fmt: skip
NEURON_RT_INSPECT_SYSTEM_PROFILE = OBSERVATION.variable(
    "NEURON_RT_INSPECT_SYSTEM_PROFILE", FLAG,
    "0: without what the runtime did (`ntrace.pb`)",
    default=True, source=_GUIDE, readers={Reader.DEVICE},
)  # fmt: skip
NEURON_RT_INSPECT_DEVICE_PROFILE = OBSERVATION.variable(
    "NEURON_RT_INSPECT_DEVICE_PROFILE", TEXT,
    "0: without what the cores did (`profile_nc_<core>_session_0.ntff`). 1, `model` and `session` "
    "are the same here. The documents say 0 and the header of the runtime 1 of the default",
    default="", source=_GUIDE, readers={Reader.DEVICE}, said="1",
)  # fmt: skip
NEURON_RT_INSPECT_SYS_TRACE_MAX_EVENTS_PER_NC = OBSERVATION.variable(
    "NEURON_RT_INSPECT_SYS_TRACE_MAX_EVENTS_PER_NC", number(1, 1 << 40, "events"),
    "Of each core the latest so many activities are kept",
    default=1_000_000, source=_GUIDE, readers={Reader.DEVICE},
)  # fmt: skip
NEURON_RT_INSPECT_EVENT_FILTER_NC = OBSERVATION.variable(
    "NEURON_RT_INSPECT_EVENT_FILTER_NC", TEXT,
    "The cores that are observed, `0-3,5`",
    default="", source=_GUIDE, readers={Reader.DEVICE}, said="all",
)  # fmt: skip
NEURON_RT_INSPECT_CPU_UTIL = OBSERVATION.variable(
    "NEURON_RT_INSPECT_CPU_UTIL", FLAG,
    "1: the use of the host's processors is sampled, too (`cpu_util.pb`)",
    default=False, source=_GUIDE, readers={Reader.DEVICE},
)  # fmt: skip
NEURON_RT_INSPECT_HOST_MEMORY = OBSERVATION.variable(
    "NEURON_RT_INSPECT_HOST_MEMORY", FLAG,
    "1: the use of the host's memory is sampled, too (`host_mem.pb`)",
    default=False, source=_GUIDE, readers={Reader.DEVICE},
)  # fmt: skip
TORCH_NEURONX_FAULTS = OBSERVATION.variable(
    "TORCH_NEURONX_FAULTS", TEXT,
    "Faults that are to happen in the process, `name:option=value,...;name:...`, as "
    "`torch_neuronx.testing.inject` takes them: `lost_rank:rank=1,at=20,attempt=0`",
    default="", source="TorchNeuron", readers={Reader.DEVICE},
)  # fmt: skip
