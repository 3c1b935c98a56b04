"""Variables that choose the emulated machine, and the device a process starts on."""

from __future__ import annotations

from neuronxcc.environment.variable import FLAG, TEXT, Reader, Section, choice, number, words

_RUNTIME = "Runtime configuration guide"
_LNC = "Logical NeuronCore configuration"
_LAUNCH = "PyTorch elastic launch"

MACHINE = Section(
    "The emulated machine",
    after="""\
One chip is emulated unless more cores are asked for than it has, by these variables or by
starting more processes (`LOCAL_WORLD_SIZE`). Then the machine grows by whole chips, up to the
largest instance of the family:

| Target | Logical cores of one chip | Memory of one | Largest machine |
|---|---|---|---|
| `trn1`, `trn1n` | 2 | 16 GiB | 16 chips, 32 cores |
| `inf2` | 2 | 16 GiB | 12 chips, 24 cores |
| `trn2` (LNC=2) | 4 | 24 GiB | 16 chips, 64 cores |
| `trn2` (LNC=1) | 8 | 12 GiB | 16 chips, 128 cores |
| `trn3` (LNC=2) | 4 | 36 GiB | 16 chips, 64 cores |
| `trn3` (LNC=1) | 8 | 18 GiB | 16 chips, 128 cores |

One process can have at most 64 devices. Memory is the chip's HBM divided by its logical cores.

What differs from a real machine: cores are not reserved, so several processes may use the same core
numbers; and on a real machine without `NEURON_RT_NUM_CORES` a process takes all chips of the
instance, where the emulation shows one.

Examples:

```sh
NEURON_PLATFORM_TARGET_OVERRIDE=trn1 python train.py      # two devices of 16 GiB
NEURON_RT_NUM_CORES=1 python train.py                     # one device
torchrun --nproc-per-node=8 train.py                      # two chips
NEURON_RT_VISIBLE_CORES=4-7 python serve.py               # neuron:0 is core 4
```""",
)

# What these allow depends on the chip: those who read them know it, and check the text.
NEURON_PLATFORM_TARGET_OVERRIDE = MACHINE.variable(
    "NEURON_PLATFORM_TARGET_OVERRIDE", TEXT,
    "The chip: `trn1`, `trn1n`, `inf2`, `trn2`, `trn3`, or by generation of the core `gen2` "
    "(trn1), `gen3` (trn2), `gen4` (trn3), in any letter case. An instance type "
    "(`trn2.48xlarge`) is none, and inf1 is not emulated. NKI kernels outside of the device "
    "take `trn3` by default",
    default="", source="NKI guides; on real machines it overrides what the instance reports",
    readers={Reader.DEVICE, Reader.COMPILER, Reader.NKI, Reader.TOOLS}, said="`trn2`",
)  # fmt: skip
NEURON_LOGICAL_NC_CONFIG = MACHINE.variable(
    "NEURON_LOGICAL_NC_CONFIG", TEXT,
    "Physical NeuronCores in one logical core (LNC). trn1, trn1n and inf2 know only 1; asking for "
    "2 there is `NCC_EARG001`",
    default="", source=_LNC, readers={Reader.DEVICE, Reader.COMPILER, Reader.TOOLS},
    said="2 on trn2 and trn3, else 1",
)  # fmt: skip
NEURON_RT_VIRTUAL_CORE_SIZE = MACHINE.variable(
    "NEURON_RT_VIRTUAL_CORE_SIZE", TEXT,
    "Another name of the same setting; if both are set they must agree",
    default="", source=_LNC, readers={Reader.DEVICE, Reader.COMPILER, Reader.TOOLS},
    said="as above",
)  # fmt: skip
NEURON_RT_NUM_CORES = MACHINE.variable(
    "NEURON_RT_NUM_CORES", TEXT,
    "How many logical cores this process uses; 0 is all cores of one chip, or of as many chips as "
    "give each process of `torchrun` a core",
    default="", source=_RUNTIME, readers={Reader.DEVICE}, said="0",
)  # fmt: skip
NEURON_RT_VISIBLE_CORES = MACHINE.variable(
    "NEURON_RT_VISIBLE_CORES", TEXT,
    "Which logical cores this process uses: numbers and ranges `m,n,p-q` that together are "
    "contiguous and increasing. Wins over `NEURON_RT_NUM_CORES`. Inside the process the devices "
    "are numbered from 0. `nrtpy.configure()` sets it",
    default="", source=_RUNTIME, readers={Reader.DEVICE, Reader.NRTPY, Reader.TOOLS},
)  # fmt: skip

DEVICE = Section("Which device a process starts on")

# They are not ours: what makes no sense here is no error, so the text is looked at by who reads it.
LOCAL_WORLD_SIZE = DEVICE.variable(
    "LOCAL_WORLD_SIZE", TEXT,
    "Set by `torchrun` and other launchers: how many processes they started on this host. Where "
    "it is more than the cores of one chip and neither core variable is set, the machine has as "
    "many chips as give each process a core of its own",
    default="", source=_LAUNCH, readers={Reader.DEVICE},
)  # fmt: skip
LOCAL_RANK = DEVICE.variable(
    "LOCAL_RANK", TEXT,
    "Set by `torchrun` and other launchers. Until a program selects a device, "
    '`torch.neuron.current_device()` and `device="neuron"` mean this one, in all threads. Ignored '
    "when there is no such device, e.g. when every process sees one core only. Lines that tell of "
    "progress come from rank 0",
    default="", source=_LAUNCH, readers={Reader.DEVICE, Reader.COMPILER},
)  # fmt: skip
TORCH_DEVICE_BACKEND_AUTOLOAD = DEVICE.variable(
    "TORCH_DEVICE_BACKEND_AUTOLOAD", FLAG,
    "With 0, `import torch` does not load the device and `import torch_neuronx` is needed",
    default=True, source="PyTorch", readers={Reader.PYTORCH},
)  # fmt: skip

EAGER = Section(
    "Eager mode",
    "[eager.md](eager.md) explains the modes. `torch.neuron.set_eager_mode` and the context "
    "manager `torch.neuron.eager_mode` choose one in a program.",
)

TORCH_NEURONX_EAGER_MODE = EAGER.variable(
    "TORCH_NEURONX_EAGER_MODE", choice("debug", "strict", "fused"),
    "`debug`: an operator has done its work when its call returns. `strict`: the call settles "
    "shapes and takes memory, and a thread of the core does the work, in the order of issue. "
    "`fused`: operators that wait are also joined into programs, with the same bits",
    default="debug", source="TorchNeuron", readers={Reader.DEVICE},
)  # fmt: skip
TORCH_NEURONX_ENABLE_CONCATENATION = EAGER.variable(
    "TORCH_NEURONX_ENABLE_CONCATENATION", FLAG,
    "1: `fused`, where `TORCH_NEURONX_EAGER_MODE` says nothing",
    default=False, source="TorchNeuron (AWS), as users report it", readers={Reader.DEVICE},
)  # fmt: skip
TORCH_NEURONX_CONCATENATION_QUEUE_LOW_THRESHOLD = EAGER.variable(
    "TORCH_NEURONX_CONCATENATION_QUEUE_LOW_THRESHOLD", number(0, 4096, "operators"),
    "In `fused` mode, operators are not joined while so many or fewer wait: the core is not behind",
    default=0, source="TorchNeuron (AWS), as users report it", readers={Reader.DEVICE},
)  # fmt: skip
TORCH_NEURONX_APPLY_SKIP_INTERMEDIATE = EAGER.variable(
    "TORCH_NEURONX_APPLY_SKIP_INTERMEDIATE", FLAG,
    "0: in `fused` mode, results that nobody can read any more are written nevertheless",
    default=True, source="TorchNeuron (AWS), as users report it", readers={Reader.DEVICE},
)  # fmt: skip
NEURON_LAUNCH_BLOCKING = EAGER.variable(
    "NEURON_LAUNCH_BLOCKING", FLAG,
    "1: `debug`, whatever the mode is else: errors come from the line that caused them",
    default=False, source="TorchNeuron (AWS), environment variables", readers={Reader.DEVICE},
)  # fmt: skip
TORCH_NEURONX_ENABLE_STACK_TRACE = EAGER.variable(
    "TORCH_NEURONX_ENABLE_STACK_TRACE", FLAG,
    "1: an enqueued operator keeps the line that called it, for an error that comes up later",
    default=False, source="TorchNeuron (AWS), environment variables", readers={Reader.DEVICE},
)  # fmt: skip

DISTRIBUTED = Section(
    "Distributed training",
    "[distributed.md](distributed.md) explains them. `WORLD_SIZE` and the others that `torchrun` "
    "sets are read by PyTorch.",
)

RANK = DISTRIBUTED.variable(
    "RANK", TEXT,
    "Set by `torchrun` and other launchers: the number of this process in the job. Faults that are "
    "for one rank look at it",
    default="", source=_LAUNCH, readers={Reader.DEVICE, Reader.PYTORCH},
)  # fmt: skip
TORCHELASTIC_RESTART_COUNT = DISTRIBUTED.variable(
    "TORCHELASTIC_RESTART_COUNT", TEXT,
    "Set by `torchrun`: how often it has started the job again. Faults that are for one attempt "
    "look at it",
    default="", source=_LAUNCH, readers={Reader.DEVICE}, said="0",
)  # fmt: skip

TORCH_NEURONX_HOST_ID = DISTRIBUTED.variable(
    "TORCH_NEURONX_HOST_ID", TEXT,
    "Ranks with the same word are on one host and share memory, others are not and talk by gloo, "
    "wherever they run: to try several hosts on one. Ranks that can't see each other's memory must "
    "not have the same word. See [distributed.md](distributed.md#several-hosts)",
    default="", source="TorchNeuron", readers={Reader.CORE},
)  # fmt: skip
GLOO_SOCKET_IFNAME = DISTRIBUTED.variable(
    "GLOO_SOCKET_IFNAME", words(","),
    "The interfaces, separated by commas, that connections between hosts use, instead of the one "
    "that leads to the job's store",
    default=(), source="PyTorch, gloo", readers={Reader.DEVICE, Reader.PYTORCH},
)  # fmt: skip
TORCH_DISTRIBUTED_DEBUG = DISTRIBUTED.variable(
    "TORCH_DISTRIBUTED_DEBUG", TEXT,
    "`DETAIL`: PyTorch compares every collective between ranks before it runs",
    default="", source="PyTorch", readers={Reader.PYTORCH}, said="`OFF`",
)  # fmt: skip
MASTER_ADDR = DISTRIBUTED.variable(
    "MASTER_ADDR", TEXT,
    "Host of rank 0. The ranks of a NEFF meet there too where nothing else says where",
    default="", source=_LAUNCH, readers={Reader.DEVICE, Reader.PYTORCH},
)  # fmt: skip
MASTER_PORT = DISTRIBUTED.variable(
    "MASTER_PORT", TEXT,
    "Port of rank 0",
    default="", source=_LAUNCH, readers={Reader.DEVICE, Reader.PYTORCH},
)  # fmt: skip
