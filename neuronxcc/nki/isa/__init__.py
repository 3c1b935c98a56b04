"""``import neuronxcc.nki.isa as nisa``: the instructions of the first generation."""

from neuronxcc.nki.isa import constants as constants
from nki.first_generation.isa import *  # noqa: F403 (what it exports)
