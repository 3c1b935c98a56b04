"""Run torchtitan's own `main` once for every list of arguments in a file, each in a child.

Importing torchtitan takes several times as long as a case, so it is imported once and forked.
"""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

from examples.torchtitan_train import main as train


def case(number: int, arguments: list[str], log: Path) -> None:
    """Train, with everything that it prints in a file."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # Keys in the agent's store begin with this, and those of the last case are still there.
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)
    sys.argv = ["torchtitan.train", *arguments]
    status = 1
    try:
        train()
        status = 0
    except BaseException:  # noqa: BLE001 - a child must not return into its parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    """Take a file of cases and the directory for what they print."""
    importlib.import_module("examples.torchtitan_llama3")  # so that children needn't
    cases, logs = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    for number, arguments in enumerate(cases):
        log = logs / f"{number}-{os.environ['RANK']}"
        child = os.fork()
        if child == 0:
            case(number, arguments, log)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"{' '.join(arguments)} failed:\n{log.read_text()[-6000:]}")


if __name__ == "__main__":
    main()
