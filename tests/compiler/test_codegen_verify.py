"""The rules of loop kernels: each has a kernel that breaks it, and a text that says so."""

from __future__ import annotations

import re

import numpy as np
import pytest

from neuronxcc.codegen import build
from neuronxcc.codegen.errors import CodegenError, CodegenUnsupported
from neuronxcc.codegen.llvm import compile_kernels
from neuronxcc.codegen.loop import Access, Dim, Kernel, Kind, Scalar, Slot, Store
from neuronxcc.codegen.objects import ObjectCache
from neuronxcc.codegen.reference import run_kernel
from neuronxcc.codegen.verify import verify
from neuronxcc.ir import DType, Op

F32, S64, PRED = DType.F32, DType.S64, DType.PRED
X = build.load(F32, 0, (8, 1))


def kernel(value: Scalar, access: Access | None = None, **more: object) -> Kernel:
    dims = (Dim(4), Dim(8, Kind.REDUCE))
    slots = (Slot(F32), Slot(value.dtype), Slot(F32, tile=True))
    store = Store(access or Access(1, (8, 1)), value, **more)  # type: ignore[arg-type]
    return Kernel("bad", dims, slots, (store,))


BROKEN = {
    "there is no slot 7": kernel(build.load(F32, 7, (8, 1))),
    "1 strides for 2 dimensions": kernel(build.load(F32, 0, (8,))),
    "the slot is of f32": kernel(build.load(S64, 0, (8, 1))),
    "an index is not an integer": kernel(build.load(F32, 0, (8, 1), indices=[(X, 1)])),
    "mask and other are": kernel(
        Scalar.make("load", F32, (X, X), access=Access(0, (8, 1)))
    ),
    "has no value": kernel(Scalar.make("const", F32)),
    "is complex": kernel(build.const(1j, F32)),
    "no dimension 2": kernel(build.index(2)),
    "a position is an integer": kernel(build.index(0, F32)),
    "not elementwise": kernel(Scalar.make("op", F32, (X,), op=Op.REDUCE)),
    "gives f32": kernel(Scalar.make("op", S64, (X, X), op=Op.ADD)),
    "add: ": kernel(Scalar.make("op", F32, (X, build.index(0)), op=Op.ADD)),
    "bits must be two constants": kernel(Scalar.make("op", F32, (X,), op=Op.REDUCE_PRECISION)),
    "subtract does not reduce": kernel(build.reduce(Op.SUBTRACT, X)),
    "add has no position": kernel(build.arg(Op.ADD, X)),
    "the tile is read only": kernel(X, Access(2, (8, 1))),
    "the mask is not pred": kernel(X, mask=X),
    "divide does not combine": kernel(X, combine=Op.DIVIDE),
    "slot 0 is stored to at another place": kernel(X, Access(0, (8, 1), 1)),
    "no expression 'guess'": kernel(Scalar.make("guess", F32)),
}  # fmt: skip


@pytest.mark.parametrize("text", BROKEN)
def test_broken(text: str) -> None:
    with pytest.raises(CodegenError, match=re.escape(text)) as caught:
        verify(BROKEN[text])
    assert "kernel 'bad'" in str(caught.value)


def test_compilation_verifies() -> None:
    with pytest.raises(CodegenError, match="there is no slot 7"):
        compile_kernels([BROKEN["there is no slot 7"]], cache=ObjectCache(None))


def test_reductions_need_something_to_reduce() -> None:
    pointwise = Kernel(
        "p", (Dim(4),), (Slot(F32),) * 2,
        (Store(Access(1, (1,)), build.reduce(Op.ADD, build.load(F32, 0, (1,)))),),
    )  # fmt: skip
    with pytest.raises(CodegenError, match="no REDUCE dimension"):
        verify(pointwise)
    dims = (Dim(4, Kind.REDUCE), Dim(8, Kind.REDUCE))
    two = Kernel(
        "two", dims, (Slot(F32), Slot(S64)), (Store(Access(1, (0, 0)), build.arg(Op.MAXIMUM, X)),)
    )
    with pytest.raises(CodegenError, match="exactly one REDUCE dimension"):
        verify(two)


def test_nothing_to_do() -> None:
    """An empty parallel dimension has no items; an empty reduced one is refused."""
    store = Store(Access(1, (8, 1)), X)
    empty = Kernel("empty", (Dim(0), Dim(8)), (Slot(F32), Slot(F32)), (store,))
    module = compile_kernels([empty], cache=ObjectCache(None))
    assert module.functions[0].items == 0
    module.run(0, [np.zeros(1, np.float32)] * 2)
    total = Store(Access(1, (1, 0)), build.reduce(Op.ADD, X))
    empty = Kernel("empty", (Dim(4), Dim(0, Kind.REDUCE)), (Slot(F32), Slot(F32)), (total,))
    with pytest.raises(CodegenUnsupported, match="a reduction over nothing"):
        compile_kernels([empty], cache=ObjectCache(None))


def test_reference_checks_its_buffers() -> None:
    good = Kernel(
        "k", (Dim(8),), (Slot(F32), Slot(F32)), (Store(Access(1, (1,)), build.load(F32, 0, (1,))),)
    )
    with pytest.raises(TypeError, match="a buffer of float64 for a slot of f32"):
        run_kernel(good, [np.zeros(8), np.zeros(8, np.float32)])
