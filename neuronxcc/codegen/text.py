"""Kernels as canonical text: equal text, equal meaning. For keys of caches, and for people."""

from __future__ import annotations

from neuronxcc.codegen.loop import Access, Kernel, Scalar, scalars


def to_text(kernel: Kernel, *, name: bool = True) -> str:
    """Every dimension, slot, expression and store of a kernel, a line each.

    Args:
        kernel: The kernel.
        name: Whether its name is part of the text; it changes nothing.
    """
    numbers: dict[Scalar, int] = {}
    dims = " ".join(f"{d.kind.value}:{d.extent}" for d in kernel.dims)
    slots = " ".join(s.dtype.value + (":tile" if s.tile else "") for s in kernel.slots)
    lines = [f"kernel {kernel.name if name else ''}".rstrip(), f"dims {dims}", f"slots {slots}"]
    for scalar in scalars(kernel):
        number = numbers[scalar] = len(numbers)
        lines.append(f"%{number} = {_right_side(scalar, numbers)}")
    for store in kernel.stores:
        extra = "" if store.combine is None else f" combine {store.combine.value}"
        extra += "" if store.mask is None else f" mask %{numbers[store.mask]}"
        lines.append(f"store {_access(store.access, numbers)} %{numbers[store.value]}{extra}")
    return "\n".join(lines) + "\n"


def _right_side(scalar: Scalar, numbers: dict[Scalar, int]) -> str:
    words = [scalar.dtype.value, scalar.what]
    if scalar.op is not None:
        words.append(scalar.op.value)
    if scalar.what == "const":
        # repr tells 0.0 from -0.0 and 1 from True.
        words.append(repr(scalar.value))
    if scalar.what == "index":
        words.append(str(scalar.dim))
    if scalar.direction:
        words.append(scalar.direction)
    if scalar.access is not None:
        words.append(_access(scalar.access, numbers))
    return " ".join([*words, *(f"%{numbers[s]}" for s in scalar.srcs)])


def _access(access: Access, numbers: dict[Scalar, int]) -> str:
    strides = ",".join(map(str, access.strides))
    indices = "".join(f"+%{numbers[s]}*{stride}" for s, stride in access.indices)
    return f"[{access.slot}: {strides}+{access.offset}{indices}]"
