"""The bits of a NEFF's header that name features a loader must know.

Which bit means what is not public for the vendor's own; what loaders print of them is a mask.
"""

from __future__ import annotations

from collections.abc import Iterator

#: A program of ours instead of instructions of a chip. Far from all bits of the vendor's.
TORCHNEURON = 1 << 56
#: What this product loads.
SUPPORTED = TORCHNEURON

_NAMES = {TORCHNEURON: "torchneuron-program"}
#: What a real runtime printed as its mask (aws-neuron-sdk issue 820).
_VENDOR = 0x8000_0000_0000_00FF


def feature_names(bits: int) -> list[str]:
    """A name for every bit that is set, lowest first."""
    return [_name(bit) for bit in _set(bits)]


def describe(bits: int) -> str:
    """The mask and its names, for people."""
    names = ", ".join(feature_names(bits))
    return f"{bits:#x} ({names})" if names else f"{bits:#x}"


def _set(bits: int) -> Iterator[int]:
    return (number for number in range(64) if bits >> number & 1)


def _name(number: int) -> str:
    known = _NAMES.get(1 << number)
    if known is not None:
        return known
    whose = "of the vendor's" if _VENDOR >> number & 1 else "unknown"
    return f"bit {number}, {whose}"
