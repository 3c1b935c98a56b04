"""`python -m neuronxcc.environment`: the command without PyTorch and the device."""

import sys

from neuronxcc.environment.command import main

if __name__ == "__main__":
    sys.exit(main())
