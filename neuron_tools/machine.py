"""The emulated machine as the tools describe it: an instance with its chips, and who uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neuron_tools.registry.reader import Found, Snapshot, Values, processes
from neuronxcc.environment.machine import NEURON_RT_VISIBLE_CORES
from neuronxcc.environment.tools import (
    NEURON_EMULATED_INSTANCE_ID,
    NEURON_EMULATED_INSTANCE_TYPE,
    TORCH_NEURONX_CLOCK,
)
from neuronxcc.machine import MachineConfigError, named_lnc, named_target
from neuronxcc.targets import DEFAULT_TARGET, TARGETS, Instance, Target, get_target
from neuronxcc.targets.wiring import Place, neighbours, place

# Trainium2 alone is named by AWS in one instance type whose other numbers are not published.
_SINGLE = {"trn2": Instance("trn2.3xlarge", chips=1, vcpus=0, host_memory_gib=0)}


class ToolError(ValueError):
    """A tool cannot do what it was asked for; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Device:
    """A chip: its number, its logical cores, what it is connected to, and its place, if known."""

    number: int
    cores: tuple[int, ...]
    connected: tuple[int, ...]
    place: Place | None


@dataclass(frozen=True, slots=True)
class Machine:
    """The instance.

    Attributes:
        target: What is known about its chips.
        lnc: Physical cores in a logical one.
        instance_type: Such as "trn2.48xlarge".
        instance_id: "" if the environment says none.
        devices: Its chips.
        processes: Those that use them.
        elsewhere: Processes that emulate another target, or group cores in another way.
        damaged: Files of processes that were not believed, with the reason.
    """

    target: Target
    lnc: int
    instance_type: str
    instance_id: str
    devices: tuple[Device, ...]
    processes: tuple[Snapshot, ...]
    elsewhere: tuple[Snapshot, ...]
    damaged: tuple[str, ...]

    @property
    def cores_per_device(self) -> int:
        """Logical cores of a chip."""
        return self.target.logical_cores_per_chip(self.lnc)

    @property
    def core_version(self) -> str:
        """As the tools call it: "v3", or "v3d" where two physical cores are one."""
        return f"{self.target.core.version}{'d' if self.lnc == 2 else ''}"

    def users(self, device: Device) -> list[Snapshot]:
        """The processes that use a chip."""
        numbers = set(device.cores)
        return [p for p in self.processes if any(c["number"] in numbers for c in p.used_cores)]

    def physical(self, core: int) -> range:
        """The numbers of the physical cores of a logical one."""
        return range(core * self.lnc, (core + 1) * self.lnc)


def clock(environ: Mapping[str, str] | None = None) -> str:
    """Return whose time utilisation and latencies are where there is a choice: "host", "model"."""
    return str(TORCH_NEURONX_CLOCK.get(environ))


def clock_of(process: Snapshot, asked: str) -> str:
    """Return whose time is told of a process.

    The model's only if it keeps predictions, and no program has run that has none: a sum of some of
    its programs would be no time of the process.
    """
    known = process.predicted is not None and not any(c.unpredicted for c in process.predicted)
    return "model" if asked == "model" and known else "host"


def _target(processes: Sequence[Snapshot], environ: Mapping[str, str] | None) -> Target:
    named = named_target(environ)
    if named is not None:
        return named
    known = {target.name: target for target in TARGETS}
    # What processes emulate, those that began last before others.
    begun = sorted(processes, key=lambda p: p.header["start_time"])
    said = [known[p.header.texts["target"]] for p in begun if p.header.texts["target"] in known]
    return said[-1] if said else get_target(DEFAULT_TARGET)


def _lnc(target: Target, processes: Sequence[Snapshot], environ: Mapping[str, str] | None) -> int:
    named = named_lnc(environ, target)
    if named is not None:
        return named[1]
    said = [p.header["lnc"] for p in processes if p.header["lnc"] in target.supported_lnc]
    return said[-1] if said else target.default_lnc


def _instance(
    target: Target, chips: int, environ: Mapping[str, str] | None
) -> tuple[Target, Instance]:
    """The instance that is described, and its target."""
    named = NEURON_EMULATED_INSTANCE_TYPE.text(environ)
    of = {i.name: (t, i) for t in TARGETS for i in (*t.instances, *_singles(t))}
    if named:
        if named not in of:
            raise ToolError(
                f"NEURON_EMULATED_INSTANCE_TYPE={named!r} is not known; allowed: "
                f"{', '.join(sorted(of))}."
            )
        return of[named]
    fitting = [i for i in (*_singles(target), *target.instances) if i.chips >= chips]
    largest = max(target.instances, key=lambda i: i.chips)
    return target, min(fitting, key=lambda i: i.chips, default=largest)


def _singles(target: Target) -> tuple[Instance, ...]:
    return (_SINGLE[target.name],) if target.name in _SINGLE else ()


def _most_visible(environ: Mapping[str, str] | None) -> int:
    """The highest core that NEURON_RT_VISIBLE_CORES names, -1 if it names none."""
    digits = "".join(c if c.isascii() and c.isdigit() else " " for c in
                     NEURON_RT_VISIBLE_CORES.text(environ))  # fmt: skip
    return max((int(word[:6]) for word in digits.split()), default=-1)


def machine(environ: Mapping[str, str] | None = None, found: Found | None = None) -> Machine:
    """Return the machine that is emulated.

    Its target and the grouping of its cores are those that the environment names, else those of the
    processes that run, else the default. It has the chips of the instance type that the environment
    names, else of the smallest that has all cores which processes use.

    Args:
        environ: The environment; that of the process if None.
        found: The processes; those that run if None.

    Raises:
        ToolError: The environment describes no machine.
    """
    found = processes(environ) if found is None else found
    try:
        target = _target(found.processes, environ)
        named = NEURON_EMULATED_INSTANCE_TYPE.text(environ)
        if named:
            target, _ = _instance(target, 1, environ)
        lnc = _lnc(target, [p for p in found.processes if _emulates(p, target)], environ)
    except MachineConfigError as error:
        raise ToolError(str(error)) from error
    per_chip = target.logical_cores_per_chip(lnc)
    here = [p for p in found.processes if _emulates(p, target) and p.header["lnc"] == lnc]
    numbers = [core["number"] for p in here for core in p.used_cores]
    numbers = [n for n in numbers if n < per_chip * target.max_chips]
    highest = max([*numbers, _most_visible(environ), 0])
    _, instance = _instance(target, highest // per_chip + 1, environ)
    devices = tuple(
        Device(
            number,
            tuple(range(number * per_chip, (number + 1) * per_chip)),
            neighbours(target.link.topology, instance.chips, number),
            place(instance.name, number),
        )
        for number in range(instance.chips)
    )
    return Machine(
        target=target,
        lnc=lnc,
        instance_type=instance.name,
        instance_id=NEURON_EMULATED_INSTANCE_ID.text(environ),
        devices=devices,
        processes=tuple(here),
        elsewhere=tuple(p for p in found.processes if p not in here),
        damaged=tuple(f"{path} is skipped: {why}" for path, why in found.damaged),
    )


def _emulates(process: Snapshot, target: Target) -> bool:
    return process.header.texts["target"] == target.name


def notes(machine: Machine) -> list[str]:
    """What a tool says on standard error beside its output."""
    said = list(machine.damaged)
    if machine.elsewhere:
        machines = sorted({
            f"{p.header.texts['target']} at LNC={p.header['lnc']}" for p in machine.elsewhere
        })  # fmt: skip
        said.append(
            f"{len(machine.elsewhere)} more processes emulate {', '.join(machines)}: "
            "NEURON_PLATFORM_TARGET_OVERRIDE and NEURON_LOGICAL_NC_CONFIG choose what is shown"
        )
    return said


def device_cores(machine: Machine, process: Snapshot) -> list[Values]:
    """The cores that a process uses and that the machine has, by number."""
    count = len(machine.devices) * machine.cores_per_device
    return sorted((c for c in process.used_cores if c["number"] < count), key=lambda c: c["number"])
