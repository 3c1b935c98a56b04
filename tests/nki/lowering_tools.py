"""Run one instruction on operands of any layout: by the reference, and lowered to a program."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from neuronxcc.program.reference import run_program
from nki.dtypes import info
from nki.errors import NkiValidationError
from nki.kernel import Kernel
from nki.lowering import lower
from nki.recording import Recording
from nki.reference import run

# The first one has every instruction.
TARGETS = ("trn3", "trn2", "trn1")

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Layout:
    """Where a tile lies in its storage.

    Attributes:
        shape: of the view; first the partitions.
        strides: of the free dimensions, in elements.
        offset: elements before the first one in a partition.
        row: elements of a partition of the storage.
        first: first partition.
        address: byte in SBUF or PSUM, None for a storage without an address.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    row: int
    first: int = 0
    address: int | None = None

    @property
    def pattern(self) -> list[list[int]]:
        """As `ap` takes it."""
        return [
            [self.row, self.shape[0]],
            *map(list, zip(self.strides, self.shape[1:], strict=True)),
        ]


def dense(*shape: int) -> Layout:
    """A tile that is its storage."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape[1:]):
        strides.insert(0, step)
        step *= extent
    return Layout(shape, tuple(strides), 0, step)


@st.composite
def splits(draw: Any, total: int) -> tuple[int, ...]:
    """Sizes that multiply to a number."""
    sizes: list[int] = []
    while total > 1 and len(sizes) < 2 and draw(st.booleans()):
        divisors = [d for d in range(1, total + 1) if total % d == 0]
        size = draw(st.sampled_from(divisors))
        sizes.append(size)
        total //= size
    return (*sizes, total)


@st.composite
def layouts(
    draw: Any,
    partitions: int,
    free: int | tuple[int, ...],
    *,
    broadcast: bool = False,
    addressed: bool = True,
    align: int = 1,
) -> Layout:
    """Permuted, strided, reversed, shifted, broadcast, or addressed."""
    shape = draw(splits(free)) if isinstance(free, int) else free
    order = draw(st.permutations(range(len(shape))))
    strides = [0] * len(shape)
    step, low = draw(st.sampled_from([1, 1, 1, 2])), 0
    for dim in order:
        if broadcast and shape[dim] > 1 and draw(st.integers(0, 5)) == 0:
            continue
        strides[dim] = step
        step *= shape[dim] * draw(st.sampled_from([1, 1, 1, 2]))
        if shape[dim] > 1 and draw(st.integers(0, 5)) == 0:
            low += strides[dim] * (shape[dim] - 1)
            strides[dim] = -strides[dim]
    span = sum(abs(s) * (n - 1) for s, n in zip(strides, shape, strict=True)) + 1
    before = draw(st.sampled_from([0, 0, 1, 3]))
    row = -(-(span + before + draw(st.sampled_from([0, 0, 2]))) // align) * align
    first = draw(st.sampled_from([0, 32])) if partitions <= 32 else 0
    address = draw(st.sampled_from([None, None, 0, 1 << 14])) if addressed else None
    return Layout((partitions, *shape), tuple(strides), before + low, row, first, address)


@dataclass(frozen=True)
class Given:
    """An operand.

    Attributes:
        data: items of the whole storage, (partitions, elements), in the NumPy type of `dtype`.
        dtype: NKI's name.
        layout: which of them are shown.
        region: `sbuf` or `psum`.
        shares: name of the operand in whose storage this one lies.
        wrap: makes another view of it.
    """

    data: Array
    dtype: str
    layout: Layout
    region: str = "sbuf"
    shares: str | None = None
    wrap: Callable[[Any], Any] | None = None


def storage_shape(layout: Layout) -> tuple[int, int]:
    """Partitions and elements that a layout needs."""
    return layout.first + layout.shape[0], layout.row


WORDS = {1: "uint8", 2: "uint16", 4: "uint32"}


def kernel_of(name: str, operands: Mapping[str, Any], attributes: Mapping[str, Any]) -> Kernel:
    """Return a kernel that loads tiles, runs an instruction, and returns all tiles."""

    def body(arrays: Any) -> Any:
        given = {n: v for n, v in operands.items() if isinstance(v, Given)}
        storages: dict[str, Any] = {}
        for (n, v), array in zip(
            ((n, v) for n, v in given.items() if v.shares is None), arrays, strict=True
        ):
            address = None if v.layout.address is None else (0, v.layout.address)
            storages[n] = nl.ndarray(
                array.shape, array.dtype, getattr(nl, v.region), address=address
            )
            nisa.dma_copy(dst=storages[n], src=array)
        views = {}
        for n, v in given.items():
            whole = storages[v.shares or n]
            row = whole.shape[1] * info(whole.dtype).itemsize // info(v.dtype).itemsize
            pattern = v.layout.pattern
            pattern[0][0] = row
            view = whole.ap(pattern, offset=v.layout.first * row + v.layout.offset, dtype=v.dtype)
            views[n] = view if v.wrap is None else v.wrap(view)
        rest = {n: v for n, v in operands.items() if not isinstance(v, Given)}
        getattr(nisa, name)(**views, **rest, **attributes)
        results = []
        for whole in storages.values():
            out = nl.ndarray(whole.shape, whole.dtype, nl.shared_hbm)
            nisa.dma_copy(dst=out, src=whole)
            results.append(out)
        return tuple(results)

    body.__name__ = name
    return nki.jit(body)


def bits(array: Array) -> Array:
    """Return items as unsigned integers of their size."""
    return np.ascontiguousarray(array).view(WORDS[array.dtype.itemsize])


def record(kernel: Kernel, *args: Any, target: str = TARGETS[0]) -> Recording:
    """Record for a target, without warnings of what is undefined on hardware."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
        return kernel.record(*args)


def lowered(recording: Recording, arrays: Sequence[Array]) -> list[Array]:
    """Return the storages that a recording returns, by the lowered program run in NumPy."""
    program = lower(recording)
    kinds = {b.index: b.dtype.numpy for b in program.buffers if b.kind == "input"}
    return run_program(
        program, [np.array(a).view(kinds.get(i, a.dtype)) for i, a in enumerate(arrays)]
    )


def check(
    name: str,
    operands: Mapping[str, Any],
    attributes: Mapping[str, Any] | None = None,
    *,
    ulps: float = 0,
    least: float = 0.0,
    runner: Callable[[Recording, Sequence[Array]], list[Array]] = lowered,
    target: str = TARGETS[0],
) -> None:
    """Compare an instruction by the reference with what it is lowered to, storage by storage.

    Args:
        name: of the instruction.
        operands: `Given` tiles, numbers.
        attributes: the others.
        ulps: how many units in the last place of the storage's type floats may differ by.
        least: or by this absolutely.
        runner: runs a recording.
        target: what to record for; where it refuses such an instruction, the first one is taken.
    """
    kernel = kernel_of(name, operands, attributes or {})
    given = {n: v for n, v in operands.items() if isinstance(v, Given) and v.shares is None}
    arrays = [bits(v.data) for v in given.values()]
    try:
        recording = record(kernel, arrays, target=target)
    except NkiValidationError:
        if target == TARGETS[0]:
            raise
        recording = record(kernel, arrays)
    wanted = run(recording, [np.array(a) for a in arrays])
    got = runner(recording, arrays)
    for (n, v), a, b in zip(given.items(), got, wanted, strict=True):
        same(n, v.dtype, a, b, ulps, least)


def same(what: str, dtype: str, got: Array, wanted: Array, ulps: float, least: float) -> None:
    """Compare bits; NaN equals NaN, and floats may differ by as much as is allowed."""
    kind = info(dtype)
    if np.array_equal(got, wanted):
        return
    assert not kind.is_packed, what
    a, b = got.view(kind.numpy), wanted.view(kind.numpy)
    if not kind.is_float:
        np.testing.assert_array_equal(a, b, what)
        return
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        size = np.abs(y)
        last = np.spacing(size.astype(np.float32)).astype(np.float64)
        digits = {"bfloat16": 7, "float16": 10, "float8_e4m3": 3, "float8_e4m3fn": 3,
                  "float8_e5m2": 2, "float8_e8m0fnu": 0}.get(dtype, 23)  # fmt: skip
        last = np.maximum(last * 2.0 ** (23 - digits), _smallest(dtype))
        far = np.abs(x - y) > np.maximum(ulps * last, least)
    both = np.isnan(x) & np.isnan(y)
    # Zeros of both signs are equal where something is not exact.
    exact = (x == y) if ulps or least else got == wanted
    bad = ~(both | exact) & (far | ~np.isfinite(x) | ~np.isfinite(y) | (not (ulps or least)))
    if bad.any():
        where = np.argwhere(bad)[0]
        raise AssertionError(
            f"{what} {dtype}: {bad.sum()} of {bad.size} differ, first at {where}: "
            f"{a[tuple(where)]} for {b[tuple(where)]}"
        )


def _smallest(dtype: str) -> float:
    return float(ml_dtypes.finfo(info(dtype).numpy).smallest_subnormal)  # type: ignore[no-untyped-call]


_SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.5, np.inf, -np.inf, np.nan, 1e-3, 300.0, 7e4, -1e6,
     3e9, -3e9, 1e-40, 255.5, 127.5]
)  # fmt: skip


def items(seed: int, shape: tuple[int, ...], dtype: str, *, special: bool = True) -> Array:
    """Random items of a type: ordinary numbers, with special ones among them."""
    rng = np.random.default_rng(seed)
    kind = info(dtype)
    if not kind.is_float:
        small = kind.name == "bool_" or kind.itemsize == 1 or rng.integers(2)
        limits = np.iinfo(kind.numpy)
        low, high = (limits.min, limits.max) if special or not small else (0, 20)
        return rng.integers(low, high, shape, kind.numpy, endpoint=True)
    values = rng.standard_normal(shape) * 4
    if special:
        values = np.where(rng.random(shape) < 0.2, rng.choice(_SPECIAL, shape), values)
    with np.errstate(all="ignore"):
        return np.asarray(values.astype(np.float32).astype(kind.numpy))


def tile(seed: int, layout: Layout, dtype: str, *, special: bool = True, **more: Any) -> Given:
    """A tile of random items."""
    data = items(seed, storage_shape(layout), dtype, special=special)
    return Given(data, dtype, layout, **more)
