"""The enumerations of the first generation, whose values differ from today's in places."""

import enum

__all__ = ["dge_mode", "engine", "nc_version", "oob_mode", "reduce_cmd"]


class dge_mode(enum.IntEnum):  # noqa: N801 (the documented names, as those below)
    """Who writes the descriptors of a DMA."""

    none = 0
    swdge = 1
    hwdge = 2
    unknown = 3


class engine(enum.IntEnum):  # noqa: N801
    """An engine; ``unknown`` leaves the choice to the instruction."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class nc_version(enum.IntEnum):  # noqa: N801
    """A generation of NeuronCores."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


class oob_mode(enum.IntEnum):  # noqa: N801
    """The effect of a dynamic access out of bounds."""

    error = 0
    skip = 1


class reduce_cmd(enum.IntEnum):  # noqa: N801
    """The use that an instruction makes of the accumulator registers of its engine."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4
