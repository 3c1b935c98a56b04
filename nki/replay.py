"""Functions that write one kind of call down, made when that call comes a second time.

What a call of an instruction does to a recording follows from its *key* (`nki.repeats`), up to the
places of its tensors. A loop over operands that looks every fact up again takes twice as long as
statements for just these operands, so the statements are written as Python and compiled, once for
all calls of the same form. The text is made of names in the table of instructions alone; everything
else is bound to variables of the function.

For ``nisa.tensor_scalar(dst=x, data=y, op0=nl.multiply, operand0=0.5)`` on whole tiles in SBUF it
is

    def write_down(named, line):
        if len(named) != 4:
            return None
        try:
            t0 = named["dst"]
            if t0.layout is not L0 or type(t0) is not NkiTensor:
                return None
            t1 = named["data"]
            ...
            given = named["op0"]
            if given is not V0:
                return None
            ...
        except (AttributeError, KeyError):
            return None
        s0, s1 = t0.storage, t1.storage
        a0, a1 = t0.offset * 2, t1.offset * 2
        n0 = numbers.get(s0)
        if n0 is None:
            n0 = number(s0)
        ...
        marks = s1.marks
        if marks is not COMPLETE and (marks is None or (a1, L1) not in marks.noted):
            read(template, "data", t1)
        if s0.marks is not COMPLETE:
            if recorder.depth:
                write(template, O0, t0)
            else:
                s0.marks = COMPLETE
        return [event, line, n0, a0, n1, a1]
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from nki.forms import byte_of
from nki.isa.spec import Role
from nki.isa.state import MATMUL, UNWRITTEN
from nki.memory import MemoryRegion
from nki.open_recording import OpenRecording
from nki.psum import Accumulation
from nki.recording import Template, TileForm
from nki.shadow import COMPLETE
from nki.tensor import NkiTensor
from nki.uninitialised import Initialisation, writes_all

__all__ = ["WriteDown", "made"]

# Takes the arguments of a call by name and the number of the user's line; returns the event's code
# (`nki.recording.Block`), None if the call is another than the function was made for.
WriteDown = Callable[[Mapping[str, Any], int], list[int] | None]


def made(
    template: Template,
    arguments: Mapping[str, Any],
    recorder: OpenRecording,
    initialisation: Initialisation,
    accumulation: Accumulation,
) -> WriteDown:
    """Return the function for calls like one that was accepted.

    Args:
        template: of its instruction.
        arguments: of the call, by name; tensors have a layout.
        recorder: whose recording it is.
        initialisation: follows what is read and written.
        accumulation: follows what PSUM holds.
    """
    bound: dict[str, Any] = {
        "COMPLETE": COMPLETE, "NkiTensor": NkiTensor, "byte_of": byte_of, "recorder": recorder,
        "numbers": recorder.forms.numbers, "number": recorder.forms.number, "template": template,
        "read": initialisation.read, "write": initialisation.write,
        "event": recorder.number_of(template),
    }  # fmt: skip
    operands = [o for o in template.row.operands if type(arguments.get(o.name)) is NkiTensor]
    lines = [f"if len(named) != {len(arguments)}:", "    return None", "try:"]
    for n, operand in enumerate(operands):
        bound[f"L{n}"] = arguments[operand.name].layout
        lines += [
            f"    t{n} = named[{operand.name!r}]",
            f"    if t{n}.layout is not L{n} or type(t{n}) is not NkiTensor:",
            "        return None",
        ]
    others = {name: v for name, v in arguments.items() if type(v) is not NkiTensor}
    for n, (name, value) in enumerate(others.items()):
        bound[f"V{n}"] = value
        lines += [f"    given = named[{name!r}]", f"    if {_differs(n, value)}:"]
        lines += ["        return None"]
    lines += ["except (AttributeError, KeyError):", "    return None"]
    for n in range(len(operands)):
        layout = bound[f"L{n}"]
        place = f"byte_of(t{n})" if layout.addressed else f"t{n}.offset * {layout.itemsize}"
        lines += [
            f"s{n} = t{n}.storage",
            f"a{n} = {place}",
            f"n{n} = numbers.get(s{n})",
            f"if n{n} is None:",
            f"    n{n} = number(s{n})",
        ]
    for n, operand in enumerate(operands):
        if operand.role is Role.READ:
            lines += [
                f"marks = s{n}.marks",
                f"if marks is not COMPLETE and (marks is None or (a{n}, L{n}) not in marks.noted):",
                f"    read(template, {operand.name!r}, t{n})",
            ]
    written = [n for n, operand in enumerate(operands) if operand.role is not Role.READ]
    for n in written:
        bound[f"O{n}"] = operands[n]
        layout = bound[f"L{n}"]
        alone = recorder.cores == 1 or layout.form.region.on_chip
        lines += [f"if s{n}.marks is not COMPLETE:"]
        if not alone or layout.addressed or not writes_all(template, operands[n]):
            lines += [f"    write(template, O{n}, t{n})"]
            continue
        quick = f"s{n}.marks = COMPLETE" if layout.whole else f"s{n}.shadow.note(a{n}, L{n})"
        lines += [
            "    if recorder.depth:",
            f"        write(template, O{n}, t{n})",
            "    else:",
            f"        {quick}",
        ]
    event = "event"
    if _writes_psum(template):
        whole = len(written) == 1 and bound[f"L{written[0]}"].whole
        bound["products"] = _products(template, recorder, accumulation, whole=whole)
        event = f"products([{', '.join(f't{n}' for n in written)}])"
    code = ", ".join(f"n{n}, a{n}" for n in range(len(operands)))
    lines += [f"return [{event}, line, {code}]"]
    scope = dict(bound)
    exec(_compiled("\n    ".join(["def write_down(named, line):", *lines])), scope)  # noqa: S102
    found: WriteDown = scope["write_down"]
    return found


@functools.lru_cache(maxsize=1024)
def _compiled(text: str) -> CodeType:
    return compile(text, __file__, "exec")  # so that no line of it is taken for the user's


def _differs(number: int, value: Any) -> str:
    """Return the condition that an argument, which is no tensor, is another than it was."""
    other, kind = f"given is not V{number}", type(value)
    if kind is float and not value:  # 0.0 and -0.0 are equal
        return f"{other} and (type(given) is not float or repr(given) != {repr(value)!r})"
    if kind in (int, float, str):  # others are not computed anew for each call
        return f"{other} and (type(given) is not {kind.__name__} or given != V{number})"
    return other


def _writes_psum(template: Template) -> bool:
    written = {o.name for o in template.row.operands if o.role is not Role.READ}
    return any(
        isinstance(form, TileForm) and form.region is MemoryRegion.psum
        for name, form in template.operands
        if name in written
    )


def _products(
    template: Template, recorder: OpenRecording, accumulation: Accumulation, *, whole: bool
) -> Callable[[list[NkiTensor]], int]:
    """Return what numbers the template of a call that writes these tensors of PSUM.

    Args:
        template: of the call.
        recorder: whose call it is.
        accumulation: follows what PSUM holds.
        whole: it writes one tensor, all of its storage.
    """
    # The templates of a product that begins a sum and of one that adds to it, once they are known.
    beginning = adding = -1

    def number(written: list[NkiTensor]) -> int:
        nonlocal beginning, adding
        storage = written[0].storage
        state = accumulation.state(storage)
        if state == MATMUL and adding >= 0:
            return adding
        new = whole and state == UNWRITTEN and not recorder.depth
        if new and beginning >= 0:
            accumulation.begin(storage, MATMUL)
            return beginning
        issued = accumulation.issued(template, written)
        found = recorder.number_of(issued)
        if issued.accumulate:
            adding = found
        elif new and accumulation.state(storage) == MATMUL:
            beginning = found
        return found

    return number
