"""The command `python -m torch_neuronx.distributed.plan`; docs/planning.md explains it.

In Python it is `torch_neuronx.distributed.plan(...)`, a function: nothing imports this file.
"""

import sys

from torch_neuronx.distributed.planning.command import main

if __name__ == "__main__":
    sys.exit(main())
