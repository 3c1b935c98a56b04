"""Where work is executed: the engines of a NeuronCore, and what stands for none of them."""

import enum


class Engine(enum.StrEnum):
    """Who executes an operator or an instruction.

    `VIEW` is work that needs no engine (metadata, allocation), and `NONE` stands for operators that
    are no work, or whose work is that of the graphs they call. `HOST` is the CPU of the instance,
    that is: a NeuronCore does not execute it.
    """

    TENSOR = "tensor"  # products
    VECTOR = "vector"  # arithmetic, reductions
    SCALAR = "scalar"  # functions, by tables
    GPSIMD = "gpsimd"  # general: positions, sorting, integers
    SYNC = "sync"  # starts transfers, waits
    DMA = "dma"  # moving data
    CC = "cc"  # between cores
    VIEW = "view"
    HOST = "host"
    NONE = "none"
