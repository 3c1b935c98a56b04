"""What is computed as one, or with fewer digits; and stores past the caches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuronxcc.codegen import build
from neuronxcc.codegen.llvm import Host, emission
from neuronxcc.codegen.loop import Access, Dim, Kernel, Kind, Scalar, Slot, Store
from neuronxcc.codegen.reference import run_kernel
from neuronxcc.ir import DType, Op
from tests.compiler.codegen_compare import HOSTS, Array, compiled, host_id
from tests.compiler.test_codegen_math import arguments, ulps

F32, BF16 = DType.F32, DType.BF16
X = build.load(F32, 0, (1,))


def pointwise(value: Scalar, count: int, source: DType = F32) -> Kernel:
    slots = (Slot(source), Slot(value.dtype))
    return Kernel("f", (Dim(count),), slots, (Store(Access(1, (1,)), value),))


def run(kernel: Kernel, host: Host, x: Array) -> Array:
    out = np.zeros(x.size, kernel.slots[1].dtype.numpy)
    compiled([kernel], host).run(0, [x, out])
    return out


@pytest.mark.parametrize("host", HOSTS, ids=host_id)
def test_one_plus_tanh(host: Host) -> None:
    """3 ulp where the sum of the two would have no digit right."""
    x = arguments(50000)
    got = run(pointwise(build.op(Op.ADD, build.op(Op.TANH, X), 1.0), x.size), host, x)
    with np.errstate(all="ignore"):
        wide = np.clip(x.astype(np.float64), -400, 400)
        exact = 2 / (1 + np.exp(-2 * wide))
    exact[np.isnan(x)] = np.nan
    near = ~(x < -10)
    distance = ulps(got[near], exact[near])
    worst = int(np.argmax(distance))
    assert distance[worst] <= 3, (x[near][worst], distance[worst])
    # Farther out what was lost in the argument counts: 1e-8 for each unit of it.
    np.testing.assert_allclose(got[~near], exact[~near], rtol=1e-6, atol=2.0**-126)
    ends = run(pointwise(build.op(Op.ADD, build.op(Op.TANH, X), 1.0), 2), host, ENDS)
    np.testing.assert_array_equal(ends, [0, 2])


ENDS = np.array([-np.inf, np.inf], np.float32)


def gelu(x: Scalar) -> Scalar:
    cube = build.op(Op.MULTIPLY, build.op(Op.MULTIPLY, x, x), x)
    inner = build.op(Op.ADD, x, build.op(Op.MULTIPLY, cube, 0.044715))
    t = build.op(Op.TANH, build.op(Op.MULTIPLY, inner, 0.7978845608))
    return build.op(Op.MULTIPLY, build.op(Op.MULTIPLY, x, 0.5), build.op(Op.ADD, t, 1.0))


ROUGH: dict[str, tuple[Callable[[Scalar], Scalar], Callable[[Array], Array]]] = {
    "exp": (lambda x: build.op(Op.EXP, x), np.exp),
    "silu": (
        lambda x: build.op(Op.MULTIPLY, x, build.op(Op.LOGISTIC, x)),
        lambda x: x / (1 + np.exp(-x)),
    ),
    "gelu": (gelu, lambda x: x / (1 + np.exp(-1.5957691216 * (x + 0.044715 * x**3)))),
}


@pytest.mark.parametrize("host", HOSTS, ids=host_id)
@pytest.mark.parametrize("name", ROUGH)
def test_bfloat16_needs_fewer_digits(name: str, host: Host) -> None:
    """Every bfloat16: 0.53 ulp of it where the result is normal; ends as in float32."""
    make, meaning = ROUGH[name]
    x = np.arange(1 << 16, dtype=np.uint16).view(BF16.numpy)
    value = build.convert(make(build.convert(build.load(BF16, 0, (1,)), F32)), BF16)
    kernel = pointwise(value, x.size, BF16)
    got = run(kernel, host, x).astype(np.float64)
    with np.errstate(all="ignore"):
        exact = meaning(x.astype(np.float64))
        size = 2.0 ** np.floor(np.log2(np.abs(exact)))
    normal = (size >= 2.0**-100) & (size < 2.0**127)
    error = np.abs(got[normal] - exact[normal]) / (size[normal] * 2.0**-7)
    assert error.max() <= 0.53, x[normal][np.argmax(error)]
    expected = np.zeros(x.size, BF16.numpy)
    run_kernel(kernel, [x, expected])
    ends = ~np.isfinite(x.astype(np.float32))
    np.testing.assert_array_equal(got[ends], expected[ends].astype(float))
    np.testing.assert_allclose(got[size < 2.0**-100], 0, atol=2.0**-98)


@pytest.mark.parametrize("host", HOSTS, ids=host_id)
def test_rounding_by_the_store(host: Host) -> None:
    """All kinds of float32 to bfloat16, denormal numbers included, 16 times over as they meet."""
    bits = np.concatenate([np.arange(1 << 16, dtype=np.uint32) << 16 | low
                           for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])  # fmt: skip
    bits = np.concatenate([bits, np.random.default_rng(0).permutation(bits)])
    kernel = pointwise(build.convert(X, BF16), bits.size)
    got, expected = (np.zeros(bits.size, BF16.numpy) for _ in range(2))
    compiled([kernel], host).run(0, [bits.view(np.float32), got])
    run_kernel(kernel, [bits.view(np.float32), expected])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    finite = ~np.isnan(got)
    np.testing.assert_array_equal(got[finite].view(np.uint16), expected[finite].view(np.uint16))


def streaming(host: Host) -> Host:
    """The same, but everything is too large for its cache."""
    return dataclasses.replace(host, cache_bytes=1)


def forms(rows: int, columns: int, dtype: DType) -> list[Kernel]:
    """A copy, a sum with a transposed operand, a softmax of rows, and one of columns."""
    x = build.load(dtype, 0, (columns, 1))
    turned = build.op(Op.ADD, build.load(dtype, 0, (1, rows)), x)
    store = Access(1, (columns, 1))
    slots = (Slot(dtype),) * 2
    plain = (Dim(rows), Dim(columns))
    found = [
        Kernel("k", plain, slots, (Store(store, value),))
        for value in (build.op(Op.MULTIPLY, x, 3), turned)
    ]
    for axis in (0, 1):
        value = build.op(Op.SUBTRACT, x, build.reduce(Op.MAXIMUM, x))
        dims = tuple(
            Dim(d.extent, Kind.REDUCE if axis == i else Kind.PARALLEL) for i, d in enumerate(plain)
        )
        found.append(Kernel("k", dims, slots, (Store(store, value),)))
    return found


@pytest.mark.parametrize("host", HOSTS, ids=host_id)
def test_streaming_stores(host: Host) -> None:
    """Any shape, and memory at any place in a line: the reference's results, and no others."""

    @settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.integers(1, 70) | st.sampled_from([16, 64, 128]),
        st.integers(1, 200) | st.sampled_from([16, 32, 64, 128, 512]),
        st.sampled_from([F32, BF16, DType.F64, DType.U8, DType.S64]),
        st.integers(0, 3), st.sampled_from([0, 0, 8, 32]),
    )  # fmt: skip
    def property_(rows: int, columns: int, dtype: DType, form: int, shift: int) -> None:
        kernel = forms(rows, columns, dtype)[form]
        rng = np.random.default_rng(0)
        x = rng.integers(0, 20, rows * columns).astype(dtype.numpy)
        size = rows * columns * dtype.itemsize
        memory = np.full(size + 256, 77, np.uint8)
        start = -memory.ctypes.data % 64 + 64 + shift
        out = memory[start : start + size].view(dtype.numpy)
        expected = out.copy()
        compiled([kernel], streaming(host)).run(0, [x, out])
        run_kernel(kernel, [x, expected])
        np.testing.assert_array_equal(out, expected)
        assert (memory[:start] == 77).all()
        assert (memory[start + size :] == 77).all()

    property_()


def test_what_is_streamed() -> None:
    """Large results in whole lines; not what the kernel reads, nor ragged rows."""
    small = streaming(HOSTS[-1])

    def text(kernel: Kernel, host: Host = small) -> str:
        return emission.emit_kernel(kernel, host, "k").text

    copy, turned, _, _ = forms(64, 512, F32)
    assert "!nontemporal" in text(copy)
    assert "!nontemporal" in text(turned)
    assert "!nontemporal" not in text(copy, HOSTS[-1])
    in_place = Kernel("k", (Dim(4096),), (Slot(F32),), (Store(Access(0, (1,)), X),))
    assert "!nontemporal" not in text(in_place)
    ragged = [k for k in forms(64, 100, F32) if k.dims[1].kind is Kind.REDUCE]
    assert "!nontemporal" not in text(ragged[0])
