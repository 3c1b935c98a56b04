"""`python -m neuronxcc` is `neuronx-cc`."""

import sys

from neuronxcc.cli import main

if __name__ == "__main__":
    sys.exit(main())
