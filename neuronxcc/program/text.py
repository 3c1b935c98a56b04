"""Programs as text, for people and golden tests: a line per buffer, per step, per expression."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from neuronxcc.codegen.loop import Access, Kernel, Kind, Scalar, scalars
from neuronxcc.program.program import (
    AtenStep,
    Buffer,
    CallStep,
    CollectiveStep,
    ConvStep,
    CopyStep,
    ForStep,
    GemmStep,
    LoopStep,
    Made,
    PrintStep,
    Program,
    Register,
    Step,
    View,
    WaitStep,
    WhileStep,
)
from neuronxcc.program.tape import (
    TapeFunction,
    TapeLoop,
    TapeNative,
    TapeProduct,
    TapeStep,
    instructions,
    slot_count,
)


def program_to_text(program: Program, *, kernels: bool = True) -> str:
    """One line per buffer and per step, kernels below the step.

    Args:
        program: To print.
        kernels: Whether to print what loop kernels compute.
    """
    return "\n".join(_program(program, kernels, "")) + "\n"


def _program(program: Program, kernels: bool, margin: str) -> Iterator[str]:
    results = ", ".join(f"%{number}" for number in program.results)
    yield f"{margin}program {program.name} -> ({results}) scratch {program.scratch_bytes}"
    for number, buffer in enumerate(program.buffers):
        yield f"{margin}  %{number} = {_buffer(buffer)}"
    for step in program.steps:
        for line in _step(step, kernels):
            yield f"{margin}  {line}"


def _buffer(buffer: Buffer) -> str:
    text = f"{buffer.kind} {_typed(buffer)}"
    if buffer.kind == "temp":
        return f"{text} at {buffer.offset}"
    if buffer.kind in ("input", "output"):
        return f"{text} #{buffer.index} {buffer.name}".rstrip()
    return text


def _is_contiguous(thing: Buffer | View) -> bool:
    step = 1
    for extent, stride in zip(reversed(thing.shape), reversed(thing.strides), strict=True):
        if stride != step:
            return False
        step *= extent
    return True


def _typed(thing: Buffer | View) -> str:
    shape = ",".join(map(str, thing.shape))
    text = f"{thing.dtype.value}[{shape}]"
    if _is_contiguous(thing):
        return text
    return f"{text}{{{','.join(map(str, thing.strides))}}}"


def _view(view: View) -> str:
    offset = f"+{view.offset}" if view.offset else ""
    return f"%{view.buffer}{offset}:{_typed(view)}"


def _operands(operands: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(f"%{buffer}" + (f"+{offset}" if offset else "") for buffer, offset in operands)


def _step(step: Step, kernels: bool) -> Iterator[str]:
    if isinstance(step, LoopStep):
        yield f"loop {step.kernel.name} {_dims(step.kernel)} ({_operands(step.operands)})"
        if kernels:
            yield from _kernel(step.kernel)
    elif isinstance(step, GemmStep):
        yield from _gemm(step, kernels)
    elif isinstance(step, ConvStep):
        yield from _conv(step, kernels)
    elif isinstance(step, AtenStep):
        yield _aten(step)
    elif isinstance(step, CallStep):
        yield from _call(step, kernels)
    elif isinstance(step, TapeStep):
        yield from _tape(step, kernels)
    elif isinstance(step, CopyStep | PrintStep | CollectiveStep | WaitStep):
        yield _short(step)
    else:
        yield from _loop(step, kernels)


def _aten(step: AtenStep) -> str:
    args = [_value(arg) for arg in step.args]
    args += [f"{name}={_value(value)}" for name, value in sorted(step.kwargs.items())]
    outs = ", ".join("_" if out is None else _view(out) for out in step.outs)
    where = " host" if step.host else " device" if step.device else ""
    return f"aten{where} {step.target}({', '.join(args)}) -> {outs}"


def _short(step: CopyStep | PrintStep | CollectiveStep | WaitStep) -> str:
    """A step that is one line."""
    match step:
        case CopyStep():
            return f"copy {_view(step.src)} -> {_view(step.out)}"
        case PrintStep():
            return f"print {step.prefix!r} {_view(step.view)}{_at(step.location)}"
        case WaitStep():
            return f"wait for step {step.start}"
        case CollectiveStep():
            return _collective(step)


def _collective(step: CollectiveStep) -> str:
    facts = [f"by {step.reduction}"] if step.reduction else []
    facts += [f"from {step.root}"] if step.kind == "collective_broadcast" else []
    facts += [f"rows {_numbers(step.send)} for {_numbers(step.receive)}"] if step.send else []
    facts += [f"pairs {step.pairs}"] if step.pairs else []
    views = (", ".join(map(_view, views)) for views in (step.inputs, step.outs))
    who = f"group {step.name!r} {[list(ranks) for ranks in step.group]}"
    return f"start {' '.join((step.kind, *facts, who))} ({' -> '.join(views)})"


def _gemm(step: GemmStep, kernels: bool) -> Iterator[str]:
    packed = " constant" if step.constant_b else ""
    extra = "" if step.c0 is None else f" + {_view(step.c0)}"
    text = f"gemm {_operand(step.a)} @ {_operand(step.b)}{packed}{extra}"
    if step.epilogue is None:
        assert step.out is not None
        yield f"{text} -> {_view(step.out)}"
    else:
        yield f"{text} -> {step.epilogue.name}(tile, {_operands(step.epilogue_operands)})"
    if not kernels:
        return
    for operand in (step.a, step.b):
        if isinstance(operand, Made):
            yield from _kernel(operand.kernel)
    if step.epilogue is not None:
        yield from _kernel(step.epilogue)


def _conv(step: ConvStep, kernels: bool) -> Iterator[str]:
    moves = (("stride", step.stride, (1, 1)), ("padding", step.padding, (0, 0)),
             ("dilation", step.dilation, (1, 1)))  # fmt: skip
    text = f"conv {_view(step.x)} * {_view(step.w)}{' constant' if step.constant_w else ''}"
    text += "".join(f" {name} {','.join(map(str, v))}" for name, v, plain in moves if v != plain)
    text += f" groups {step.groups}" if step.groups != 1 else ""
    if step.epilogue is None:
        assert step.out is not None
        yield f"{text} -> {_view(step.out)}"
        return
    tile = f"{'narrow ' if step.narrow else ''}{'last ' if step.last else ''}tile"
    yield f"{text} -> {step.epilogue.name}({tile}, {_operands(step.epilogue_operands)})"
    if kernels:
        yield from _kernel(step.epilogue)


def _operand(operand: View | Made) -> str:
    """An operand of a product: where it lies, or what makes it."""
    if isinstance(operand, View):
        return _view(operand)
    shape = ",".join(map(str, operand.shape))
    order = " by columns" if operand.by_columns else ""
    made = f"{operand.kernel.name}({_operands(operand.operands)})"
    return f"{made}:{operand.dtype.value}[{shape}]{order}"


def _call(step: CallStep, kernels: bool) -> Iterator[str]:
    operands = ", ".join(map(_view, step.operands))
    outs = ", ".join(_view(out) for out in step.outs)
    selector = "" if step.selector is None else f" by {_view(step.selector)}"
    yield f"{step.kind}{selector} ({operands}) -> {outs}"
    for body in step.bodies:
        yield from _program(body, kernels, "  ")


def _at(location: str) -> str:
    return f"  // {location}" if location else ""


def _register(register: int | Register) -> str:
    return str(register) if isinstance(register, int) else f"%{register.buffer}[{register.element}]"


def _loop(step: ForStep | WhileStep, kernels: bool) -> Iterator[str]:
    counters = ", ".join(map(_register, step.counters))
    if isinstance(step, ForStep):
        ends = f"{_register(step.lower)} to {_register(step.upper)} by {step.step}"
        yield f"for {counters} from {ends}"
    else:
        yield f"while {counters} from {_register(step.initial)}, then {_register(step.next)}"
    for inner in step.body:
        for line in _step(inner, kernels):
            yield f"  {line}"


def _tape(step: TapeStep, kernels: bool) -> Iterator[str]:
    """Groups and their instructions, then the functions."""
    yield "tape"
    code = step.code.array
    words = [2 + 2 * slot_count(function) for function in step.functions]
    last = -1
    for start, number, chunks, group in zip(*instructions(step), strict=True):
        if group != last:
            yield f"  group of {chunks} chunks" if chunks else "  group"
            last = group
        location = step.locations[code[start + 1]]
        places = code[start + 2 : start + words[number]].tolist()
        operands = _operands(tuple(zip(places[::2], places[1::2], strict=True)))
        yield f"    f{number}({operands}){_at(location)}"
    for number, function in enumerate(step.functions):
        yield f"  f{number}: {_function(function)}"
        if kernels and isinstance(function, TapeLoop):
            yield from (f"  {line}" for line in _kernel(function.kernel))


def _function(function: TapeFunction) -> str:
    if isinstance(function, TapeProduct):
        f = function
        sign = "+=" if f.accumulate else "="
        out, a, b = (
            f"{dtype.value}[{','.join(map(str, shape))}]{{{','.join(map(str, strides))}}}"
            for dtype, shape, strides in (
                (f.out_dtype, (f.m, f.n), f.out_strides),
                (f.dtype, (f.k, f.m), f.a_strides),
                (f.dtype, (f.k, f.n), f.b_strides),
            )
        )
        return f"product {out} {sign} {a}^T @ {b}"
    lanes = f" lanes, advance {_numbers(function.advance)}" if function.lanes else ""
    if isinstance(function, TapeNative):
        return f"native {function.name}({_numbers(function.params)}){lanes}"
    return f"loop {function.kernel.name} {_dims(function.kernel)}{lanes}"


def _numbers(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))


def _value(value: Any) -> str:
    if isinstance(value, View):
        return _view(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)


def _dims(kernel: Kernel) -> str:
    marks = {Kind.PARALLEL: "", Kind.REDUCE: "+"}
    return f"[{','.join(f'{dim.extent}{marks[dim.kind]}' for dim in kernel.dims)}]"


def _kernel(kernel: Kernel) -> Iterator[str]:
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
