"""Files about compilations that are left on disk when somebody asks for them.

`NEURON_DUMP=dir`: every stage of every compilation as a text file.

A graph gets a directory of its own with numbered files: the FX graph, the tensor IR as imported and
after every pass that changed it, and the program. The compile cache is not read meanwhile, because
a program that comes from it has no stages.

`NEURON_FRAMEWORK_DEBUG=1`, as documented for the Neuron SDK: the graph as HLO, the NEFF and the
compiler's options in the current directory.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from neuronxcc.environment.compilation import NEURON_DUMP, NEURON_FRAMEWORK_DEBUG
from neuronxcc.files import write_whole
from neuronxcc.neff import NeffInfo, write_neff

if TYPE_CHECKING:
    from neuronxcc.cache.key import CacheKey
    from neuronxcc.ir.graph import Graph
    from neuronxcc.options import Options
    from neuronxcc.program.program import Program


def directory() -> Path | None:
    """The directory to write to, None for nowhere."""
    return NEURON_DUMP.get()


def observer(graph: str) -> Callable[[str, Callable[[], str]], None] | None:
    """Something that is told of every stage of a graph, None if nobody wants to see it."""
    place = directory()
    if place is None:
        return None
    folder = place / graph
    numbers = itertools.count(len(list(folder.glob("*.txt"))) if folder.is_dir() else 0)

    def observe(stage: str, text: Callable[[], str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{next(numbers):02d}.{stage.replace(' ', '-')}.txt"
        write_whole(path, f"{text()}\n".encode())

    return observe


def leave_for_debugging(
    graph: Graph, program: Program, options: Options, key: CacheKey
) -> tuple[Path, ...]:
    """Write what NEURON_FRAMEWORK_DEBUG asks for, if it does.

    Args:
        graph: What was compiled.
        program: What became of it.
        options: Of the compilation.
        key: Its key in the cache, whose hash is in the names.

    Returns:
        The files: `<graph>_MODULE_<hash>+<hash>.hlo.pb`, `.neff` and `_compile_flags.txt`.

    Raises:
        OSError: The current directory can't be written to.
    """
    if not NEURON_FRAMEWORK_DEBUG.get():
        return ()
    # Imported by who debugs only: it brings protobuf.
    from neuronxcc.frontends.hlo.exporter import export_hlo  # noqa: PLC0415

    info = NeffInfo(program.name, options.target, options.lnc, options.flags())
    plain = re.sub(r"[^\w.-]", "_", graph.name)
    stem = f"{plain}_{key.folder}"
    files = {
        f"{stem}.hlo.pb": export_hlo(graph),
        f"{stem}.neff": write_neff(program, info),
        f"{stem}_compile_flags.txt": f"{shlex.join(options.flags())}\n".encode(),
    }
    for name, content in files.items():
        write_whole(Path(name), content)
    return tuple(map(Path, files))
