"""A step that convolves images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neuronxcc.codegen.check import extents_size
from neuronxcc.codegen.loop import Kernel
from neuronxcc.ir.arithmetic import Array
from neuronxcc.program.errors import NeffError
from neuronxcc.program.memory import View
from neuronxcc.program.spec import check_epilogue, epilogue_spec
from neuronxcc.program.step import NEAR, Code, Maker, Spec, Step
from neuronxcc.program.steps.gemm import PRODUCT_TYPES
from neuronxcc.program.words import kernel_lines, operands_text, view_text

if TYPE_CHECKING:
    from neuronxcc.program.checker import Checker
    from neuronxcc.program.machine import Machine


_MOST_STEP = 1 << 30  # of a window: numbers of it are added and multiplied in 64 bits


@dataclass(frozen=True, slots=True)
class ConvStep(Step):
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

    def check(self, checker: Checker) -> None:
        checker.views((self.x, self.w))
        checker.outs((self.out,))
        self.check_window()
        if (self.out is None) == (self.epilogue is None):
            raise NeffError("a convolution needs either a result or an epilogue")
        shape = self.out_shape
        if self.out is not None and (self.out.dtype, self.out.shape) != (self.x.dtype, shape):
            raise NeffError(
                f"{self.out.dtype.value}{list(self.out.shape)} for a convolution to "
                f"{self.x.dtype.value}{list(shape)}"
            )
        checker.epilogue(self.epilogue, self.dims, self.epilogue_operands)

    def check_window(self) -> None:
        """Check the operands by themselves, and how the window moves.

        Raises:
            NeffError: What is wrong.
        """
        x, w = self.x, self.w
        if len(x.shape) != 4 or len(w.shape) != 4:
            raise NeffError("operands of a convolution have four dimensions")
        if x.dtype is not w.dtype or x.dtype not in PRODUCT_TYPES:
            raise NeffError(f"a convolution of {x.dtype.value} and {w.dtype.value}")
        for name, values, least in (
            ("stride", self.stride, 1),
            ("padding", self.padding, 0),
            ("dilation", self.dilation, 1),
        ):
            if len(values) != 2 or not all(least <= value <= _MOST_STEP for value in values):
                raise NeffError(f"a convolution with {name} {list(values)}")
        if not all((*x.shape, *w.shape)):
            raise NeffError("a convolution of nothing")
        groups = self.groups
        if groups < 1 or x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
            raise NeffError(
                f"a convolution of {list(x.shape)} and {list(w.shape)}, {groups} groups"
            )
        if min(self.out_shape) < 1:
            raise NeffError(f"a convolution to {list(self.out_shape)}")
        extents_size(self.out_shape)

    def lines(self, *, kernels: bool) -> Iterator[str]:
        moves = (("stride", self.stride, (1, 1)), ("padding", self.padding, (0, 0)),
                 ("dilation", self.dilation, (1, 1)))  # fmt: skip
        constant = " constant" if self.constant_w else ""
        text = f"conv {view_text(self.x)} * {view_text(self.w)}{constant}"
        for name, values, usual in moves:
            if values != usual:
                text += f" {name} {','.join(map(str, values))}"
        text += f" groups {self.groups}" if self.groups != 1 else ""
        if self.epilogue is None:
            assert self.out is not None
            yield f"{text} -> {view_text(self.out)}"
            return
        tile = f"{'narrow ' if self.narrow else ''}{'last ' if self.last else ''}tile"
        yield f"{text} -> {self.epilogue.name}({tile}, {operands_text(self.epilogue_operands)})"
        if kernels:
            yield from kernel_lines(self.epilogue)

    def run(self, machine: Machine) -> None:
        sums = machine.convolution(
            self.x, self.w, self.stride, self.padding, self.dilation, self.groups
        )
        if self.epilogue is not None and self.last:
            sums = sums.transpose(0, 2, 3, 1)
        machine.store(sums, self.out, self.epilogue, self.epilogue_operands)

    def codes(self, far: Array) -> Iterator[Code]:
        del far
        if self.epilogue is not None:
            self.check_window()  # what `dims` is computed from
            check_epilogue(self.epilogue, self.dims, self.epilogue_operands)
            yield self.epilogue, NEAR

    def spec(self, maker: Maker) -> Spec:
        self.check_window()
        given = self.epilogue_operands
        return {
            "kind": "conv",
            "loc": self.loc,
            "x": maker.view(self.x),
            "w": maker.view(self.w),
            "out": maker.value(self.out),
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
            "last": self.last,
            "constant_w": self.constant_w,
            "narrow": self.narrow,
            **epilogue_spec(maker, self.title, self.epilogue, given, "convolution"),
        }

    def summary(self) -> str:
        tail = "" if self.epilogue is None else f", then {self.epilogue.name}"
        return f"{self.title}{tail}"
