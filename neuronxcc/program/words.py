"""How parts of programs read: views, operands, kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from neuronxcc.codegen.loop import Access, Kernel, Kind, Scalar, scalars
from neuronxcc.program.memory import Buffer, Register, View, is_packed


def typed(thing: Buffer | View) -> str:
    """Type, extents, and strides if they say anything."""
    shape = ",".join(map(str, thing.shape))
    text = f"{thing.dtype.value}[{shape}]"
    if is_packed(thing):
        return text
    return f"{text}{{{','.join(map(str, thing.strides))}}}"


def view_text(view: View) -> str:
    """A view."""
    offset = f"+{view.offset}" if view.offset else ""
    return f"%{view.buffer}{offset}:{typed(view)}"


def operands_text(operands: tuple[tuple[int, int], ...]) -> str:
    """Operands of a kernel."""
    return ", ".join(f"%{buffer}" + (f"+{offset}" if offset else "") for buffer, offset in operands)


def place(location: str) -> str:
    """A user's line as a comment."""
    return f"  // {location}" if location else ""


def register_text(register: int | Register) -> str:
    """A register, or the number in its place."""
    return str(register) if isinstance(register, int) else f"%{register.buffer}[{register.element}]"


def numbers(values: Iterable[int]) -> str:
    """Numbers in a row."""
    return ", ".join(map(str, values))


def value_text(value: Any) -> str:
    """An argument of an operator."""
    if isinstance(value, View):
        return view_text(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(value_text, value))}]"
    return repr(value)


def dims_text(kernel: Kernel) -> str:
    """Dimensions of a kernel; + marks those that it reduces."""
    marks = {Kind.PARALLEL: "", Kind.REDUCE: "+"}
    return f"[{','.join(f'{dim.extent}{marks[dim.kind]}' for dim in kernel.dims)}]"


def kernel_lines(kernel: Kernel) -> Iterator[str]:
    """A kernel as text: a line per expression, then its stores."""
    names: dict[Scalar, str] = {}

    def access(where: Access) -> str:
        parts = [f"d{d}*{s}" if s != 1 else f"d{d}" for d, s in enumerate(where.strides) if s]
        parts += [f"{names[index]}*{stride}" for index, stride in where.indices]
        if where.offset or not parts:
            parts.append(str(where.offset))
        return f"s{where.slot}[{' + '.join(parts)}]"

    for scalar in scalars(kernel):
        srcs = ", ".join(names[src] for src in scalar.srcs)
        if scalar.what == "const":
            names[scalar] = f"{scalar.value}:{scalar.dtype.value}"
            continue
        if scalar.what == "load":
            assert scalar.access is not None
            text = f"load {access(scalar.access)}" + (f" if {srcs}" if srcs else "")
        elif scalar.what == "check":
            assert scalar.access is not None
            text = f"check {srcs}, noted in {access(scalar.access)}"
        elif scalar.what == "index":
            text = f"index d{scalar.dim}"
        else:
            assert scalar.op is not None
            kind = "" if scalar.what == "op" else f"{scalar.what} "
            text = f"{kind}{scalar.op.value}{scalar.direction and '.' + scalar.direction}({srcs})"
        names[scalar] = f"v{len(names)}"
        yield f"  {names[scalar]}: {scalar.dtype.value} = {text}"
    for store in kernel.stores:
        sign = "=" if store.combine is None else f"{store.combine.value}="
        mask = "" if store.mask is None else f" if {names[store.mask]}"
        yield f"  {access(store.access)} {sign} {names[store.value]}{mask}"


def buffer_text(buffer: Buffer) -> str:
    """A buffer."""
    text = f"{buffer.kind} {typed(buffer)}"
    if buffer.kind == "temp":
        return f"{text} at {buffer.offset}"
    if buffer.kind in ("input", "output"):
        return f"{text} #{buffer.index} {buffer.name}".rstrip()
    return text
