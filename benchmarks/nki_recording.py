"""What recording a kernel costs per instruction, and how much memory its recording takes.

Run it as ``python -m benchmarks.nki_recording [--profile]``. The kernels are tiled: an addition of
4096 x 4096 in tiles of 128 x 512, by one core, by the two of a launch, and as a kernel of the first
generation; a product of 4096 x 4096 x 4096 in tiles of 128 x 128 x 512; and a million instructions
on a few tiles. Of all but the last the fastest of several recordings counts.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import resource
import time
from collections.abc import Callable
from typing import Any

import neuronxcc.nki as first_nki
import neuronxcc.nki.language as first_nl
import nki.isa as nisa
import nki.language as nl
from neuronxcc.targets import get_target
from nki.launch import Slot, record
from nki.recording import Recording

_MIB = 1024  # of ru_maxrss, which counts KiB


def add(a: Any, b: Any) -> Any:
    """Add two matrices tile by tile, with another core if there is one."""
    rows, columns = a.shape
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for i in range(nl.program_id(0), rows // 128, nl.num_programs(0)):
        for j in nl.affine_range(columns // 512):
            x = nl.ndarray((128, 512), dtype=a.dtype, buffer=nl.sbuf)
            y = nl.ndarray((128, 512), dtype=a.dtype, buffer=nl.sbuf)
            z = nl.ndarray((128, 512), dtype=a.dtype, buffer=nl.sbuf)
            here = slice(i * 128, (i + 1) * 128), slice(j * 512, (j + 1) * 512)
            nisa.dma_copy(dst=x, src=a[here])
            nisa.dma_copy(dst=y, src=b[here])
            nisa.tensor_tensor(dst=z, data1=x, data2=y, op=nl.add)
            nisa.dma_copy(dst=out[here], src=z)
    return out


@first_nki.jit
def add_in_first_generation(a: Any, b: Any) -> Any:
    """Add two matrices tile by tile."""
    rows, columns = a.shape
    out = first_nl.ndarray(a.shape, dtype=a.dtype, buffer=first_nl.shared_hbm)
    for i in first_nl.affine_range(rows // 128):
        for j in first_nl.affine_range(columns // 512):
            p, f = first_nl.mgrid[0:128, 0:512]
            x = first_nl.load(a[i * 128 + p, j * 512 + f])
            y = first_nl.load(b[i * 128 + p, j * 512 + f])
            first_nl.store(out[i * 128 + p, j * 512 + f], x + y)
    return out


def matmul(a: Any, b: Any) -> Any:
    """Multiply a transposed matrix by another, one PSUM tile after the other."""
    depth, rows = a.shape
    columns = b.shape[1]
    out = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    for j in nl.affine_range(columns // 512):
        right = nl.ndarray((128, depth // 128, 512), dtype=b.dtype, buffer=nl.sbuf)
        for k in nl.affine_range(depth // 128):
            nisa.dma_copy(dst=right[:, k], src=b[k * 128 : (k + 1) * 128, nl.ds(j * 512, 512)])
        for i in nl.affine_range(rows // 128):
            left = nl.ndarray((128, depth // 128, 128), dtype=a.dtype, buffer=nl.sbuf)
            total = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for k in nl.affine_range(depth // 128):
                part = a[k * 128 : (k + 1) * 128, i * 128 : (i + 1) * 128]
                nisa.dma_copy(dst=left[:, k, :], src=part)
                nisa.nc_matmul(dst=total, stationary=left[:, k, :], moving=right[:, k, :])
            done = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=done, src=total)
            nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, j * 512 : (j + 1) * 512], src=done)
    return out


def million(a: Any, b: Any) -> Any:
    """Add a million times."""
    x = nl.ndarray((128, 64), dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x, src=a[:128, :64])
    for _ in range(250_000):
        y = nl.ndarray((128, 64), dtype=a.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=y, src=b[:128, :64])
        for part in (slice(0, 32), slice(32, 64)):
            nisa.tensor_tensor(dst=x[:, part], data1=x[:, part], data2=y[:, part], op=nl.add)
        nisa.tensor_scalar(dst=x, data=x, op0=nl.multiply, operand0=0.5)
    nisa.dma_copy(dst=a[:128, :64], src=x)
    return a


def recorded(kernel: Callable[..., Any], size: int, grid: tuple[int, ...] = ()) -> Recording:
    """Return the recording of a kernel of two square matrices."""
    slots = tuple(Slot(i, "ab"[i], (size, size), "float32") for i in range(2))
    return record(kernel, [(slots, {})], target=get_target("trn2"), grid=grid)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--profile", action="store_true", help="print where the time goes")
    options.add_argument("--million", action="store_true", help="record a million instructions too")
    options.add_argument("--repeats", type=int, default=5)
    chosen = options.parse_args()
    first = add_in_first_generation.today().function
    cases: dict[str, tuple[Callable[[], Recording], int]] = {}
    if chosen.million:  # before the others, whose memory would hide its own
        cases["million"] = (lambda: recorded(million, 4096), 1)
    cases |= {
        "add": (lambda: recorded(add, 4096), chosen.repeats),
        "add on two cores": (lambda: recorded(add, 4096, (2,)), chosen.repeats),
        "add in the first generation": (lambda: recorded(first, 4096), chosen.repeats),
        "matmul": (lambda: recorded(matmul, 4096), chosen.repeats),
    }
    for name, (make, repeats) in cases.items():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        profile = cProfile.Profile()
        seconds = []
        for _ in range(repeats):
            if chosen.profile:
                profile.enable()
            begin = time.process_time()
            recording = make()
            seconds.append(time.process_time() - begin)
            profile.disable()
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        count = sum(1 for _ in recording.events())
        print(
            f"{name}: {count} instructions, {min(seconds) / count * 1e6:.1f} us of the processor "
            f"each, {len(recording.templates)} templates, "
            f"memory {before // _MIB} -> {after // _MIB} MiB"
        )
        if chosen.profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(28)


if __name__ == "__main__":
    main()
