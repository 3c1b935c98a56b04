"""How long would a kernel take on hardware? One sum of two matrices, written in three ways.

    python -m examples.kernel_time [--trace FILE] [--page FILE]

Nothing is run: the kernels are recorded for the shapes and put on a timeline of a NeuronCore.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import nki.isa as nisa
import nki.language as nl
from neuronxcc.perf import Prediction, explorer, page, trace
from neuronxcc.targets import get_target
from nki.launch import Slot, record
from nki.perf import predict_recording

ROWS, COLUMNS = 2048, 4096
TARGETS = ("trn1", "trn2", "trn3")


def add(a: Any, b: Any, width: int, *, tiles: int | None = None) -> Any:
    """Add tile by tile; `tiles` is how many there are at a time, None for as many as fit."""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)

    def tile() -> Any:
        return nl.ndarray((128, width), dtype=a.dtype, buffer=nl.sbuf)

    kept = [(tile(), tile()) for _ in range(tiles or 0)]
    for number in range(a.shape[0] // 128 * (a.shape[1] // width)):
        i, j = divmod(number, a.shape[1] // width)
        here = nl.ds(i * 128, 128), nl.ds(j * width, width)
        x, y = kept[number % tiles] if tiles else (tile(), tile())
        nisa.dma_copy(dst=x, src=a[here])
        nisa.dma_copy(dst=y, src=b[here])
        nisa.tensor_tensor(dst=x, data1=x, data2=y, op=nl.add)
        nisa.dma_copy(dst=out[here], src=x)
    return out


def narrow(a: Any, b: Any) -> Any:
    return add(a, b, 32)


def one_buffer(a: Any, b: Any) -> Any:
    return add(a, b, 512, tiles=1)


def wide(a: Any, b: Any) -> Any:
    return add(a, b, 512)


KERNELS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("tiles of 32 columns: rows of 128 bytes", narrow),
    ("tiles of 512 columns in one place", one_buffer),
    ("tiles of 512 columns, as many as fit", wide),
)


def time_of(kernel: Callable[..., Any], target: str) -> Prediction:
    slots = tuple(Slot(i, "ab"[i], (ROWS, COLUMNS), "float32") for i in range(2))
    recording = record(kernel, [(slots, {})], target=get_target(target), grid=())
    return predict_recording(recording)


def run(
    path: str | None = None, page_path: str | None = None, tables: str | None = None
) -> list[str]:
    """Time all kernels on all targets. Returns what went wrong, in words."""
    wrong = []
    print(f"{f'a + b of {ROWS} x {COLUMNS} float32':42}" + "".join(f"{t:>14}" for t in TARGETS))
    found = {name: [time_of(kernel, target) for target in TARGETS] for name, kernel in KERNELS}
    for name, row in found.items():
        print(f"{name:42}" + "".join(f"{made.device_us:11.0f} us" for made in row))
    for name, row in found.items():
        print(f"{name:42}" + "".join(f"{made.bound_by:>14}" for made in row))
    for slower, faster in zip(found.values(), list(found.values())[1:], strict=False):
        wrong += [
            f"on {a.target} {a.name} takes {a.device_us:.0f} us and {b.name} {b.device_us:.0f} us"
            for a, b in zip(slower, faster, strict=True)
            if a.device_us <= b.device_us
        ]
    print(f"\n{found[KERNELS[-1][0]][1]}")
    if path is not None:
        trace.save(found[KERNELS[1][0]][1], path)
        print(f"a timeline for https://ui.perfetto.dev is in {path}")
    if page_path is not None:
        page.save(found[KERNELS[1][0]][1], page_path)
        print(f"a page of the timeline is in {page_path}")
    if tables is not None:
        explorer.save(found[KERNELS[1][0]][1], tables)
        print(f"`neuron-explorer view -d {tables}` shows its tables")
    return wrong


def main() -> str | None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--trace", metavar="FILE", help="write a timeline of the second kernel")
    options.add_argument("--page", metavar="FILE", help="write it as one HTML page")
    options.add_argument("--tables", metavar="FOLDER", help="write it for neuron-explorer")
    chosen = options.parse_args()
    return "\n".join(run(chosen.trace, chosen.page, chosen.tables)) or None


if __name__ == "__main__":
    sys.exit(main())
