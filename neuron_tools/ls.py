"""The command `neuron-ls`: the chips of the emulated machine, and who uses them.

    neuron-ls [-w|--wide] [-a|--show-all-procs] [-t|--topology] [-j|--json-output]

Exit codes are those of the vendor's command: 0 done, 1 no machine or wrong words.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from neuron_tools import proc
from neuron_tools.machine import Device, Machine, ToolError, machine, notes
from neuron_tools.table import boxed
from neuronxcc.targets.spec import GIB
from neuronxcc.unread import ends_quietly

_USAGE = """\
Usage: neuron-ls [options]

Lists the Neuron devices of the emulated machine and the processes that use them.

Options:
  -w, --wide             show processes: PID, command and runtime version
  -a, --show-all-procs   show processes, this one included
  -t, --topology         draw how the devices are connected
  -j, --json-output      print JSON
  -h, --help             print this text
"""
_FLAGS = {
    "-w": "wide", "--wide": "wide", "-a": "all", "--show-all-procs": "all", "-t": "topology",
    "--topology": "topology", "-j": "json", "--json-output": "json", "-h": "help",
    "--help": "help",
}  # fmt: skip
_LINE = "\N{EN DASH}\N{EN DASH}"
_LEGEND = f"         *{_LINE}► = Wrap-around link"
_WIDE_COMMAND, _NARROW_COMMAND = 80, 40
_HEAD = ("NEURON\nDEVICE", "NEURON\nCORES", "NEURON\nCORE IDS", "NEURON\nMEMORY",
         "CONNECTED\nDEVICES", "PCI\nBDF", "CPU\nAFFINITY", "NUMA\nNODE")  # fmt: skip
_PROCESS_HEAD = ("PID", "COMMAND", "RUNTIME\nVERSION")


def _flags(words: Sequence[str]) -> set[str]:
    """Read the words; "-wt" is "-w -t"."""
    found = set()
    for word in words:
        letters = len(word) > 2 and word[0] == "-" and word[1] != "-"
        for flag in [f"-{letter}" for letter in word[1:]] if letters else [word]:
            if flag not in _FLAGS:
                raise ToolError(f"unknown flag `{flag.lstrip('-')}'")
            found.add(_FLAGS[flag])
    return found


def _users(here: Machine, device: Device, flags: AbstractSet[str]) -> list[tuple[int, str, str]]:
    """Number, command and runtime version of those who use a chip."""
    users = [
        (p.pid, proc.command(p.pid), p.header.texts["runtime_version"]) for p in here.users(device)
    ]
    if "all" in flags:
        users.append((os.getpid(), " ".join(["neuron-ls", *sys.argv[1:]]), "NA"))
    return users


def document(here: Machine, flags: AbstractSet[str]) -> list[dict[str, object]]:
    """Return what `neuron-ls -j` prints: an object for each chip."""
    found = []
    for device in here.devices:
        place = device.place
        item: dict[str, object] = {
            "neuron_device": device.number,
            "bdf": place.bdf if place else "",
            "cpu_affinity": place.cpus if place else "",
            "numa_node": str(place.numa_node) if place else "-1",
            "connected_to": list(device.connected) or None,
            "nc_count": here.cores_per_device,
        }
        if len(here.target.supported_lnc) > 1:
            item["logical_neuroncore_config"] = here.lnc
        item |= {
            "memory_size": here.target.hbm_bytes,
            "neuroncore_ids": list(device.cores),
            "neuron_processes": [
                {"pid": pid, "command": command, "neuron_runtime_version": version}
                for pid, command, version in _users(here, device, flags)
            ],
        }
        found.append(item)
    return found


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def table(here: Machine, flags: AbstractSet[str]) -> str:
    """Return the table: a row for each chip, or for each process on it."""
    wide, shows_processes = "wide" in flags, bool(flags & {"wide", "all"})
    groups = []
    for device in here.devices:
        place = device.place
        bdf = place.bdf if place else ""
        cells = [
            str(device.number),
            str(here.cores_per_device),
            f"{device.cores[0]}-{device.cores[-1]}",
            f"{here.target.hbm_bytes // GIB} GB",
            ", ".join(map(str, device.connected)),
            bdf.partition(":")[2] if wide else bdf,
            place.cpus if place else "",
            str(place.numa_node) if place else "",
        ]
        rows = [cells]
        if shows_processes:
            width = _WIDE_COMMAND if wide else _NARROW_COMMAND
            rows = [
                [
                    *(cells if number == 0 else [""] * len(cells)),
                    str(pid),
                    _cut(said, width),
                    version,
                ]
                for number, (pid, said, version) in enumerate(_users(here, device, flags))
            ] or [[*cells, "", "", ""]]
        groups.append(rows)
    head = (*_HEAD, *_PROCESS_HEAD) if shows_processes else _HEAD
    return boxed(head, groups, ruled="all" in flags)


def _chain(boxes: Iterable[str]) -> str:
    """Boxes with links between them, the last of which leads to the first."""
    return f"*{_LINE}►{f'◄{_LINE}►'.join(boxes)}◄{_LINE}*"


def _grid() -> list[str]:
    """A torus of four by four."""
    ends = " " * 6 + (" " * 8).join("*" * 4)
    line, up, down = (" " * 6 + (" " * 8).join(mark * 4) for mark in "│▲▼")
    said = [ends, line, down]
    for row in range(4):
        boxes = (f"[{4 * row + column:<3}]" if 4 * row + column > 9 else f"[ {4 * row + column} ]"
                 for column in range(4))  # fmt: skip
        said.append(_chain(boxes))
        said += [up, line, down if row < 3 else ends]
    return said


def topology(here: Machine) -> str:
    """Draw how the chips are connected."""
    count, kind = len(here.devices), here.target.link.topology
    said = ["", "", "Neuron Device Topology"]
    if count == 1:
        said += [" [ 0 ]", "", "Legend:", "", "         [ ] = Neuron Device, connected to no other"]
    elif count == 16 and kind.startswith("2D torus"):
        said += [*_grid(), "", "Legend:", "", _LEGEND]
    elif kind == "switched all-to-all":
        said += [
            "".join(f"[{d.number:^3}]" for d in here.devices),
            "  │  " * count,
            f"[{'switches'.center(5 * count - 2)}]",
            "", "Legend:", "", "         │ = Link; the switches join every device with every other",
        ]  # fmt: skip
    else:
        said += [
            _chain(f"[{d.number:^3}]" for d in here.devices),
            "", "Legend:", "", _LEGEND,
        ]  # fmt: skip
    return "\n".join(said)


def fatal(message: str, reason: str) -> None:
    """Print what went wrong to standard error, as the vendor's tools log it."""
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    quoted = (json.dumps(text, ensure_ascii=False) for text in (message, reason))
    sys.stderr.write('time="{}" level=fatal msg={} error={}\n'.format(now, *quoted))


@ends_quietly
def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    try:
        flags = _flags(sys.argv[1:] if words is None else words)
    except ToolError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    if "help" in flags:
        sys.stdout.write(_USAGE)
        return 0
    try:
        here = machine()
    except ToolError as error:
        fatal("Failed to load MLA system information", str(error))
        return 1
    for note in notes(here):
        sys.stderr.write(f"neuron-ls: {note}\n")
    if "json" in flags:
        sys.stdout.write(json.dumps(document(here, flags), indent=4))
        return 0
    said = [f"instance-type: {here.instance_type}", f"instance-id: {here.instance_id}"]
    if len(here.target.supported_lnc) > 1:
        said.append(f"logical-neuroncore-config: {here.lnc}")
    said.append(table(here, flags))
    if "topology" in flags:
        said.append(topology(here))
    sys.stdout.write("\n".join(said) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
