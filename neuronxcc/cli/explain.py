"""`--explain`: where the memory of a program goes, and what every pass did."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from neuronxcc.options import Options
from neuronxcc.program.footprint import memory_of
from neuronxcc.program.program import Program
from neuronxcc.targets.spec import GIB

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def explanation(program: Program, options: Options, reading_s: float) -> str:
    """A report for people.

    Args:
        program: As it was compiled, with its measured times.
        options: Of the compilation.
        reading_s: Seconds that reading the model took.
    """
    have = options.target_spec.hbm_bytes_per_logical_core(options.lnc)
    memory = asdict(memory_of(program))
    total = sum(memory.values())
    lines = [
        f"memory of a logical core of {options.target} ({have / GIB:.0f} GiB)",
        *(f"  {name:<12}{_size(size):>12}" for name, size in memory.items()),
        f"  {'in all':<12}{_size(total):>12}  {100 * total / have:.2f} %",
        "steps by engine",
        *_engines(program),
        "time",
        f"  {'reading':<36}{1000 * reading_s:>9.1f} ms",
        *(f"  {name:<36}{1000 * s:>9.1f} ms" for name, s in program.meta["seconds"].items()),
    ]
    return "\n".join(lines)


def _engines(program: Program) -> list[str]:
    steps = program.meta["steps"]
    counted = Counter(step["engine"] for step in steps)
    moved: Counter[str] = Counter()
    for step in steps:
        moved[step["engine"]] += step["bytes"]
    return [
        f"  {engine:<12}{count:>6} steps  {_size(moved[engine]):>12} read and written"
        for engine, count in sorted(counted.items())
    ]


def _size(count: int) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"
