"""The emulated machine, read from the environment variables of the Neuron SDK.

Nothing here imports torch: the machine must be known before the device is registered, and a wrong
variable must be reportable even when PyTorch is half imported. docs/environment.md is the
reference.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from neuronxcc.environment.machine import (
    LOCAL_RANK,
    LOCAL_WORLD_SIZE,
    NEURON_RT_NUM_CORES,
    NEURON_RT_VISIBLE_CORES,
)
from neuronxcc.machine import MachineConfigError, named_lnc, named_target
from neuronxcc.targets import DEFAULT_TARGET, Target, get_target

NUM_CORES_VARIABLE = NEURON_RT_NUM_CORES.name
VISIBLE_CORES_VARIABLE = NEURON_RT_VISIBLE_CORES.name

# PyTorch keeps a device index in eight bits and the native core a table of this size. Only trn2 and
# trn3 at LNC=1 have machines with more cores, 128; a process sees at most half of those.
MAX_DEVICES = 64
# Bounds what a typing error in a core list can allocate: more than the cores of any machine.
_MOST_CORES = 4096
_RANGE = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """The machine that this process sees.

    Attributes:
        target: what is known about the chip.
        lnc: physical NeuronCores in one logical core (the Logical NeuronCore configuration).
        visible_cores: numbers of the logical cores of the machine that belong to this process; the
            device ``neuron:i`` is ``visible_cores[i]``.
        chips: number of chips of the emulated machine.
    """

    target: Target
    lnc: int
    visible_cores: tuple[int, ...]
    chips: int

    @property
    def device_count(self) -> int:
        """Number of devices: of logical cores visible to the process."""
        return len(self.visible_cores)

    @property
    def hbm_bytes(self) -> int:
        """Device memory of one logical core, in bytes."""
        return self.target.hbm_bytes_per_logical_core(self.lnc)


def parse_core_list(text: str) -> tuple[int, ...]:
    """Read a core list such as ``"3"``, ``"0-3"`` or ``"4,5,6-7"``.

    Returns:
        The core numbers, which are increasing and without gaps.

    Raises:
        MachineConfigError: the text is no list of numbers and ranges, or the cores are not
            contiguous and increasing, which the Neuron runtime demands.
    """
    allowed = "numbers and ranges m,n,p-q that together are contiguous and increasing"
    cores: list[int] = []
    for item in text.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise MachineConfigError(
                VISIBLE_CORES_VARIABLE,
                text,
                allowed,
                f"{item.strip()!r} is neither a core number nor a range; write e.g. 0-3 or 4.",
                "NRT_INVALID",
            )
        first, last = int(match[1]), int(match[2] or match[1])
        # Checked before the range is expanded: "0-99999999999" must not fill the memory.
        if last < first or (cores and first != cores[-1] + 1):
            expected = f"core {cores[-1] + 1}" if cores and last >= first else "an increasing range"
            raise MachineConfigError(
                VISIBLE_CORES_VARIABLE,
                text,
                allowed,
                f"Found {item.strip()!r} where {expected} was expected.",
                "NRT_INVALID",
            )
        if last - first >= _MOST_CORES:
            raise MachineConfigError(
                VISIBLE_CORES_VARIABLE,
                text,
                f"at most {_MOST_CORES} cores",
                f"{item.strip()!r} is more than any machine has.",
                "NRT_LOAD_NOT_ENOUGH_NC",
            )
        cores.extend(range(first, last + 1))
    return tuple(cores)


def read_machine_config(environ: Mapping[str, str] | None = None) -> MachineConfig:
    """Read the machine from the environment.

    One chip is emulated unless cores are asked for that it does not have; then the machine grows,
    chip by chip, up to the largest instance of the family. A launcher that starts more processes
    than the chip has cores asks for one each. An empty variable counts as unset.

    Args:
        environ: the variables; those of the process if ``None``.

    Raises:
        MachineConfigError: a variable is wrong; the message names it, its value, what is allowed
            and what to do.
    """
    target = named_target(environ) or get_target(DEFAULT_TARGET)
    _, lnc = named_lnc(environ, target) or ("", target.default_lnc)
    per_chip = target.logical_cores_per_chip(lnc)
    most = per_chip * target.max_chips

    visible = NEURON_RT_VISIBLE_CORES.text(environ)
    wanted = NEURON_RT_NUM_CORES.text(environ)
    if visible:
        cores = parse_core_list(visible)
        if cores[-1] >= most:
            raise MachineConfigError(
                VISIBLE_CORES_VARIABLE,
                visible,
                f"cores 0-{most - 1}",
                f"The largest {target.name} machine has {target.max_chips} chips with {per_chip} "
                f"logical cores each at LNC={lnc}.",
                "NRT_LOAD_NOT_ENOUGH_NC",
            )
    else:
        cores = tuple(
            range(
                _read_num_cores(wanted, target, lnc)
                or _cores_for_launcher(environ, per_chip, min(most, MAX_DEVICES))
            )
        )
    if len(cores) > MAX_DEVICES:
        raise MachineConfigError(
            VISIBLE_CORES_VARIABLE if visible else NUM_CORES_VARIABLE,
            visible or wanted,
            f"at most {MAX_DEVICES} cores in one process",
            f"Divide the cores between processes with {VISIBLE_CORES_VARIABLE}, or use LNC=2.",
            "NRT_RESOURCE",
        )
    chips = max(1, -(-(cores[-1] + 1) // per_chip))
    return MachineConfig(target=target, lnc=lnc, visible_cores=cores, chips=chips)


@cache
def machine() -> MachineConfig:
    """Return the machine of this process, read from the environment by the first successful call.

    That is when the device is registered; a program that changes a variable later changes nothing.
    """
    return read_machine_config()


def _read_num_cores(text: str, target: Target, lnc: int) -> int:
    """Return how many cores were asked for, 0 for all of one chip."""
    if not text:
        return 0
    most = target.logical_cores_per_chip(lnc) * target.max_chips
    if not text.isascii() or not text.isdigit():
        raise MachineConfigError(
            NUM_CORES_VARIABLE,
            text,
            f"0-{most}, where 0 means all cores of one chip",
            "Give the number of logical cores.",
            "NRT_INVALID",
        )
    if int(text) > most:
        raise MachineConfigError(
            NUM_CORES_VARIABLE,
            text,
            f"0-{most}",
            f"The largest {target.name} machine has {target.max_chips} chips with "
            f"{target.logical_cores_per_chip(lnc)} logical cores each at LNC={lnc}.",
            "NRT_LOAD_NOT_ENOUGH_NC",
        )
    return int(text)


def _cores_for_launcher(environ: Mapping[str, str] | None, per_chip: int, most: int) -> int:
    """Return the cores of the whole chips that have one for each process of a launcher.

    The variable is not ours: more processes than cores exist, or nonsense, is no error here.
    """
    ranks = LOCAL_WORLD_SIZE.text(environ)
    wanted = int(ranks) if ranks.isascii() and ranks.isdigit() else 1
    return min(most, max(1, -(-wanted // per_chip)) * per_chip)


def launcher_device(device_count: int, environ: Mapping[str, str] | None = None) -> int:
    """Return the device that a launcher such as torchrun meant this process to use.

    It is ``LOCAL_RANK`` when that is one of the devices. A process that sees a single core was
    given it by the launcher through ``NEURON_RT_VISIBLE_CORES``, and uses that whatever its rank.
    Anything else is 0: the variable is not ours, so a value that makes no sense here is no error.
    """
    rank = LOCAL_RANK.text(environ)
    if rank.isascii() and rank.isdigit() and int(rank) < device_count:
        return int(rank)
    return 0
