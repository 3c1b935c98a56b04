"""What is on the screen, as lines of text: nothing here knows a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from neuron_tools.top.tree import Node, memory_tree, visible
from neuronxcc import __version__

Document = dict[str, Any]
PLAIN, TITLE, SELECTED, BAR, CURSOR = "plain", "title", "selected", "bar", "cursor"
_UNITS = ("B", "KB", "MB", "GB", "TB")
_HOST = (("Tensors", "tensors"), ("Constants", "constants"), ("DMA Buffers", "dma_buffers"),
         ("App. Memory", "application_memory"))  # fmt: skip
_DEVICE = (("Tensors", "tensors"), ("Constants", "constants"), ("Model Code", "model_code"),
           ("Runtime Memory", "runtime_memory"),
           ("Model Scratchpad", "model_shared_scratchpad"))  # fmt: skip
_FEWEST_TREE_LINES: Final = 4
Span = tuple[str, str]  # a text, and its style
Line = list[Span]


@dataclass
class View:
    """What the user has chosen to see.

    Attributes:
        tab: "all", or the number of a process.
        flops: Whether TFLOPS are shown instead of percentages.
        opened: Nodes of the tree whose children are shown.
        cursor: The node that the keys act on, by its place among those that are shown.
    """

    tab: str = "all"
    flops: bool = False
    opened: set[str] = field(default_factory=set)
    cursor: int = 0


def size_text(size: float) -> str:
    """A number of bytes, in units of 1024."""
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f}{_UNITS[unit]}" if unit == 0 else f"{size:.1f}{_UNITS[unit]}"


def tabs(document: Document) -> list[tuple[str, str]]:
    """Return the tabs: the name of each, and what it is called."""
    runtimes = document["neuron_runtime_data"]
    return [("all", "all"), *((str(r["pid"]), r["neuron_runtime_tag"]) for r in runtimes)]


def shown(document: Document, view: View) -> list[Document]:
    """Return the processes of the tab; if its process has ended, of all."""
    runtimes: list[Document] = document["neuron_runtime_data"]
    chosen = [runtime for runtime in runtimes if str(runtime["pid"]) == view.tab]
    return chosen or runtimes


def tree(document: Document, view: View) -> list[Node]:
    """Return the tree of the tab."""
    per_device = document["neuron_hardware_info"]["neuroncore_per_device_count"]
    return memory_tree(shown(document, view), per_device)


def _title(document: Document, width: int) -> Line:
    info = document["instance_info"]
    name = info["instance_id"] or "emulated"
    text = f"neuron-top {__version__}  {name}  {info['instance_type']}  ({_clock(document)})"
    return [(text[:width].center(width), TITLE)]


def _told(document: Document, runtime: Document) -> bool:
    """Whether a process' utilisation is of the clock that was asked for; no sum has both."""
    ours = document["torchneuron"]
    clocks = ours["clocks"].get(str(runtime["pid"]), {})
    return bool(clocks.get("neuroncore_utilization", ours["clock"]) == ours["clock"])


def _clock(document: Document) -> str:
    if document["torchneuron"]["clock"] == "host":
        return "this host's time"
    others = sum(not _told(document, runtime) for runtime in document["neuron_runtime_data"])
    return "predicted time" + (f"; {others} processes have none" if others else "")


def _share(document: Document) -> str:
    """How much of what processes ran has a prediction, where that is what is shown."""
    kept = document["torchneuron"]["predictions"]
    counts = [
        kept[str(runtime["pid"])]
        for runtime in document["neuron_runtime_data"]
        if str(runtime["pid"]) in kept and _told(document, runtime)
    ]
    executions = sum(count["executions"] for count in counts)
    if document["torchneuron"]["clock"] == "host" or not executions:
        return ""
    share = min(1.0, sum(count["predicted"] for count in counts) / executions)
    return f"; of {share:.0%} of executions"


def _heading(text: str, width: int) -> Line:
    return [(f"─ {text} ".ljust(width, "─")[:width], TITLE)]


def _cores(document: Document, view: View) -> list[tuple[float, float]]:
    """Percent and TFLOPS of every core of the machine."""
    hardware = document["neuron_hardware_info"]
    count = hardware["neuron_device_count"] * hardware["neuroncore_per_device_count"]
    found = [(0.0, 0.0)] * count
    for runtime in shown(document, view):
        group = runtime["report"].get("neuroncore_counters", {"neuroncores_in_use": {}})
        told = _told(document, runtime)
        for index, core in group["neuroncores_in_use"].items():
            percent, flops = found[int(index)]
            found[int(index)] = (
                min(100.0, percent + told * core["neuroncore_utilization"]),
                flops + core["flops"] / 1e12,
            )
    return found


def _core_lines(document: Document, view: View, width: int, height: int) -> list[Line]:
    cores = _cores(document, view)
    per_device = document["neuron_hardware_info"]["neuroncore_per_device_count"]
    columns = max(1, min(len(cores), -(-len(cores) // height)))
    columns = min(columns, max(1, width // 16))
    cell = width // columns
    top = max((flops for _, flops in cores), default=0.0)
    lines = []
    for first in range(0, min(len(cores), columns * height), columns):
        line: Line = []
        for index in range(first, min(first + columns, len(cores))):
            percent, flops = cores[index]
            name = f"ND{index // per_device} NC{index % per_device}"
            value = f"{flops:8.4f} TFLOPS" if view.flops else f"{percent:6.2f}%"
            share = (flops / top if top else 0.0) if view.flops else percent / 100
            room = cell - len(name) - len(value) - 4
            if room < 1:  # the number matters more than whose it is
                name, value, room = f"{index}", value.strip().partition(" ")[0], 0
            filled = round(share * room)
            line += [
                (f"{name} ", PLAIN),
                ("█" * filled, BAR),
                ("░" * (room - filled) if room else "", PLAIN),
                (
                    f" {value}".ljust(cell - len(name) - 1 - room)[: cell - len(name) - 1 - room],
                    PLAIN,
                ),
            ]
        lines.append(line)
    hidden = len(cores) - columns * height
    if hidden > 0:
        lines[-1] = [(f"... and {hidden + columns} more cores; make the window larger", PLAIN)]
    return lines


def _vcpu_lines(document: Document, view: View) -> list[Line]:
    usage = document["system_data"].get("vcpu_usage", {"average_usage": {"user": 0, "system": 0}})
    average = usage["average_usage"]
    runtimes = [
        runtime["report"]["neuron_runtime_vcpu_usage"]["vcpu_usage"]
        for runtime in shown(document, view)
        if "neuron_runtime_vcpu_usage" in runtime["report"]
    ]
    user, system = (min(100.0, sum(r[what] for r in runtimes)) for what in ("user", "system"))
    rows = [
        ("System vCPU usage ", average["user"], average["system"]),
        ("Runtime vCPU usage", user, system),
    ]
    return [[(f" {name}  [{u:6.2f}%, {s:6.2f}%]", PLAIN)] for name, u, s in rows]


def _summary_lines(document: Document, view: View, width: int) -> list[Line]:
    host = dict.fromkeys((key for _, key in _HOST), 0)
    device = dict.fromkeys((key for _, key in _DEVICE), 0)
    for runtime in shown(document, view):
        if "memory_used" not in runtime["report"]:
            continue
        used = runtime["report"]["memory_used"]["neuron_runtime_used_bytes"]["usage_breakdown"]
        for key, size in used["host"].items():
            host[key] += size
        for of in used["neuroncore_memory_usage"].values():
            for key, size in of.items():
                device[key] += size
    left = [("Total", sum(host.values())), *((name, host[key]) for name, key in _HOST)]
    right = [("Total", sum(device.values())), *((name, device[key]) for name, key in _DEVICE)]
    half = width // 2
    lines: list[Line] = [[(" Host Used Memory".ljust(half), TITLE), ("Device Used Memory", TITLE)]]
    for row in range(max(len(left), len(right))):
        texts = [
            f"   {rows[row][0]:<17}{size_text(rows[row][1]):>10}" if row < len(rows) else ""
            for rows in (left, right)
        ]
        lines.append([(f"{texts[0]:<{half}}{texts[1][2:]}", PLAIN)])
    return lines


def _tree_lines(nodes: Sequence[Node], view: View, width: int, height: int) -> list[Line]:
    name_width = max(20, width - 38)
    head = f"   {'':<{name_width - 3}}{'Model ID':>10}{'Host Memory':>14}{'Device Memory':>14}"
    lines: list[Line] = [[(head[:width], TITLE)]]
    rows = list(visible(nodes, view.opened))
    if not rows:
        return [*lines, [("   no process uses the device", PLAIN)]][:height]
    view.cursor = max(0, min(view.cursor, len(rows) - 1))
    room = height - 1
    first = max(0, min(view.cursor - room // 2, len(rows) - room))
    for number, (depth, node) in enumerate(rows[first : first + room], first):
        mark = " " if not node.children else "-" if node.key in view.opened else "+"
        name = f" {'  ' * depth}{mark} {node.name}"
        text = (
            f"{name[:name_width]:<{name_width}}{node.model:>10}"
            f"{size_text(node.host):>14}{size_text(node.device):>14}"
        )
        lines.append([(text[:width], CURSOR if number == view.cursor else PLAIN)])
    return lines


def _bar(document: Document, view: View, width: int) -> Line:
    names = tabs(document)
    chosen = view.tab if view.tab in dict(names) else "all"
    line: Line = []
    for number, (tab, tag) in enumerate(names, 1):
        text = f"{number}:{tag}" if len(tag) <= 20 else f"{number}:{tag[:17]}..."
        line.append((f" >{text}< " if tab == chosen else f"  {text}  ",
                     SELECTED if tab == chosen else PLAIN))  # fmt: skip
    while len(line) > 1 and sum(len(text) for text, _ in line) > width:
        # The chosen one stays in sight.
        line.pop(-1 if line[-1][1] != SELECTED else 0)
    return line


def render(document: Document, view: View, width: int, height: int) -> list[Line]:
    """Return the lines of the screen.

    Args:
        document: Of neuron-monitor, with all groups.
        view: What is chosen; its cursor is moved to where there is something.
        width: Of the screen, in characters.
        height: Of the screen, in lines.
    """
    version = document["neuron_hardware_info"]["neuroncore_version"]
    summary = _summary_lines(document, view, width)
    fixed = 1 + 1 + 3 + 1 + len(summary) + 1 + 1
    room = max(2, height - fixed - _FEWEST_TREE_LINES)
    unit = "TFLOPS" if view.flops else "%"
    said = f"{unit}, F changes{_share(document)}"
    cores = _core_lines(document, view, width, min(room, _most_core_lines(document, room)))
    lines = [
        _title(document, width),
        _heading(f"NeuronCore {version} Utilization ({said})", width),
        *cores,
        _heading("VCPU Utilization", width),
        *_vcpu_lines(document, view),
        _heading("Memory Usage Summary", width),
        *summary,
        _heading("Memory Usage Details (arrows, x)", width),
    ]
    left = max(1, height - len(lines) - 1)
    details = _tree_lines(tree(document, view), view, width, left)
    lines += [*details, *([[("", PLAIN)]] * (left - len(details)))]
    return [*lines[: height - 1], _bar(document, view, width)]


def _most_core_lines(document: Document, room: int) -> int:
    """A line for each core, but not more than what leaves half of the room to the tree."""
    hardware = document["neuron_hardware_info"]
    count: int = hardware["neuron_device_count"] * hardware["neuroncore_per_device_count"]
    return max(2, min(count, room // 2))


def texts(lines: Sequence[Line]) -> Iterator[str]:
    """The lines without their styles."""
    for line in lines:
        yield "".join(text for text, _ in line)
