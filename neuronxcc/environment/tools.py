"""Variables of the tools around the device: neuron-ls, neuron-monitor and the others."""

from __future__ import annotations

from neuronxcc.environment.variable import PATH, TEXT, Reader, Section, choice

_OURS = "TorchNeuron"
_MONITOR = "Neuron Monitor user guide"

TOOLS = Section("Tools", "[tools.md](tools.md) explains the commands.")

NEURON_PROCESS_TAG = TOOLS.variable(
    "NEURON_PROCESS_TAG", TEXT,
    "What neuron-monitor and neuron-top call this process, at most 255 characters",
    default="", source=_MONITOR, readers={Reader.DEVICE}, said="its number",
)  # fmt: skip
TORCH_NEURONX_REGISTRY_DIR = TOOLS.variable(
    "TORCH_NEURONX_REGISTRY_DIR", TEXT,
    "The directory where each process that uses the device keeps a file with its counters, which "
    "the tools read; `off`: it keeps none. Nobody else may enter it",
    default="", source=_OURS, readers={Reader.TOOLS, Reader.DEVICE},
    said="`/dev/shm/torchneuron-<user id>`",
)  # fmt: skip
TORCH_NEURONX_CLOCK = TOOLS.variable(
    "TORCH_NEURONX_CLOCK", choice("host", "model"),
    "Whose time utilisation and device latencies are: `host`, what this computer took; `model`, "
    "what a NeuronCore is predicted to take for operators of eager mode, collectives, the programs "
    "of `torch.compile`, traced models, NEFF files of nrtpy and kernels of NKI, in processes that "
    "run with it, too. Tools say of each process whose time it is, and of how many of its "
    "executions",
    default="host", source=_OURS, readers={Reader.TOOLS, Reader.DEVICE},
)  # fmt: skip
NEURON_EMULATED_INSTANCE_TYPE = TOOLS.variable(
    "NEURON_EMULATED_INSTANCE_TYPE", TEXT,
    "The EC2 instance type that the tools describe, such as `trn1.32xlarge`, and whose network "
    "predicted times of collectives are of",
    default="", source=_OURS, readers={Reader.TOOLS, Reader.DEVICE},
    said="the smallest that has the chips which processes use",
)  # fmt: skip
NEURON_EMULATED_INSTANCE_ID = TOOLS.variable(
    "NEURON_EMULATED_INSTANCE_ID", TEXT,
    "The instance's identifier, for the tools",
    default="", source=_OURS, readers={Reader.TOOLS},
)  # fmt: skip
NEURON_EMULATED_INSTANCE_NAME = TOOLS.variable(
    "NEURON_EMULATED_INSTANCE_NAME", TEXT,
    "The instance's name, for neuron-monitor",
    default="", source=_OURS, readers={Reader.TOOLS},
)  # fmt: skip
NEURON_EMULATED_INSTANCE_REGION = TOOLS.variable(
    "NEURON_EMULATED_INSTANCE_REGION", TEXT,
    "The instance's region, for neuron-monitor",
    default="", source=_OURS, readers={Reader.TOOLS},
)  # fmt: skip
NEURON_EMULATED_INSTANCE_AVAILABILITY_ZONE = TOOLS.variable(
    "NEURON_EMULATED_INSTANCE_AVAILABILITY_ZONE", TEXT,
    "The instance's availability zone, for neuron-monitor",
    default="", source=_OURS, readers={Reader.TOOLS},
)  # fmt: skip
NEURON_EMULATED_INSTANCE_AVAILABILITY_ZONE_ID = TOOLS.variable(
    "NEURON_EMULATED_INSTANCE_AVAILABILITY_ZONE_ID", TEXT,
    "The identifier of that zone, such as `use1-az4`, for neuron-monitor",
    default="", source=_OURS, readers={Reader.TOOLS},
)  # fmt: skip
NEURON_EMULATED_INSTANCE_AMI_ID = TOOLS.variable(
    "NEURON_EMULATED_INSTANCE_AMI_ID", TEXT,
    "The instance's image, for neuron-monitor",
    default="", source=_OURS, readers={Reader.TOOLS},
)  # fmt: skip
NEURON_EMULATED_INSTANCE_SUBNET_ID = TOOLS.variable(
    "NEURON_EMULATED_INSTANCE_SUBNET_ID", TEXT,
    "The instance's subnet, for neuron-monitor",
    default="", source=_OURS, readers={Reader.TOOLS},
)  # fmt: skip
NEURON_SYSFS_ROOT = TOOLS.variable(
    "NEURON_SYSFS_ROOT", PATH,
    "Where `neuron-sysfs` and `neuron-monitor` write the driver's tree of counters, "
    "`neuron0/...`; unset: neuron-monitor writes none",
    default=None, source=_OURS, readers={Reader.TOOLS},
)  # fmt: skip
