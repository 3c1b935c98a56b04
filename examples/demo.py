"""The demonstration behind `make demo`: train, embed, look inside, say what was emulated.

    python -m examples.demo

Exit code 1 when a result isn't good enough: the classifier under 95 %, or embeddings that differ
from the CPU's, or losses on two cores from those on one, by more than float32 arithmetic in another
order explains.
"""

from __future__ import annotations

import sys

import torch

import torch_neuronx.ops
from examples import (
    device_program,
    diffusers_pipeline,
    digits_parallel,
    digits_vit,
    inside,
    kernel_time,
    minilm,
    model_time,
    nki_sine,
    per_sample_gradients,
    portable_programs,
    run_ahead,
    two_clocks,
)

LEAST_ACCURACY = 0.95
# Components of unit vectors after six layers of float32, whose sums run in another order.
LARGEST_DIFFERENCE = 1e-5
GIB = 1 << 30


def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def training() -> list[str]:
    """Train the digits classifier, eager and compiled. Returns what went wrong, in words."""
    title("1. A vision transformer on handwritten digits: DataLoader, autocast, AdamW")
    neuron = torch.device("neuron")
    runs = [
        digits_vit.train(neuron),
        digits_vit.train(neuron, compiled=True),
        digits_vit.train(torch.device("cpu")),
    ]
    print(digits_vit.compare(runs))
    return [
        f"test accuracy on {run.device} is {run.accuracy:.2%}, not over {LEAST_ACCURACY:.0%}"
        for run in runs
        if run.accuracy <= LEAST_ACCURACY
    ]


def embedding() -> list[str]:
    """Embed the sentences on both devices. Returns what went wrong, in words."""
    title("2. Sentence embeddings: pretrained MiniLM through unmodified transformers")
    on_neuron, on_cpu = (minilm.embed(torch.device(name)) for name in ("neuron", "cpu"))
    print(minilm.similarity_table(on_neuron))
    print(minilm.compare([on_neuron, on_cpu]))
    difference = (on_neuron.vectors - on_cpu.vectors).abs().max().item()
    if difference > LARGEST_DIFFERENCE:
        return [f"embeddings differ by {difference:.1e}, more than {LARGEST_DIFFERENCE:.0e}"]
    return []


def compiled() -> list[str]:
    """Show what compiled functions become. Returns what went wrong, in words."""
    title("3. Inside a compiled model; gradients of each sample")
    return inside.look() + per_sample_gradients.run()


def kernels() -> list[str]:
    """Run a kernel of NKI, time one, a graph and a model. Returns what went wrong, in words."""
    title("4. A kernel of one's own, in NKI; how long it, and a model, would take on hardware")
    return nki_sine.run() + kernel_time.run() + device_program.run() + model_time.run()


def parallel() -> list[str]:
    """Train on two NeuronCores. Returns what went wrong, in words."""
    title("5. The same classifier on two NeuronCores, by torchrun")
    return digits_parallel.launch()


def pictures() -> list[str]:
    """Run a small diffusion pipeline. Returns what went wrong, in words."""
    title("6. A small SDXL through unmodified diffusers")
    return diffusers_pipeline.run()


def ahead() -> list[str]:
    """Let Python run ahead of the work, and join what waits. Returns what went wrong, in words."""
    title("8. Strict and fused mode: Python issues, the core works behind it")
    return run_ahead.run()


def elsewhere() -> list[str]:
    """Take compiled programs to another process. Returns what went wrong, in words."""
    title("7. Compiled here, run there: a classifier on jagged batches with sparse gradients")
    return portable_programs.run()


def clocks() -> list[str]:
    """Watch a training by two clocks. Returns what went wrong, in words."""
    title("9. neuron-monitor: how busy this host is, and how busy a NeuronCore would be")
    return two_clocks.run()


def machine() -> None:
    """Print the emulated machine, the memory used on it, and the portability report."""
    title("10. The emulated machine")
    neuron = torch.get_device_module("neuron")
    for index in range(neuron.device_count()):
        properties = neuron.get_device_properties(index)
        gib = properties.total_memory / GIB
        print(f"  neuron:{index}  {properties.name}, {gib:.0f} GiB of device memory")
    print("  Emulated: this computer's own processor did the arithmetic, not a Trainium chip.\n")
    print(neuron.memory_summary())
    title("11. What of this run a real NeuronCore would have executed")
    print(torch_neuronx.ops.format_report())


def main() -> int:
    failures = training() + embedding() + compiled() + kernels() + parallel() + pictures()
    failures += elsewhere() + ahead() + clocks()
    machine()
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
