"""A small SDXL with random weights, eager and compiled, beside the CPU. Nothing is downloaded.

    python -m examples.diffusers_pipeline

The picture is noise; what matters is that it is the same noise everywhere, and what it costs.
Exit code 1 if it is not.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import diffusers
import numpy as np
import torch

from examples import small_pipelines
from torch_neuronx.integrations.diffusers import enable_neuron_compile, neuron_warmup

PROMPT = "a surfing dog"
STEPS = 4
# Pixels between 0 and 1, after sums of float32 in another order.
TOLERANCE = 1e-4


def paint(pipe: Any) -> tuple[Any, float]:
    """A picture and the seconds that it took."""
    generator = torch.Generator().manual_seed(3)
    start = time.perf_counter()
    images = pipe(
        PROMPT,
        num_inference_steps=STEPS,
        height=32,
        width=32,
        generator=generator,
        output_type="np",
    ).images
    return images, time.perf_counter() - start


def run() -> list[str]:
    """Run the pipeline in three ways and print. Returns what went wrong, in words."""
    diffusers.utils.logging.set_verbosity_error()
    pipe = small_pipelines.sdxl()
    paint(pipe)
    on_cpu, cpu_seconds = paint(pipe)
    print(f"  cpu, eager         {1000 * cpu_seconds:5.0f} ms for {STEPS} steps with guidance")

    pipe.to("neuron")
    paint(pipe)
    eager, eager_seconds = paint(pipe)
    print(f"  neuron, eager      {1000 * eager_seconds:5.0f} ms")

    enable_neuron_compile(pipe, ["unet"])
    start = time.perf_counter()
    neuron_warmup(pipe, PROMPT, num_inference_steps=1, height=32, width=32)
    warming = time.perf_counter() - start
    compiled, compiled_seconds = paint(pipe)
    print(f"  neuron, compiled   {1000 * compiled_seconds:5.0f} ms, warm-up {warming:.1f} s")

    failures = []
    for way, picture in {"eager": eager, "compiled": compiled}.items():
        difference = float(np.abs(picture - on_cpu).max())
        print(f"  largest difference of a pixel from the CPU, {way}: {difference:.1e}")
        if difference > TOLERANCE:
            failures.append(f"the {way} picture is off by {difference:.1e}, over {TOLERANCE:.0e}")
    return failures


def main() -> int:
    failures = run()
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
