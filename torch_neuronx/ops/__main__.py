"""`python -m torch_neuronx.ops`: the coverage report."""

from __future__ import annotations

import argparse
import json
import shutil
import sys

from neuronxcc.targets import target_argument
from neuronxcc.unread import ends_quietly

from .coverage import as_data, explain, find, policy_of, report, select
from .entry import DTYPE_NAMES, Engine


@ends_quietly
def main(arguments: list[str] | None = None) -> int:
    """Print the report that the arguments ask for; 2 if they ask for something unknown."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_neuronx.ops",
        description="Which ATen operators a NeuronCore executes, on which engine, and what is in "
        "the way of the others.",
    )
    parser.add_argument("operator", nargs="?", help="explain one, e.g. topk or aten::mm.out")
    parser.add_argument("--target", type=target_argument, help="default: the emulated machine")
    parser.add_argument("--family", help="only one family, with a line for each operator")
    parser.add_argument("--dtype", help="only one dtype, with a line for each operator")
    parser.add_argument("--host-only", action="store_true", help="only what no NeuronCore executes")
    parser.add_argument("--json", action="store_true", help="print data instead of tables")
    given = parser.parse_args(arguments)
    dtype = given.dtype.removeprefix("torch.") if given.dtype else None
    if dtype is not None and dtype not in DTYPE_NAMES:
        print(f"no dtype is called {dtype!r}; allowed: {', '.join(DTYPE_NAMES)}", file=sys.stderr)
        return 2
    width = min(max(shutil.get_terminal_size().columns, 80), 120)
    try:
        if given.operator and not given.json:
            print(explain(given.operator, given.target))
        elif given.json:
            chosen = [find(given.operator)] if given.operator else select(given.family)
            if given.host_only:
                chosen = [entry for entry in chosen if entry.engine is Engine.HOST]
            print(json.dumps(as_data(chosen, policy_of(given.target), dtype), indent=1))
        else:
            print(report(given.target, given.family, dtype, host_only=given.host_only, width=width))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
