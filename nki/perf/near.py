"""Tiles that a compiler of the first generation may hold in PSUM, whatever the kernel says.

Vector reads two operands at the full rate if one of them lies in PSUM, and at half of it if both
lie in SBUF (`tensor_tensor`). What an instruction computes for another one of Vector or Scalar may
lie in either memory, and kernels that compilers have written compute in steps of 512 columns of
float32, which are a bank of PSUM. Profiles of such kernels leave no room for the half rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from neuronxcc.perf.stream import Ints
from nki.checks.flow import Leaf
from nki.core import Core
from nki.memory import MemoryRegion
from nki.perf.works import choices
from nki.recording import Block, Recording, RegisterForm

__all__ = ["near_tiles"]


def near_tiles(
    recording: Recording,
    leaves: Sequence[tuple[Leaf, ...]],
    groups: Callable[[Block], list[tuple[int, Ints, Ints]]],
) -> np.ndarray:
    """Return by storage whether it may lie in PSUM.

    That is a tile of at most a bank which one instruction writes, on any engine but GpSimd, and
    which only Vector and Scalar read.

    Args:
        recording: of the kernel.
        leaves: of its templates.
        groups: gives the instructions of a block by template, and their places.
    """
    count = max(1, len(recording.storages))
    written = np.zeros(count, np.int64)
    fits, spread = np.zeros(count, bool), np.zeros(count, bool)
    psum = Core(recording.target).psum
    bank = psum.pitch // psum.banks
    for number, storage in enumerate(recording.storages):
        fits[number] = (
            storage.region is MemoryRegion.sbuf
            and storage.address is None
            and storage.row_bytes <= bank
        )
    spreads = [choices(template) == ("tensor",) for template in recording.templates]
    makers = [
        bool({"scalar", "tensor"} & set(choices(template))) for template in recording.templates
    ]
    blocks = [recording.body]
    while blocks:
        block = blocks.pop()
        blocks += [loop.body for loop in block.loops]
        for template, _, words in groups(block):
            engine = recording.templates[template].engine
            for i, leaf in enumerate(leaves[template]):
                if isinstance(leaf.form, RegisterForm):
                    continue
                used = words[:, 2 * i]
                if leaf.writes and spreads[template]:
                    spread[used] = True
                elif leaf.writes:
                    np.add.at(written, used, 1)
                # Products read SBUF only, and so does GpSimd.
                far = leaf.reads and engine in ("dma", "gpsimd", "tensor")
                if far or (leaf.writes and not makers[template]):
                    fits[used] = False
    # A row is spread by several instructions.
    near: np.ndarray = fits & (written + spread == 1)
    return near
