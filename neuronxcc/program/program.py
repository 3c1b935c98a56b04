"""A program: the third IR. A flat list of steps over planned buffers; what a NEFF stores.

Nothing here is machine code or Python: loop kernels are kept as data and compiled for the host
when a program is loaded. `torch_neuronx.program.executable` hands a program to the native executor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from neuronxcc.codegen.loop import Kernel
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Literal
from neuronxcc.program.tape import TapeStep


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that steps refer to by its position in `Program.buffers`.

    kind:
      "input"     argument number `index`; its strides (elements) are fixed by the program
      "output"    result number `index`, allocated by the executor with these strides
      "temp"      `offset` bytes into the scratchpad, which the executor allocates once per call
      "constant"  `literal`, placed in device memory when the program is loaded
    """

    kind: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    index: int = -1
    offset: int = -1
    literal: Literal | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """A strided window onto a buffer; strides and offset count elements of `dtype`."""

    buffer: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class LoopStep:
    """Runs a loop kernel; `operands[i]` is its i-th slot: buffer, offset in elements."""

    kernel: Kernel
    operands: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Made:
    """An operand of a product that is computed while the product reads it.

    Attributes:
        kernel: Over dims (batch, rows, columns), or (batch, columns, rows) if `by_columns`. Its
            only store goes to slot 0, a tile (Slot.tile) of `dtype`, and it does not read that.
        operands: `operands[i]` is slot i + 1 of the kernel: buffer, offset in elements.
        dtype: Of the operand.
        shape: Of the operand: batch, rows, columns.
        by_columns: Neighbours in a row of the kernel are neighbours in a column of the operand.
    """

    kernel: Kernel
    operands: tuple[tuple[int, int], ...]
    dtype: DType
    shape: tuple[int, ...]
    by_columns: bool = False


@dataclass(frozen=True, slots=True)
class GemmStep:
    """out[b] = a[b] @ b[b] (+ c0[b]), or the epilogue's stores instead of out.

    a, b, out, c0 are views of rank 3 (batch, rows, columns); a batch stride of 0 repeats a matrix.
    a and b may be Made instead.
    Operands are float32, bfloat16 or float16, all of one type; sums are float32.
    """

    a: View | Made
    b: View | Made
    out: View | None
    c0: View | None = None
    # Set: a kernel over dims (batch, m, n) whose slot 0 is the accumulator tile (Slot.tile). It
    # does all storing, `out` is None, `epilogue_operands[i]` is slot i + 1.
    epilogue: Kernel | None = None
    epilogue_operands: tuple[tuple[int, int], ...] = ()
    # B is (a view of) an input that callers pass unchanged many times: keep its packed form.
    constant_b: bool = False


@dataclass(frozen=True, slots=True)
class ConvStep:
    """Two-dimensional convolution, as torch.conv2d without a bias.

    out[n,o,y,x] is the sum over c, i, j of
    x[n, c, y*stride[0] - padding[0] + i*dilation[0], ...] * w[o, c, i, j], within groups.

    x is (images, channels, rows, columns), w (output channels, channels / groups, rows, columns),
    of one type: float32, bfloat16 or float16. Sums are float32, rounded once to `out`, which has
    that type too; or they go to the epilogue, as those of a GemmStep do.

    Attributes:
        last: The epilogue's dims are (images, pixels, output channels) instead of (images,
            output channels, pixels). An `out` tells by its strides.
        constant_w: w is (a view of) an input that callers pass unchanged many times.
        narrow: The executor may round sums to the operands' type before the epilogue.
    """

    x: View
    w: View
    out: View | None
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    # Set: a kernel over `dims` whose slot 0 is the tile; it does all storing, `out` is None. It
    # must not read what it writes: some elements may be computed twice.
    epilogue: Kernel | None = None
    epilogue_operands: tuple[tuple[int, int], ...] = ()
    last: bool = False
    constant_w: bool = False
    narrow: bool = False
    loc: str = ""

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        """Shape of the result, from the operands."""
        (n, _, *space), (o, _, *side) = self.x.shape, self.w.shape
        moves = zip(space, side, self.stride, self.padding, self.dilation, strict=True)
        height, width = ((e + 2 * p - d * (k - 1) - 1) // s + 1 for e, k, s, p, d in moves)
        return n, o, height, width

    @property
    def title(self) -> str:
        """Says what is done, for reports and profiles."""
        (n, c, *space), (o, _, *side) = self.x.shape, self.w.shape
        size, kernel = ("x".join(map(str, extents)) for extents in (space, side))
        stride = f"/{self.stride[0]}" if self.stride[0] > 1 else ""
        groups = f" groups {self.groups}" if self.groups > 1 else ""
        return f"conv {n}x{c}x{size} {kernel}{stride} -> {o}{groups}"

    @property
    def dims(self) -> tuple[int, int, int]:
        """Extents of the epilogue."""
        n, o, height, width = self.out_shape
        return (n, height * width, o) if self.last else (n, o, height * width)


@dataclass(frozen=True, slots=True)
class AtenStep:
    """Runs an ATen operator of PyTorch's CPU library on views of the program's memory.

    `args` and `kwargs` mirror the operator's schema; a View stands for a tensor, everything else is
    None, bool, int, float, str, a DType, or a tuple of these. Results go to `outs` (None: unused);
    the executor copies them unless the operator could write there.

    Attributes:
        target: Qualified name with overload, "aten::sort.stable".
        host: True if this step stands for an operator that has no lowering: counted, named in
            reports, refused in strict portability. False if ATen's kernel is merely how we execute
            an operation that a NeuronCore has (sort, convolution, random numbers).
        device: True to call it on neuron tensors (random operators: they take their numbers from
            the device's generator), False to call the CPU kernel on aliases.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outs: tuple[View | None, ...]
    host: bool = False
    device: bool = False
    loc: str = ""


@dataclass(frozen=True, slots=True)
class CopyStep:
    """out = src, equal shapes and dtypes, any strides."""

    src: View
    out: View


@dataclass(frozen=True, slots=True)
class CallStep:
    """Runs one of `bodies` on operands; control flow.

    kind:
      "call"   bodies[0]
      "cond"   bodies[selector]: the selector is a pred (True takes body 0) or s32 scalar view
      "while"  bodies[0] computes a pred from the state, bodies[1] the next state; operands are the
               initial state, outs the final one
    """

    kind: str
    bodies: tuple[Program, ...]
    operands: tuple[View, ...]
    outs: tuple[View, ...]
    selector: View | None = None


@dataclass(frozen=True, slots=True)
class Register:
    """An s32 value in a buffer; `element` counts s32 elements of it."""

    buffer: int
    element: int = 0


@dataclass(frozen=True, slots=True)
class ForStep:
    """Runs steps on the same memory for a counter of lower, lower + step... below upper.

    The ends are read once, before the first time. After the loop the counters hold what they held
    the last time, or what they held before if there was none.

    Attributes:
        counters: All of them hold the counter.
        lower: Where it begins: a number of 32 bits, or a register.
        upper: Likewise, where it ends.
        step: At least 1.
        body: What is repeated.
    """

    counters: tuple[Register, ...]
    lower: int | Register
    upper: int | Register
    step: int
    body: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class WhileStep:
    """Copies `initial` to the counters; while it is not 0: runs the body, copies `next` to them.

    Attributes:
        counters: All of them hold the value.
        initial: Decides whether the body runs the first time.
        next: Decides, after the body, whether it runs again.
        body: What is repeated, on the same memory.
    """

    counters: tuple[Register, ...]
    initial: Register
    next: Register
    body: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class PrintStep:
    """Prints a prefix and the values of a view as a NumPy array, by Python's print.

    Attributes:
        prefix: A separate argument of print, also if it is empty.
        view: What is printed.
        location: The user's line.
    """

    prefix: str
    view: View
    location: str = ""


@dataclass(frozen=True, slots=True)
class CollectiveStep:
    """Starts a collective of the ranks of a process group; a WaitStep of the same list ends it.

    Several operands are several collectives of one kind, done as one. All views are contiguous.
    Until the wait nothing may write to the inputs, or read or write the outs.

    Attributes:
        kind: Name of the operator in the tensor IR: "all_reduce", "all_gather", "reduce_scatter",
            "all_to_all", "collective_broadcast", "collective_permute". All are along dimension 0.
        name: The process group, resolved when the step runs.
        group: The groups of ranks, each in the order of its process group; () for a permute.
        inputs: What this rank brings.
        outs: What it gets; where one is its input, an all_reduce or a broadcast is done in place.
        reduction: "add", "mul", "min", "max", "and", "or", "xor", "avg"; "" if it reduces nothing.
        root: Of a broadcast: place of the source in its group.
        send: Of an all_to_all: rows for each rank; () for equal parts. It has one operand then.
        receive: Rows from each rank.
        pairs: Of a permute: source and target, as places in the process group.
        loc: The user's line.
    """

    kind: str
    name: str
    group: tuple[tuple[int, ...], ...]
    inputs: tuple[View, ...]
    outs: tuple[View, ...]
    reduction: str = ""
    root: int = 0
    send: tuple[int, ...] = ()
    receive: tuple[int, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    loc: str = ""


@dataclass(frozen=True, slots=True)
class WaitStep:
    """Waits for the collective that step number `start` of the same program has started."""

    start: int
    loc: str = ""


Step = (
    LoopStep
    | GemmStep
    | ConvStep
    | AtenStep
    | CopyStep
    | CallStep
    | TapeStep
    | ForStep
    | WhileStep
    | PrintStep
    | CollectiveStep
    | WaitStep
)


def all_steps(steps: Iterable[Step]) -> Iterator[Step]:
    """Iterate over steps and, after a loop, those in its body; not over the bodies of calls."""
    for step in steps:
        yield step
        if isinstance(step, ForStep | WhileStep):
            yield from all_steps(step.body)


@dataclass(eq=False)
class Program:
    """Steps in the order of execution.

    Attributes:
        results: For every result, the buffer that holds it: an "output" buffer, or an "input"
            buffer if that argument is the result: updated in place, or handed on as the graph's
            aliases say. A parameter that is a result without an alias is copied to an output.
        scratch_bytes: Size of the scratchpad that temp buffers lie in.
        meta: What the compiler tells about the program. A NEFF keeps it, all but "seconds".
    """

    name: str
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    scratch_bytes: int = 0
    meta: Mapping[str, Any] = field(default_factory=dict)
