"""Who allocated what: the history of device memory, in the form that PyTorch's tools read."""

from __future__ import annotations

import pickle
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch._utils import _augment_memory_snapshot_stack_traces

from neuronxcc.files import write_whole
from torch_neuronx import _C
from torch_neuronx.neuron._utils import DeviceLike, _get_device_index
from torch_neuronx.users_line import SourceLine, line_among

if TYPE_CHECKING:
    Snapshot = dict[str, Any]

# As c10::CachingDeviceAllocator::RecordContext numbers them.
_CONTEXTS = {None: 0, "state": 1, "alloc": 2, "all": 3}
_ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
    "segment_unmap", "snapshot", "oom",
)  # fmt: skip
_MOST_LINES = 8  # of an error
_SOURCES = (".py", ".ipynb")  # files of Python's frames, but those whose name is like "<stdin>"


def _record_memory_history(
    enabled: Literal["state", "all"] | bool | None = "all",
    context: Literal["state", "alloc", "all"] | None = "all",
    stacks: Literal["python", "all"] = "all",
    max_entries: int = sys.maxsize,
    device: DeviceLike = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Sequence[str] | None = None,
) -> None:
    """Record who allocates device memory, as ``torch.cuda.memory._record_memory_history`` does.

    While it records, an error of a core that is full names the lines that hold most of its memory,
    and :func:`_snapshot` has the lines of every block and the latest events. A call of an operator
    then costs some microseconds more.

    Args:
        enabled: ``"all"`` keeps events, ``"state"`` only what is in use; ``None`` stops, and
            forgets. ``True`` and ``False`` are older spellings of ``"all"`` and ``None``.
        context: For what lines are kept: blocks in use, also events of allocation, all events.
        stacks: ``"all"`` adds the lines of C++ to those of Python; finding their names takes
            seconds when a snapshot is taken.
        max_entries: As many events are kept of each core, the latest.
        device: Has no effect but that it must exist: all devices are recorded, as on CUDA.
        clear_history: Forget the events so far.
        compile_context: Not recorded here; must be False.
        global_record_annotations: Not recorded here; must be False.
        skip_actions: Kinds of events that are not kept; see :func:`_snapshot`.

    Raises:
        ValueError: An argument has a value that is not listed here.
    """
    if device is not None:
        _get_device_index(device)
    if isinstance(enabled, bool):
        enabled = "all" if enabled else None
    skipped = list(skip_actions or ())
    for name, given, allowed in (
        ("enabled", enabled, ("state", "all", None)),
        ("context", context, tuple(_CONTEXTS)),
        ("stacks", stacks, ("python", "all")),
        ("compile_context", compile_context, (False,)),
        ("global_record_annotations", global_record_annotations, (False,)),
        *(("skip_actions", action, _ACTIONS) for action in skipped),
    ):
        if given not in allowed:
            wanted = ", ".join(map(repr, allowed))
            raise ValueError(f"{name} is {given!r}; on neuron it can be {wanted}")
    if max_entries < 0:
        raise ValueError(f"max_entries is {max_entries}; it must not be negative")
    if enabled is None:
        _C.stop_memory_history()
        return
    _C.set_holders_writer(_holders)
    _C.start_memory_history(
        events=enabled == "all",
        context=_CONTEXTS[context],
        native_frames=stacks == "all",
        most_events=max_entries,
        skipped=skipped,
        clear=clear_history,
    )


def _snapshot(device: DeviceLike = None, augment_with_fx_traces: bool = False) -> Snapshot:
    """Return the state of all devices' memory, and its recorded history, as CUDA has them.

    Args:
        device: Has no effect but that it must exist: the snapshot is of all devices, as on CUDA.
        augment_with_fx_traces: Add to lines of code that FX generated the lines of the model.

    Returns:
        ``{"segments": [...], "device_traces": [[...], ...], "allocator_settings": {...}, ...}``.
        A segment is a run of reserved memory with its ``blocks``; a block has ``address``, ``size``
        and ``requested_size`` in bytes, ``state`` and ``frames``, the lines that allocated it. The
        traces are a list for each device, of events: ``action``, ``addr``, ``size``, ``time_us``,
        ``frames``. The actions are ``alloc``, ``free_requested`` and ``free_completed`` (together:
        operators run in the order of issue, so nothing has to be waited for), ``segment_map`` and
        ``segment_unmap`` when HBM is reserved or given back, and ``oom``. ``stream`` is always 0:
        memory that is free may go to any stream.
    """
    if device is not None:
        _get_device_index(device)
    found = _C.memory_record()
    if augment_with_fx_traces:
        return _augment_memory_snapshot_stack_traces(found)  # type: ignore[arg-type, return-value]
    return found


def _dump_snapshot(
    filename: str = "dump_snapshot.pickle",
    augment_with_fx_traces: bool = False,
) -> None:
    """Write :func:`_snapshot` to a file that PyTorch's viewers open (pytorch.org/memory_viz).

    Args:
        filename: The file; one that exists is replaced when the new one is complete.
        augment_with_fx_traces: As of :func:`_snapshot`.
    """
    found = _snapshot(augment_with_fx_traces=augment_with_fx_traces)
    write_whole(Path(filename), pickle.dumps(found))


def _holders(core: int) -> str:
    """Say which lines hold the memory of a core, the largest first; for the native core's error."""
    held: Counter[str] = Counter()
    blocks: defaultdict[str, int] = defaultdict(int)
    for row in _C.memory_holdings(core):
        place = _place(row["frames"])
        held[place] += row["bytes"]
        blocks[place] += 1
    lines = [
        f"  {size / 2**30:10.3f} GiB in {blocks[place]:5} block{'s' * (blocks[place] > 1)} {place}"
        for place, size in held.most_common(_MOST_LINES)
    ]
    if len(held) > _MOST_LINES:
        rest = held.total() - sum(size for _, size in held.most_common(_MOST_LINES))
        lines.append(f"  {rest / 2**30:10.3f} GiB of {len(held) - _MOST_LINES} other lines")
    title = f"Lines that allocated what is in use on neuron:{core}, since the recording began:"
    return "\n".join([title, *(lines or ["  none"]), ""])


def _place(frames: Sequence[dict[str, Any]]) -> str:
    line: SourceLine | None = line_among(_python_frames(frames))
    return "of a tensor being printed" if line is None else str(line)


def _python_frames(frames: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, int]]:
    for frame in frames:
        name = frame["filename"]
        if name.endswith(_SOURCES) or name.startswith("<"):
            yield name, frame["name"], frame["line"]
