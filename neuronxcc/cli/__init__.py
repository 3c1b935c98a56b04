"""The `neuronx-cc` command."""

from neuronxcc.cli.command import main

__all__ = ["main"]
