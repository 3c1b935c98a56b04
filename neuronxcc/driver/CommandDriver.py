# ruff: noqa: N999 - the name of the vendor's module
"""`neuronxcc.driver.CommandDriver.main()` reads `sys.argv`, as the command does."""

from neuronxcc.cli import main

__all__ = ["main"]
