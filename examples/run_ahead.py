"""Python runs ahead of the core: the same ten products at their call, and enqueued.

    python -m examples.run_ahead

In debug mode, the default, a product is done when its call returns. In strict mode the call takes
memory for the result and enqueues the work, which a thread of the core does; whoever reads a value
waits. Exit code 1 when the two modes give different bits.
"""

from __future__ import annotations

import sys
import time

import torch

SIZE, PRODUCTS = 1024, 10


def _products(mode: str, x: torch.Tensor) -> torch.Tensor:
    """Issue the products in a mode, print how long that took; return the last one."""
    neuron = torch.get_device_module("neuron")
    with neuron.eager_mode(mode):
        x @ x  # the first of its kind runs at its call: it shows what equal calls will give
        neuron.reset_eager_stats()
        neuron.synchronize()
        start = time.perf_counter()
        results = [x @ x for _ in range(PRODUCTS)]
        issued = time.perf_counter() - start
        neuron.synchronize()
        done = time.perf_counter() - start
        enqueued = neuron.eager_stats()["enqueued"]
    print(
        f"  {mode:7} issued in {issued * 1e3:7.3f} ms, done in {done * 1e3:6.1f} ms, "
        f"{enqueued} enqueued"
    )
    return results[-1].cpu()


def run() -> list[str]:
    """Run both modes. Returns what went wrong, in words."""
    print(f"{PRODUCTS} products of {SIZE} x {SIZE}:")
    x = torch.randn(SIZE, SIZE, device="neuron")
    if torch.equal(_products("debug", x), _products("strict", x)):
        return []
    return ["strict mode gives other bits than debug mode"]


if __name__ == "__main__":
    sys.exit("\n".join(run()) or 0)
