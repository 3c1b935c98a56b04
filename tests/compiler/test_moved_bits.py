"""What is moved keeps every bit: operators that copy and choose, times types, times all patterns.

The expected bytes come from the CPU moving integers, which have no NaN to make quiet.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody names it
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from neuronxcc.codegen import build as kb
from neuronxcc.codegen.llvm import Host
from neuronxcc.codegen.loop import Access, Dim, Kernel, Kind, Scalar, Slot, Store
from neuronxcc.codegen.reference import run_kernel
from neuronxcc.ir import DType, Op

from .codegen_compare import HOSTS, compiled, host_id

Function = Callable[[Tensor], Tensor]

# The integer type of each size; of complex numbers that of a part.
WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
DTYPES = (
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
# Signalling and quiet NaN with payloads and signs, infinities, zeros, denormal numbers.
SPECIAL = {
    torch.float32: (
        *(0x7F800001, 0x7FC00000, 0x7FBFFFFF, 0x7FC00001, 0x7FFFFFFF, 0xFF800001, 0xFFC00001),
        *(0x80000000, 1, 0x80000001, 0x7F800000, 0xFF800000, 0x3F800000, 0x7FA00000, 0xFFBFFFFF),
    ),
    torch.float64: (
        *(0x7FF0000000000001, 0x7FF8000000000000, 0x7FFFFFFFFFFFFFFF, 0xFFF0000000000001),
        *(0xFFF8000000000000, 1 << 63, 1, 0x7FF4000000000000, 0xFFF7FFFFFFFFFFFF, (1 << 63) - 2),
    ),
}  # fmt: skip


def patterns(dtype: torch.dtype) -> Tensor:
    """Every pattern of the narrow types, the special ones of the others, as integers (n, 32)."""
    whole = WHOLE[dtype.itemsize]
    if dtype.itemsize <= 2:
        codes = torch.arange(1 << 8 * dtype.itemsize).to(whole)
    else:
        bits = 8 * dtype.itemsize
        numbers = [n - (1 << bits) if n >> (bits - 1) else n for n in SPECIAL[dtype]]
        codes = torch.tensor(numbers, dtype=whole).repeat(32)
    return codes.reshape(-1, 32)


def _reversed(x: Tensor) -> Tensor:
    return torch.arange(len(x) - 1, -1, -1, device=x.device)


def _stripes(x: Tensor) -> Tensor:
    return (torch.arange(x.numel(), device=x.device) % 3 == 0).reshape(x.shape)


def _shuffled(x: Tensor) -> Tensor:
    """Positions of elements along dimension 1, in another order in every row."""
    rows, columns = (torch.arange(n, device=x.device) for n in x.shape)
    return (columns[None] * 5 + rows[:, None]) % len(columns)


MOVES: dict[str, Function] = {
    "clone": lambda x: x.clone(),
    "transpose": lambda x: x.t().contiguous(),
    "permute": lambda x: x.unflatten(1, (4, 8)).permute(2, 0, 1).flatten(1),
    "cat": lambda x: torch.cat((x, x[1:])),
    "cat of columns": lambda x: torch.cat((x[:, 3:], x[:, :5]), 1),
    "stack": lambda x: torch.stack((x, x.roll(1, 0)), 1).flatten(0, 1),
    "gather": lambda x: x.gather(1, _shuffled(x)),
    "index_select": lambda x: x.index_select(0, _reversed(x)),
    "index": lambda x: x[_reversed(x)],
    "take": lambda x: x.take(_shuffled(x) + len(x)),
    "embedding": lambda x: F.embedding(_reversed(x), x),
    "where": lambda x: torch.where(_stripes(x), x, x.roll(3, 1)),
    "where equal": lambda x: torch.where(x[:1] == x, x, x[1:2]),
    "masked_fill": lambda x: x.masked_fill(_stripes(x), 0),
    "masked_scatter": lambda x: x.masked_scatter(_stripes(x), x),
    "scatter": lambda x: x.scatter(1, _shuffled(x), x),
    "index_put": lambda x: x.index_put((_reversed(x),), x),
    "index_copy": lambda x: x.index_copy(0, _reversed(x)[1:], x[1:]),
    "slice_scatter": lambda x: x.slice_scatter(x[:, ::2], 1, 1, None, 2),
    "select_scatter": lambda x: x.select_scatter(x[1], 0, 0),
    "tril": lambda x: x.tril(),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3)),
    "crop": lambda x: F.pad(x, (-1, 2)),
    "reflect": lambda x: F.pad(x[None], (3, 4, 5, 6), "reflect")[0],
    "replicate": lambda x: F.pad(x[None], (3, -4, 5, 0), "replicate")[0],
    "replicate what is left": lambda x: F.pad(x[None], (-40, 44, 12, -11), "replicate")[0],
    "reflect what is left": lambda x: F.pad(x[None], (-33, 20), "reflect")[0],
    "circular": lambda x: F.pad(x[None], (3, 4), "circular")[0],
    "rot90": lambda x: x.rot90(),
    "slice": lambda x: x[1:, 3:-5:2].clone(),
    "flip": lambda x: x.flip(0, 1),
    "roll": lambda x: x.roll((1, 5), (0, 1)),
    "repeat": lambda x: x.repeat(2, 3),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "expand": lambda x: x[:, None].expand(-1, 2, -1).flatten(0, 1),
    "diagonal": lambda x: x.diagonal()[None].clone(),
    "unfold": lambda x: x.unfold(1, 5, 3).flatten(1),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x[:4, None].reshape(1, 4, 4, 8), 2)[0, 0],
}  # fmt: skip
"""Functions of a matrix that compute nothing."""


def refused(function: Function, x: Tensor) -> bool:
    """Whether PyTorch has no such operator of this type, on any device."""
    try:
        function(x)
    except (NotImplementedError, RuntimeError):
        return True
    return False


@pytest.mark.every(3, "slow")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_moves_keep_every_bit(dtype: torch.dtype) -> None:
    codes = patterns(dtype)
    x = codes.view(dtype)
    moves = {name: move for name, move in MOVES.items() if not refused(move, x)}
    assert len(moves) > 15
    assert dtype.itemsize == 1 or len(moves) == len(MOVES)
    torch.compiler.reset()

    def every(x: Tensor) -> dict[str, Tensor]:
        return {name: move(x) for name, move in moves.items()}

    got = torch.compile(every, backend="neuron", fullgraph=True)(x.to("neuron"))
    for name, move in moves.items():
        # Everything but a comparison can be done to the codes.
        want = move(x).view(codes.dtype) if name == "where equal" else move(codes)
        assert torch.equal(got[name].cpu().contiguous().view(codes.dtype), want), name


def _element(draw: st.DrawFn, dtype: DType, slot: int, stride: int) -> Scalar:
    """An element of the slot, under a condition or not."""
    if draw(st.booleans()):
        return kb.load(dtype, slot, (stride, 1), draw(st.integers(0, 3)))
    condition = kb.compare("LT", kb.index(1), draw(st.integers(0, 40)))
    return kb.load(dtype, slot, (stride, 1), 0, mask=condition, other=1.0)


@st.composite
def choices(draw: st.DrawFn) -> Kernel:
    """A kernel that chooses between elements, computed ones among them, and may sum them too."""
    rows, columns = draw(st.integers(1, 20)), draw(st.integers(1, 40))
    dtype = draw(st.sampled_from(NARROW))
    whole = {1: DType.U8, 2: DType.U16}[dtype.itemsize]
    values = [_element(draw, dtype, slot, columns + 3) for slot in (0, 1)]
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(("select", "compare", "cast", "compute")))
        x, y = (draw(st.sampled_from(values)) for _ in range(2))
        if kind == "select":
            values.append(kb.select(kb.compare("GE", kb.index(0), draw(st.integers(0, 20))), x, y))
        elif kind == "compare":
            values.append(kb.select(kb.compare("LT", x, y), x, y))
        elif kind == "cast":
            bits = kb.op(Op.XOR, kb.op(Op.BITCAST_CONVERT, x, dtype=whole), 1)
            values.append(kb.op(Op.BITCAST_CONVERT, bits, dtype=dtype))
        else:
            # No NaN: nobody says what bits a computed one has.
            number = kb.select(kb.op(Op.IS_NAN, x), 1.0, x)
            values.append(kb.convert(kb.convert(number, DType.F32), dtype))
    turned = draw(st.booleans())
    strides = (1, rows) if turned else (columns, 1)
    stores = [Store(Access(2, strides), values[-1])]
    along = Kind.PARALLEL
    if draw(st.booleans()) and not turned:
        along = Kind.REDUCE
        number = kb.select(kb.op(Op.IS_NAN, values[0]), 1.0, values[0])
        largest = kb.reduce(Op.MAXIMUM, kb.convert(number, DType.F32))
        stores.append(Store(Access(3, (1, 0)), largest))
    slots = (Slot(dtype), Slot(dtype), Slot(dtype), Slot(DType.F32))
    return Kernel("moves", (Dim(rows), Dim(columns, along)), slots, tuple(stores))


NARROW = (DType.F8E4M3, DType.F8E4M3FN, DType.F8E5M2, DType.F8E8M0, DType.F16, DType.BF16)


@pytest.mark.parametrize("host", HOSTS, ids=host_id)
@given(kernel=choices(), seed=st.integers(0, 1 << 32))
@settings(max_examples=60)
def test_kernels_that_choose(host: Host, kernel: Kernel, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = (kernel.dims[0].extent + 1) * (kernel.dims[1].extent + 3) + 4
    buffers = [
        rng.integers(0, 256, size * slot.dtype.itemsize, np.uint8).view(slot.dtype.numpy)
        for slot in kernel.slots
    ]
    buffers[3][:] = 0
    expected = [buffer.copy() for buffer in buffers]
    run_kernel(kernel, expected)
    compiled([kernel], host).run(0, buffers)
    for got, want in zip(buffers, expected, strict=True):
        assert got.tobytes() == want.tobytes()
