"""Code that somebody else compiled: NKI kernels, operators in C++, and printing on the device.

`AwsNeuronCustomNativeKernel` names a kernel. What the vendor's NKI writes there only their compiler
can read; what is run here are kernel files of ours, which `kernel_file` makes of a program that our
NKI has lowered (`Launch.program`). The config is JSON, also in base64 as torch_neuronx writes it,
with `func_name` as there, and with `kernel_file`, the path, which is our own name for it.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from neuronxcc.files import read_regular
from neuronxcc.frontends.hlo.errors import RefusedError, invalid, unsupported
from neuronxcc.frontends.hlo.notes import Note
from neuronxcc.frontends.hlo.site import Handler, Site, Value, unflatten
from neuronxcc.frontends.hlo.types import leaves, text_of
from neuronxcc.ir import build
from neuronxcc.ir.node import Node, Operand, TensorType
from neuronxcc.lowering.emission.kernel_calls import TARGET, Callee, keep
from neuronxcc.neff.container import NeffInfo, read_neff, write_neff
from neuronxcc.program.errors import NeffError
from neuronxcc.program.memory import Buffer, View
from neuronxcc.program.program import Program
from neuronxcc.program.steps.copy import CopyStep
from neuronxcc.program.steps.printing import PrintStep

_WRITTEN: Final = "kernel writes arguments"
MOST_BYTES: Final = 1 << 30  # of a kernel file


def kernel_file(
    program: Program, written: Collection[int] = (), target: str = "", lnc: int = 1
) -> bytes:
    """The bytes of a file that `AwsNeuronCustomNativeKernel` may name, and that nrtpy loads.

    Args:
        program: A kernel's, as NKI has lowered it; its arguments are contiguous.
        written: Numbers of the arguments that it writes.
        target: Name of the target it was lowered for.
        lnc: Physical cores of the logical core that it is for.
    """
    marked = replace(program, meta={**program.meta, _WRITTEN: sorted(written)})
    return write_neff(marked, NeffInfo(program.name, target, lnc))


def _config(site: Site) -> dict[str, Any]:
    raw: bytes = site.proto.backend_config
    for text in (raw, _decoded(raw)):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return {}


def _printable(text: str) -> str:
    """Without halves of characters, which JSON may have and no file takes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _decoded(raw: bytes) -> bytes:
    try:
        return base64.b64decode(raw, validate=True)
    except binascii.Error:
        return b""


def _found(path: str) -> Path:
    """The file: at its absolute path, or by its last directory and name where we were started.

    Raises:
        RefusedError: It is at neither place.
    """
    given = Path(path)
    places = [given] if given.is_absolute() else []
    for place in (*places, Path.cwd() / given.parent.name / given.name):
        try:
            if place.is_file():
                return place
        except OSError:  # a name that no file can have
            break
    raise RefusedError(
        "NCC_EVRF059",
        f"Kernel file '{path}' referenced by AwsNeuronCustomNativeKernel instruction does not "
        "exist on the host",
        "trace the model again, or copy the file to "
        f"{Path(given.parent.name) / given.name} in the directory that the compiler is started in",
    )


def _native_kernel(site: Site) -> Value:
    config = _config(site)
    name = _printable(str(config.get("func_name", "?"))[:200])
    path = config.get("kernel_file")
    if not isinstance(path, str) or not path or "\0" in path:
        raise _unsupported_version(name, "its config has no kernel_file")
    path = _printable(path)
    program, written = _kernel(_found(path), name)
    xs = site.tensors
    inputs = [b for b in program.buffers if b.kind == "input"]
    inputs.sort(key=lambda buffer: buffer.index)
    taken = [TensorType(b.dtype, b.shape) for b in inputs]
    if [x.type for x in xs] != taken:
        raise invalid(
            f"NKI kernel '{name}' takes ({', '.join(map(str, taken))}), it is given "
            f"({', '.join(str(x.type) for x in xs)})"
        )
    made = [program.buffers[number] for number in program.results]
    types = [*(TensorType(b.dtype, b.shape) for b in made), *(taken[n] for n in written)]
    if leaves(site.type) != types:
        raise invalid(
            f"NKI kernel '{name}' gives ({', '.join(map(str, types))}), the module says "
            f"{text_of(site.type)}"
        )
    key = keep(Callee(program, written))
    places = tuple(Operand(i) for i in range(len(xs)))
    call = build.custom_call(TARGET, types, xs, args=(places, key))
    return unflatten(site.type, build.results(call))


def _kernel(path: Path, name: str) -> tuple[Program, tuple[int, ...]]:
    """Program of a file, and the arguments that it writes."""
    try:
        program = read_neff(read_regular(path, MOST_BYTES, links=True, anyone=True)).program
    except OSError as error:
        raise _unsupported_version(name, str(error)) from None
    except NeffError as error:
        raise _unsupported_version(name, f"'{path}' is no kernel file of ours: {error}") from None
    written = program.meta.get(_WRITTEN)
    count = sum(buffer.kind == "input" for buffer in program.buffers)
    numbers = written if isinstance(written, list | tuple) else [-1]
    if not all(type(n) is int and 0 <= n < count for n in numbers):
        raise _unsupported_version(name, f"'{path}' does not say which arguments it writes")
    return program, tuple(sorted(set(numbers)))


def _unsupported_version(name: str, why: str) -> RefusedError:
    return RefusedError(
        "NCC_EVRF065",
        f"NKI kernel '{name}' was traced with an unsupported NKI version: {why}",
        "trace it with the NKI of this package; what the vendor's NKI writes only their compiler "
        "can read",
    )


def _custom_op(site: Site) -> Value:
    """Its config is "version=..;name=..;path=..;", after torch_neuronx's `CustomCppOp`."""
    text = site.proto.backend_config.decode("utf-8", "replace")
    parts = dict(part.partition("=")[::2] for part in text.split(";") if "=" in part)
    name, path = parts.get("name", "?")[:200], parts.get("path", "?")[:200]
    raise unsupported(
        f"custom call AwsNeuronCustomOp '{name}': '{path}' holds instructions of the chip's GpSimd "
        "processors, which nothing here executes",
        "write the operator with NKI, or run it on the host",
    )


def _device_print(site: Site) -> Value:
    """Prints the operand when the program gets there, and passes it on.

    Inferred, as no public source has a call: one operand, whose value is the result; the config is
    printed in front of it. An instruction with another result can't be kept in place by those who
    use it, so it prints nothing and a warning says so.
    """
    x = site.one
    if not isinstance(site.type, TensorType) or site.type != x.type:
        site.note(
            Note(
                f"AwsNeuronDevicePrint of {x.type} prints nothing: its result is not its operand",
                "let it return its operand, and use that",
            )
        )
        return unflatten(site.type, [build.splat(0, leaf) for leaf in leaves(site.type)])
    prefix = site.proto.backend_config.decode("utf-8", "replace")[:1000]
    call = build.custom_call(
        TARGET,
        (x.type,),
        (x,),
        args=((Operand(0),), keep(Callee(_printing(x.type, prefix), ()))),
        sequence=site.counter(),
    )
    result: Node = build.get(call, 0)
    return result


def _printing(type_: TensorType, prefix: str) -> Program:
    strides, step = [], 1
    for extent in reversed(type_.shape):
        strides.append(step)
        step *= extent
    dense = tuple(reversed(strides))
    buffers = (
        Buffer("input", type_.dtype, type_.shape, dense, index=0, name="value"),
        Buffer("output", type_.dtype, type_.shape, dense, index=0),
    )
    views = [View(number, type_.dtype, type_.shape, dense) for number in (0, 1)]
    steps = (PrintStep(prefix, views[0]), CopyStep(views[0], views[1]))
    return Program("device_print", buffers, steps, (1,))


TARGETS: dict[str, Handler] = {
    "AwsNeuronCustomNativeKernel": _native_kernel,
    "AwsNeuronCustomOp": _custom_op,
    "AwsNeuronDevicePrint": _device_print,
}
