"""`python -m torch_neuronx.env`: the environment variables that are set, and what they do."""

import sys

from neuronxcc.environment.command import main

if __name__ == "__main__":
    sys.exit(main())
