"""The state that instructions keep in a core, and the arguments of meanings besides operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from nki.isa.cast import Array
from nki.isa.mx import ScaleRule
from nki.isa.xorwow import GPSIMD_STATES, LANES, VECTOR_STATES, Xorwow

__all__ = ["MATMUL", "OTHER", "UNWRITTEN", "CoreState", "Finding", "Step"]

# What is known of an element of PSUM, see `Step.written`.
UNWRITTEN = 0
MATMUL = 1
OTHER = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that works here and is undefined on hardware. `code` is a key of `nki.errors`."""

    code: str
    text: str


class CoreState:
    """The state that lives in the engines of one core.

    Attributes:
        core: the core's number in its logical core, 0 or 1.
        sub_version: of the silicon, as `get_nc_sub_version` returns it.
        scale_rule: how `quantize_mx` chooses scales.
        accumulators: the 128 float32 registers of the Scalar and of the Vector Engine.
        generators: the random number generators of the Vector Engine and of GpSimd.
    """

    def __init__(
        self, core: int = 0, sub_version: int = 0, scale_rule: ScaleRule = ScaleRule.DOUBLED
    ) -> None:
        self.core = core
        self.sub_version = sub_version
        self.scale_rule = scale_rule
        self.accumulators: dict[str, Array] = {
            name: np.zeros(LANES, np.float32) for name in ("scalar", "vector")
        }
        self.generators = {"vector": Xorwow(VECTOR_STATES), "gpsimd": Xorwow(GPSIMD_STATES)}


@dataclass(slots=True)
class Step:
    """One execution of one instruction.

    Attributes:
        core: what lasts from instruction to instruction.
        generation: 2, 3 or 4, the NeuronCore version.
        engine: the engine that runs it: ``tensor``, ``vector``, ``scalar``, ``gpsimd``, ``dma`` or
            ``sync``.
        dtypes: NKI's type names of the operands that are tensors.
        lane: the first partition of the operands, which is the first lane of accumulators and
            random number generators.
        written: for `nc_matmul`, uint8 in the shape of `dst`: :data:`UNWRITTEN`, written by a
            :data:`MATMUL`, or by an :data:`OTHER` instruction.
        findings: what the meaning found to be undefined on hardware.
    """

    core: CoreState
    generation: int
    engine: str
    dtypes: Mapping[str, str]
    lane: int = 0
    written: Array | None = None
    findings: list[Finding] = field(default_factory=list)

    def registers(self, lanes: int) -> Array:
        """Return a view of the accumulators of this engine that belong to some lanes."""
        return self.core.accumulators[self.engine][self.lane : self.lane + lanes]

    def generator(self) -> Xorwow:
        """Return the random number generator of this engine."""
        return self.core.generators[self.engine]
