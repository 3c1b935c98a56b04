"""All benchmarks that state targets, one process after the other.

    python -m benchmarks [--isa avx2] [--only REGEX] [--allow-load] ...

`--isa` holds the device and all that it is compared with to fewer instructions: ATen, oneDNN,
oneMKL and Inductor by `TORCH_NEURONX_ISA`, XLA by a flag of its own. The other options go to each
suite. Exit code: the largest of theirs (0 all targets met, 1 some missed, 2 the machine was too
busy to measure).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

SUITES = [
    "benchmarks.run",
    "benchmarks.compiled.run",
    "benchmarks.compiled.operators",
    "benchmarks.compiled.compile_time",
    "benchmarks.compiled.memory",
    "benchmarks.compiled.command",
    "benchmarks.nki_speed",
    "benchmarks.collectives",
    "benchmarks.parallel_steps",
    "benchmarks.nrtpy_calls",
    "benchmarks.inference",
]
# What XLA calls the instructions. XLA has no name for SSE2 alone.
XLA = {"auto": "", "avx2": "--xla_cpu_max_isa=AVX2", "portable": "--xla_cpu_max_isa=SSE4_2"}


def main() -> int:
    """Run every suite with the given options."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--isa", choices=XLA, default="auto")
    mine, others = parser.parse_known_args()
    held = {"TORCH_NEURONX_ISA": mine.isa, "XLA_FLAGS": XLA[mine.isa]}
    environment = os.environ | (held if mine.isa != "auto" else {})
    codes = []
    for suite in SUITES:
        print(f"== {suite}", flush=True)
        command = [sys.executable, "-m", suite, *others]
        done = subprocess.run(command, env=environment, check=False)  # noqa: S603 - our own module
        codes.append(done.returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
