"""What the queue of eager mode costs the caller, and from which size on it pays to enqueue.

Run it as ``python -m benchmarks.eager_queue [--repeats N]`` on a quiet machine. For additions of
growing size it prints the microseconds of a call with its work done at the call (``debug``), and
with every call enqueued (``strict``) those of the caller, of a call with its work when many follow
each other, and of one call and waiting for it. Where the last is the longer, enqueuing a call alone
loses; `queue::direct_elements()` is where that ends. Then: ten products of 1024 x 1024, how long
until all are issued, and until all are done. First of all, as users have it: tiny operators and a
read in each mode.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from torch_neuronx import _C, neuron

_CALLS = 200


def _caller_and_all(call: Callable[[], object]) -> tuple[float, float]:
    """Return microseconds of the caller, and until the work is done, for one of many calls."""
    neuron.synchronize()
    start = time.perf_counter()
    for _ in range(_CALLS):
        call()
    issued = time.perf_counter()
    neuron.synchronize()
    done = time.perf_counter()
    return (issued - start) / _CALLS * 1e6, (done - start) / _CALLS * 1e6


def _best(call: Callable[[], object], mode: str, repeats: int) -> tuple[float, float]:
    with neuron.eager_mode(mode):
        call()
        found = [_caller_and_all(call) for _ in range(repeats)]
    return min(caller for caller, _ in found), min(total for _, total in found)


def _alone(call: Callable[[], object], mode: str, repeats: int) -> float:
    """Return the microseconds of one call and of waiting for it."""
    found = []
    with neuron.eager_mode(mode):
        for _ in range(repeats * 20):
            start = time.perf_counter()
            call()
            neuron.synchronize()
            found.append(time.perf_counter() - start)
    return min(found) * 1e6


def _products(mode: str, repeats: int) -> tuple[float, float]:
    x, y = (torch.randn(1024, 1024, device="neuron") for _ in range(2))
    issued, done = [], []
    with neuron.eager_mode(mode):
        for _ in range(repeats + 1):
            neuron.synchronize()
            start = time.perf_counter()
            results = [x @ y for _ in range(10)]
            issued.append(time.perf_counter() - start)
            neuron.synchronize()
            done.append(time.perf_counter() - start)
            del results
    return min(issued[1:]) * 1e3, min(done[1:]) * 1e3


def _tiny(mode: str, repeats: int) -> float:
    """Return the microseconds of 99 calls on 16 elements, and of reading one of them."""
    x = torch.ones(16, device="neuron")
    found = []
    with neuron.eager_mode(mode):
        for _ in range(repeats * 20):
            start = time.perf_counter()
            y = x
            for _ in range(33):
                y = y + x
                y.mul_(0.5)
                y = y.view(16)
            y[0].item()
            found.append(time.perf_counter() - start)
    return min(found) * 1e6


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    tiny = {mode: _tiny(mode, repeats) for mode in ("debug", "strict", "fused")}
    print("99 calls on 16 elements and a read, us:", {m: round(us, 1) for m, us in tiny.items()})
    _C.set_direct_elements(0)
    print("          |   many calls, us each        | one and waiting, us")
    print(" elements |  debug  strict: caller   all |  debug  strict")
    for power in range(4, 21):
        x = torch.ones(1 << power, device="neuron")
        _, at_call = _best(lambda x=x: x + x, "debug", repeats)  # type: ignore[misc]
        caller, total = _best(lambda x=x: x + x, "strict", repeats)  # type: ignore[misc]
        alone = [_alone(lambda x=x: x + x, mode, repeats) for mode in ("debug", "strict")]  # type: ignore[misc]
        print(
            f"{1 << power:9} | {at_call:6.2f} {caller:15.2f} {total:5.2f} "
            f"| {alone[0]:6.2f} {alone[1]:7.2f}"
        )
    print("\nten products of 1024 x 1024, ms:  issued    done")
    for mode in ("debug", "strict"):
        issued, done = _products(mode, repeats)
        print(f"{mode:>31}  {issued:8.3f} {done:7.2f}")


if __name__ == "__main__":
    main()
