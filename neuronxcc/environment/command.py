"""The command `python -m torch_neuronx.env`: what is set, or the documentation of all."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from neuronxcc.environment import page
from neuronxcc.unread import ends_quietly


@ends_quietly
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Its words, without the name; `sys.argv[1:]` if None.

    Returns:
        The exit code: 1 if a variable has a value that is not allowed.
    """
    parser = argparse.ArgumentParser(
        prog="python -m torch_neuronx.env",
        description="Print the environment variables that are set, and what they do.",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print docs/environment.md instead"
    )  # fmt: skip
    if parser.parse_args(arguments).markdown:
        sys.stdout.write(page.markdown())
        return 0
    sys.stdout.write(f"{page.report(os.environ)}\n")
    return 1 if page.wrong(os.environ) else 0
