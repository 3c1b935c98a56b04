"""The command `python -m torch_neuronx.estimate`; docs/estimate.md explains it.

In Python it is `torch_neuronx.estimate(...)`, a function: nothing imports this file.
"""

import sys

from torch_neuronx.estimation.command import main

if __name__ == "__main__":
    sys.exit(main())
