"""Random NKI kernels, made from the instruction table: the native executor against the reference.

`python -m tests.fuzz.kernels --seconds 3600 --seed 1` runs kernel after kernel, prints the shortest
form of each that differs, and fails if there was one. `--only N` runs the kernel of one seed.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import nki
from nki.dtypes import NAMES, info
from nki.errors import NkiError, NkiWarning
from nki.recording import Recording
from nki.reference import run
from tests.fuzz.kernel_maker import COLUMNS, ROWS, SMALL, WORDS_OF, Maker
from tests.nki.lowering_tools import items
from tests.nki.native_tools import natively

__all__ = ["check", "inputs", "natively"]

Array = npt.NDArray[Any]


def inputs(seed: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return arrays of every type, as unsigned integers, and small numbers of some."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name in NAMES:
        word = np.dtype(WORDS_OF[name])
        made = rng.integers(0, np.iinfo(word).max, (ROWS, COLUMNS), word, endpoint=True)
        if not info(name).is_packed and rng.random() < 0.7:
            made = np.ascontiguousarray(items(seed, (ROWS, COLUMNS), name)).view(word)
        arrays[name] = made
    return arrays, {name: rng.integers(0, 6, (ROWS, COLUMNS)).astype(name) for name in SMALL}


def differences(maker: Maker, wanted: list[Array], got: list[Array]) -> list[str]:
    """Return what differs between two executors' results."""
    found = []
    for number, (a, b) in enumerate(zip(wanted, got, strict=True)):
        x, y = (np.ascontiguousarray(v).view(np.uint8) for v in (a, b))
        if np.array_equal(x, y):
            continue
        what = f"tensor {number - len(maker.looked)}"
        if number < len(maker.looked):
            looked = maker.looked[number]
            if looked.approximate or _alike(x, y, looked.dtype):
                continue
            what = looked.what
        at = np.argwhere(x != y)
        found.append(f"{what}: {len(at)} bytes of {x.size}, first at {at[0].tolist()}: "
                     f"reference {x[tuple(at[0])]}, native {y[tuple(at[0])]}")  # fmt: skip
    return found


def _alike(x: Array, y: Array, dtype: str) -> bool:
    """Whether items are equal, where a NaN is any NaN and 0 is -0."""
    kind = info(dtype)
    with np.errstate(invalid="ignore"):  # a NaN of some types is told so when it is cast
        a, b = (v.view(kind.numpy).astype(np.float64) for v in (x, y))
    return bool(((a == b) | (np.isnan(a) & np.isnan(b))).all())


def recorded(maker: Maker) -> tuple[Recording, list[Array]]:
    """Record a maker's kernel."""
    arrays, small = inputs(maker.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NkiWarning)
        kernel = nki.jit(maker.kernel)
        return kernel.record(arrays, small), [*arrays.values(), *small.values()]


def _ran(runner: Callable[..., list[Array]], recording: Recording, arrays: list[Array]) -> Any:
    try:
        return runner(recording, [np.array(a) for a in arrays])
    except (NkiError, IndexError) as error:
        return "NKI132" if "NKI132" in str(error) else str(error)


def check(
    seed: int, left_out: frozenset[int] = frozenset(), steps: int = 12
) -> tuple[list[str], Maker]:
    """Run the kernel of a seed by both executors; return what differs, and what it did."""
    maker = Maker(seed, left_out, steps)
    try:
        recording, arrays = recorded(maker)
    except NkiError as error:
        if error.code in ("NKI220", "NKI221", "NKI005"):
            return [], maker  # too much at a time, which the table does not know
        return [f"recording: {error}"], maker
    except Exception:  # noqa: BLE001 (a crash is a finding too)
        return [f"recording: {traceback.format_exc()}"], maker
    try:
        with np.errstate(all="ignore"):
            wanted = _ran(run, recording, arrays)
        got = _ran(natively, recording, arrays)
    except Exception:  # noqa: BLE001 (a crash is a finding too)
        return [traceback.format_exc()], maker
    if isinstance(wanted, str) or isinstance(got, str):
        return (
            []
            if wanted is got or wanted == got
            else [f"reference {wanted!s:.200}, native {got!s:.200}"]
        ), maker
    return differences(maker, wanted, got), maker


def shrunk(seed: int, steps: int) -> tuple[list[str], Maker]:
    """Return the finding of a seed with as few steps as possible."""
    left_out: frozenset[int] = frozenset()
    found, maker = check(seed, left_out, steps)
    for number in reversed(range(steps)):
        fewer = left_out | {number}
        again, made = check(seed, fewer, steps)
        if again:
            found, maker, left_out = again, made, fewer
    return found, maker


def main() -> int:
    """Parse the command line and search."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.kernels", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=0, help="of the first kernel")
    parser.add_argument("--only", type=int, help="run the kernel of this seed alone")
    parser.add_argument("--steps", type=int, default=12)
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    seed, bad = given.seed if given.only is None else given.only, 0
    used: Counter[str] = Counter()
    first = seed
    while time.monotonic() < end:
        found, maker = check(seed, steps=given.steps)
        used += maker.used
        if found:
            bad += 1
            found, maker = shrunk(seed, given.steps)
            print(f"--- seed {seed}", *maker.log, *found, sep="\n", flush=True)
        seed += 1
        if given.only is not None:
            break
    print(f"{seed - first} kernels, {bad} differ")
    for name, count in sorted(used.items()):
        print(f"  {count:6} {name}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
