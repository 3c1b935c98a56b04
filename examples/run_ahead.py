"""Python runs ahead of the core: products that are enqueued, and a chain that becomes one program.

    python -m examples.run_ahead

In debug mode, the default, a product is done when its call returns. In strict mode the call takes
memory for the result and enqueues the work, which a thread of the core does; whoever reads a value
waits. In fused mode, operators that wait and come again are compiled into one program, and results
that nobody can read any more are not written. Exit code 1 when modes give different bits, or when
nothing was joined within a minute.
"""

from __future__ import annotations

import sys
import time

import torch

import torch_neuronx

SIZE, PRODUCTS = 1024, 10
CHAIN_SIZE, CHAINS, MOST_SECONDS = 2048, 5, 60.0


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


def _chain(x: torch.Tensor) -> torch.Tensor:
    y = x * 1.5
    y = y + x
    y = y.relu()
    y = y - 0.5
    y = y.abs()
    return y * y


def _chains(mode: str, x: torch.Tensor) -> torch.Tensor:
    """Run the chain some times in a mode, print the shortest time; return what it gave."""
    neuron = torch.get_device_module("neuron")
    times = []
    with neuron.eager_mode(mode):
        for _ in range(CHAINS):
            neuron.synchronize()
            start = time.perf_counter()
            # The first chain keeps the core busy, so that the operators of the second wait.
            _chain(x)
            result = _chain(x)
            neuron.synchronize()
            times.append(time.perf_counter() - start)
    print(f"  {mode:7} {min(times) * 1e3:6.1f} ms for two chains")
    return result


def _joined(x: torch.Tensor) -> bool:
    """Let the chain come again until it has run as a program, and print what happened."""
    end = time.monotonic() + MOST_SECONDS
    with torch_neuronx.explain_eager() as report:
        while time.monotonic() < end and not torch_neuronx.neuron.eager_stats()["fused"]["regions"]:
            for _ in range(CHAINS):
                _chain(x)
            torch_neuronx.neuron.synchronize()
            time.sleep(0.05)
    ran = [region for region in report.regions if region.runs]
    print("\n".join(f"  {line}" for region in ran[:1] for line in str(region).splitlines()))
    return bool(ran)


def run() -> list[str]:
    """Run all modes. Returns what went wrong, in words."""
    print(f"{PRODUCTS} products of {SIZE} x {SIZE}:")
    x = torch.randn(SIZE, SIZE, device="neuron")
    wrong = []
    if not torch.equal(_products("debug", x), _products("strict", x)):
        wrong.append("strict mode gives other bits than debug mode")
    print(f"six pointwise operators on {CHAIN_SIZE} x {CHAIN_SIZE}:")
    x = torch.randn(CHAIN_SIZE, CHAIN_SIZE, device="neuron")
    strict = _chains("strict", x)
    if not _joined(x):
        wrong.append(f"no operators were joined within {MOST_SECONDS:.0f} s")
    if not torch.equal(strict.cpu(), _chains("fused", x).cpu()):
        wrong.append("fused mode gives other bits than strict mode")
    return wrong


if __name__ == "__main__":
    sys.exit("\n".join(run()) or 0)
