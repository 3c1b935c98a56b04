"""All benchmarks that state targets, one process after the other.

    python -m benchmarks [--only REGEX] [--allow-load] ...

Options go to each. Exit code: the largest of theirs (0 all targets met, 1 some missed, 2 the
machine was too busy to measure).
"""

from __future__ import annotations

import subprocess
import sys

SUITES = [
    "benchmarks.run",
    "benchmarks.compiled.run",
    "benchmarks.compiled.compile_time",
    "benchmarks.compiled.memory",
    "benchmarks.compiled.command",
    "benchmarks.nki_speed",
    "benchmarks.collectives",
    "benchmarks.parallel_steps",
    "benchmarks.nrtpy_calls",
    "benchmarks.inference",
]


def main() -> int:
    """Run every suite with the given options."""
    codes = []
    for suite in SUITES:
        print(f"== {suite}", flush=True)
        command = [sys.executable, "-m", suite, *sys.argv[1:]]
        codes.append(subprocess.run(command, check=False).returncode)  # noqa: S603 - our own module
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
