"""Measure the neuron device against cpu, in one process, in turn.

    python -m benchmarks.run [--only REGEX] [--list]

A ratio is time on cpu / time on neuron: above 1 the device is faster. No number is reported from
a busy machine unless --allow-load is given, which marks the result as such. Exit code: 0 when all
targets are met, 1 when one is missed, 2 when the machine was too busy to measure.
"""

from __future__ import annotations

import argparse
import gc
import re
import sys

import torch

from benchmarks import harness, memory, report, workloads

MEMORY = "memory over 1000 training steps"
LARGEST_LOAD = 1.0
# More than a tenth of a core taken by others shows in the ratios.
LARGEST_OTHER_WORK = 0.1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="workloads whose name matches")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--repeats", type=int, default=15, help="samples per device (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="host threads (%(default)s)")
    parser.add_argument(
        "--allow-load", action="store_true", help="measure on a busy machine, and say so"
    )
    return parser.parse_args()


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


def busy(what: str) -> int:
    print(f"not measured: {what}. Wait, or use --allow-load.", file=sys.stderr)
    return 2


def main() -> int:
    args = arguments()
    chosen = [w for w in workloads.table() if re.search(args.only, w.name)]
    with_memory = re.search(args.only, MEMORY) is not None
    names = [w.name for w in chosen] + [MEMORY] * with_memory
    if args.list:
        print("\n".join(names))
        return 0
    if not names:
        print(f"no workload matches {args.only!r}; see --list", file=sys.stderr)
        return 2
    load = harness.load()
    if load > LARGEST_LOAD and not args.allow_load:
        return busy(f"the machine's load is {load:.2f}, over {LARGEST_LOAD:g}")
    torch.set_num_threads(args.threads)
    others = harness.OtherWork()
    rows = run(chosen, with_memory, args.repeats)
    other_cores = others.cores()
    loaded = load > LARGEST_LOAD or other_cores > LARGEST_OTHER_WORK
    if loaded and not args.allow_load:
        return busy(f"other processes kept {other_cores:.2f} cores busy meanwhile")
    facts = {
        **report.machine(),
        "load_at_start": load,
        "other_cores": round(other_cores, 3),
        "loaded": loaded,
        "repeats": args.repeats,
    }
    print(report.table(rows))
    if loaded:
        print("MEASURED ON A BUSY MACHINE: these numbers say little.")
    print(f"written to {report.write(rows, facts)}")
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
