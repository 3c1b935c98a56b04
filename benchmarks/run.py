"""Measure the neuron device against cpu, in one process, in turn.

    python -m benchmarks.run [--only REGEX] [--list]

A ratio is time on cpu / time on neuron: above 1 the device is faster. No number is reported from
a busy machine unless --allow-load is given, which marks the result as such. Exit code: 0 when all
targets are met, 1 when one is missed, 2 when the machine was too busy to measure.
"""

from __future__ import annotations

import gc
import re
import sys

import torch

from benchmarks import harness, memory, quiet, report, workloads

MEMORY = "memory over 1000 training steps"


def run(work: list[harness.Workload], with_memory: bool, repeats: int) -> list[report.Row]:
    """Measure everything that was chosen, naming on stderr what runs now."""
    rows = []
    for workload in work:
        print(f"  {workload.name}", file=sys.stderr, flush=True)
        rows.append(report.timing_row(workload, harness.measure(workload, repeats)))
        gc.collect()
        torch.accelerator.empty_cache()
    if with_memory:
        print(f"  {MEMORY}", file=sys.stderr, flush=True)
        found = memory.observe_in_new_process()
        rows.append(report.memory_row(found, memory.LARGEST_OVERHEAD))
    return rows


def main() -> int:
    options = quiet.parser(__doc__, repeats=15)
    options.add_argument("--list", action="store_true", help="print the names and stop")
    args = options.parse_args()
    chosen = [w for w in workloads.table() if re.search(args.only, w.name)]
    with_memory = re.search(args.only, MEMORY) is not None
    names = [w.name for w in chosen] + [MEMORY] * with_memory
    if args.list:
        print("\n".join(names))
        return 0
    if not names:
        print(f"no workload matches {args.only!r}; see --list", file=sys.stderr)
        return 2

    def measure(watch: quiet.Watch) -> int:
        rows = run(chosen, with_memory, args.repeats)
        facts = {**report.machine(), **watch.facts(), "repeats": args.repeats}
        print(report.table(rows))
        print(f"written to {report.write(rows, facts)}")
        return 0 if all(row.met for row in rows) else 1

    return quiet.main(args, measure)


if __name__ == "__main__":
    sys.exit(main())
