"""``import neuronxcc.nki.language as nl``: the kernel language of the first generation."""

from nki.first_generation.language import *  # noqa: F403 (what it exports)
