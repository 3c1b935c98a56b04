"""``from neuronxcc.nki.isa.constants import dge_mode``: the enumerations of the instructions."""

from nki.first_generation.isa.constants import *  # noqa: F403 (what it exports)
