"""Passes over tensor IR. `pipeline` is the readable list of them."""

from neuronxcc.passes.pipeline import PassRecord, run

__all__ = ["PassRecord", "run"]
