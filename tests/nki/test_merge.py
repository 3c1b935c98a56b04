"""Two cores: their recordings become one that does what they do side by side."""

# ruff: noqa: E501, ISC004 (a table of error texts)
from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.context import current_run
from nki.errors import NkiError, NkiWarning
from nki.recorder import Recorder
from nki.recording import Loop

Array = npt.NDArray[Any]


pytestmark = pytest.mark.usefixtures("executor", "own_cache")


def recorder() -> Recorder:
    found = current_run()
    assert isinstance(found, Recorder)
    return found


def random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def swap(src: Any, dst: Any, pipe: int = 0, **more: Any) -> None:
    other = 1 - nl.program_id(0)
    nisa.sendrecv(
        src=src, dst=dst, send_to_rank=other, recv_from_rank=other, pipe_id=pipe, **more
    )  # fmt: skip


@nki.jit
def scaled(a: Any, factor: float) -> Any:
    """Work that is divided by program_id: each core has half of the rows."""
    out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
    half = a.shape[0] // nl.num_programs(0)
    rows = nl.ds(nl.program_id(0) * half, half)
    t = nl.ndarray((half, a.shape[1]), a.dtype)
    nisa.dma_copy(t, a[rows])
    nisa.tensor_scalar(t, t, op0=nl.multiply, operand0=factor)
    nisa.dma_copy(out[rows], t)
    return out


def test_cores_divide_work() -> None:
    a = random(64, 16)
    for kernel in (scaled, scaled[1], scaled[2]):
        np.testing.assert_array_equal(kernel(a, 3.0), a * 3)
    recording = scaled[2].record(a, 3.0)
    assert recording.cores == 2
    assert len(recording.inputs) == 1
    assert [event.template.core for event in recording.events()] == [0, 0, 0, 1, 1, 1]
    # Argument and result are shared; each core has a tile of its own.
    assert len(recording.storages) == 4


def test_arguments_are_written_by_both_cores() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        i = nl.program_id(0)
        t = nl.full((1, a.shape[1]), float(i + 1), a.dtype)
        nisa.dma_copy(a[i : i + 1], t)
        return a

    a = random(2, 8)
    assert kernel[2](a) is a
    np.testing.assert_array_equal(a, np.repeat([[1.0], [2.0]], 8, axis=1))


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 128),
    columns=st.integers(1, 40),
    dtype=st.sampled_from([np.float32, np.int8, np.uint16]),
    seed=st.integers(0, 9),
)
def test_sendrecv_exchanges_tiles(rows: int, columns: int, dtype: Any, seed: int) -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        i = nl.program_id(0)
        mine, theirs = nl.ndarray(a.shape[1:], a.dtype), nl.ndarray(a.shape[1:], a.dtype)
        nisa.dma_copy(mine, a[i])
        swap(mine, theirs)
        nisa.dma_copy(out[i], theirs)
        return out

    a = np.random.default_rng(seed).integers(0, 100, (2, rows, columns)).astype(dtype)
    np.testing.assert_array_equal(kernel[2](a), a[::-1])


def test_sendrecv_in_place_goes_through_a_temporary() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        i = nl.program_id(0)
        t = nl.ndarray(a.shape[1:], a.dtype)
        nisa.dma_copy(t, a[i])
        swap(t, t)
        nisa.dma_copy(out[i], t)
        return out

    a = random(2, 8, 4)
    np.testing.assert_array_equal(kernel[2](a), a[::-1])
    names = [event.template.row.name for event in kernel[2].record(a).events()]
    assert names == ["dma_copy"] * 7  # two loads, an exchange in three copies, two stores


def test_sendrecv_to_oneself_copies() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        i = nl.program_id(0)
        t, u = nl.ndarray((1, 4), a.dtype), nl.ndarray((1, 4), a.dtype)
        nisa.dma_copy(t, a[i : i + 1])
        nisa.sendrecv(src=t, dst=u, send_to_rank=i, recv_from_rank=i, pipe_id=0)
        nisa.dma_copy(out[i : i + 1], u)
        return out

    a = random(2, 4)
    np.testing.assert_array_equal(kernel[2](a), a)


def test_pipes_are_exchanged_in_order() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray((2, 2, 4), a.dtype, nl.shared_hbm)
        i = nl.program_id(0)
        for pipe in range(2):
            t, u = nl.ndarray((1, 4), a.dtype), nl.ndarray((1, 4), a.dtype)
            nisa.dma_copy(t, a[i, pipe : pipe + 1])
            swap(t, u, pipe, dma_engine=nisa.dma_engine.gpsimd_dma)
            nisa.dma_copy(out[i, pipe : pipe + 1], u)
        return out

    a = random(2, 2, 4)
    np.testing.assert_array_equal(kernel[2](a), a[::-1])


@nki.jit
def passed_on(a: Any, *, barrier: bool) -> Any:
    """Each core writes its half of a shared tensor, then reads the other's."""
    middle = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
    out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
    i, t = nl.program_id(0), nl.ndarray((1, a.shape[1]), a.dtype)
    nisa.dma_copy(t, a[i : i + 1])
    nisa.dma_copy(middle[i : i + 1], t)
    if barrier:
        nisa.core_barrier(middle, (0, 1))
    nisa.dma_copy(t, middle[1 - i : 2 - i])
    nisa.dma_copy(out[i : i + 1], t)
    return out


def test_barrier_orders_shared_memory() -> None:
    a = random(2, 8)
    np.testing.assert_array_equal(passed_on[2](a, barrier=True), a[::-1])


def test_without_a_barrier_it_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    text = r"core 1 (reads|writes) bytes of .*float32\[2, 8\].* that core 0 .* at .*test_merge.py"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        passed_on[2](random(2, 8), barrier=False)
    texts = [str(w.message) for w in caught if issubclass(w.category, NkiWarning)]
    assert sum("NKI304" in t for t in texts) == 2, texts
    assert any("neither core has written [NKI204]" in t for t in texts)
    monkeypatch.setenv("TORCH_NEURONX_NKI_CHECKS", "strict")
    with pytest.raises(NkiError, match=rf"{text}:\d+, and no core_barrier.*NKI304|NKI204"):
        passed_on[2](random(2, 8), barrier=False)


def test_memory_that_neither_core_has_written_is_found() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        middle = nl.ndarray((4, 8), a.dtype, nl.shared_hbm)
        out = nl.ndarray((2, 4, 8), a.dtype, nl.shared_hbm)
        i, t = nl.program_id(0), nl.ndarray((4, 8), a.dtype)
        nisa.dma_copy(middle[i : i + 1], a[i : i + 1])
        nisa.core_barrier(middle, (0, 1))
        nisa.dma_copy(t, middle)
        nisa.dma_copy(out[i], t)
        return out

    a = random(2, 8)
    match = r"dma_copy src reads a tensor in shared HBM at \[2, 0\].*neither core.*NKI204"
    with pytest.warns(NkiWarning, match=match):
        out = kernel[2](a)
    np.testing.assert_array_equal(out[:, :2], np.stack([a, a]))
    assert np.isnan(out[:, 2:]).all()
    hidden = [e for e in kernel[2].record(a).events() if e.template.hidden]
    assert len(hidden) == 1


@pytest.mark.parametrize("count", [0, 1, 3])
def test_loops_with_an_exchange_are_merged_body_by_body(count: int) -> None:
    @nki.jit
    def kernel(a: Any, n: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        i = nl.program_id(0)
        number = nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(number, n)
        upper = nisa.register_alloc()
        nisa.register_load(upper, number)
        t, u = nl.ndarray((1, 4), a.dtype), nl.ndarray((1, 4), a.dtype)
        nisa.dma_copy(t, a[i : i + 1])
        with recorder().for_loop(0, upper):
            swap(t, u)
            nisa.tensor_scalar(t, u, op0=nl.add, operand0=float(i + 1))
        nisa.dma_copy(out[i : i + 1], t)
        return out

    a = random(2, 4)
    expected = a.copy()
    for _ in range(count):
        expected = expected[::-1] + np.array([[1.0], [2.0]], np.float32)
    n = np.array([[count]], np.int32)
    np.testing.assert_array_equal(kernel[2](a, n), expected)
    loops = [item for item in kernel[2].record(a, n).items() if isinstance(item, Loop)]
    assert [len(set(loop.counters)) for loop in loops] == [2]


def test_loops_of_each_core_and_their_counters() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        i, t = nl.program_id(0), nl.ndarray((1, 4), a.dtype)
        nisa.dma_copy(t, a[i : i + 1])
        nisa.core_barrier(out, (0, 1))
        with recorder().for_loop(0, 4) as j, recorder().for_loop(0, 2):
            u = nl.ndarray((1, 1), a.dtype)
            nisa.tensor_copy(u, t.ap([[4, 1], [1, 1]], scalar_offset=j, indirect_dim=1))
            nisa.tensor_scalar(u, u, op0=nl.add, operand0=float(i + 1))
            nisa.tensor_copy(t.ap([[4, 1], [1, 1]], scalar_offset=j, indirect_dim=1), u)
        nisa.dma_copy(out[i : i + 1], t)
        return out

    a = random(2, 4)
    expected = a.copy()
    for _ in range(2):
        expected = expected + np.array([[1], [2]], np.float32)
    np.testing.assert_array_equal(kernel[2](a), expected)
    loops = [item for item in kernel[2].record(a).items() if isinstance(item, Loop)]
    assert len(loops) == 2


def test_while_loops_with_an_exchange() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        i = nl.program_id(0)
        t, u = nl.ndarray((1, 1), nl.int32), nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(t, a[i : i + 1])
        left = nl.full((1, 1), 3, nl.int32)
        r = nisa.register_alloc()
        nisa.register_load(r, left)
        with recorder().while_loop(r) as (current, following):
            swap(t, u)
            nisa.tensor_scalar(t, u, op0=nl.multiply, operand0=float(i + 2))
            nisa.tensor_scalar(left, left, op0=nl.subtract, operand0=1)
            nisa.register_load(current, left)
            following.append(current)
        nisa.dma_copy(out[i : i + 1], t)
        return out

    a = np.array([[1], [10]], np.int32)
    expected: Array = a.copy()
    for _ in range(3):
        expected = expected[::-1] * np.array([[2], [3]], np.int32)
    np.testing.assert_array_equal(kernel[2](a), expected)


def test_a_race_between_iterations_is_found() -> None:
    @nki.jit
    def kernel(a: Any, *, twice: bool) -> Any:
        out = nl.ndarray((2, 1, 4), a.dtype, nl.shared_hbm)
        middle = nl.ndarray((2, 4), a.dtype, nl.shared_hbm)
        i, t = nl.program_id(0), nl.ndarray((1, 4), a.dtype)
        nisa.dma_copy(t, a[i : i + 1])
        with recorder().for_loop(0, 2):
            nisa.dma_copy(middle[i : i + 1], t)
            nisa.core_barrier(middle, (0, 1))
            nisa.dma_copy(t, middle[1 - i : 2 - i])
            if twice:
                nisa.core_barrier(middle, (0, 1))
        nisa.dma_copy(out[i], t)
        return out

    a = random(2, 4)
    np.testing.assert_array_equal(kernel[2](a, twice=True)[:, 0], a)
    with pytest.warns(NkiWarning, match="NKI304"):
        kernel[2](a, twice=False)


def test_shared_tensors_are_filled_once() -> None:
    @nki.jit
    def kernel(a: Any, *, ones: bool = False, alone: bool = False) -> Any:
        i = nl.program_id(0)
        value = i if ones else 3
        out = nl.full((3, 4), value, a.dtype, nl.shared_hbm)
        t = nl.ndarray((1, 4), a.dtype)
        nisa.dma_copy(t, a[i : i + 1])
        nisa.dma_copy(out[i : i + 1], t)
        if alone and i == 1:
            nl.zeros((2, 2), a.dtype, nl.shared_hbm)
        return out

    a = random(2, 4)
    out = kernel[2](a)  # no race: it is created with that
    np.testing.assert_array_equal(out, np.concatenate([a, np.full((1, 4), 3)]))
    text = r"tensor 1 in shared HBM is float32\[3, 4\] filled with 0.0 on core 0 and float32\[3, 4\] filled with 1.0 on core 1"
    with pytest.raises(NkiError, match=rf"{text}.*NKI300"):
        kernel[2](a, ones=True)
    with pytest.raises(NkiError, match=r"is missing on core 0 and float32\[2, 2\] filled.*NKI300"):
        kernel[2](a, alone=True)


def test_a_shared_tensor_of_one_core() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray((1, 4), a.dtype, nl.shared_hbm)
        if nl.program_id(0) == 1:
            middle = nl.ndarray((1, 4), a.dtype, nl.shared_hbm)
            nisa.dma_copy(middle, a[1:2])
            nisa.dma_copy(out, middle)
        return out

    a = random(2, 4)
    np.testing.assert_array_equal(kernel[2](a), a[1:2])


def test_constants_belong_to_each_core() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        i, t = nl.program_id(0), nl.ndarray((1, 4), a.dtype)
        nisa.dma_copy(t, nl.shared_constant(np.full((1, 4), i + 5, np.float32)))
        nisa.dma_copy(out[i : i + 1], t)
        return out

    np.testing.assert_array_equal(kernel[2](random(2, 4))[:, 0], [5, 6])


def test_explicit_addresses_and_psum_belong_to_each_core() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray((2, 32, 32), nl.float32, nl.shared_hbm)
        i = nl.program_id(0)
        t = nl.ndarray((32, 32), a.dtype, address=(32, 128))
        u = nl.ndarray((32, 32), a.dtype, address=(64, 512))
        nisa.dma_copy(t, a[i])
        swap(t, u)
        p = nl.ndarray((32, 32), nl.float32, nl.psum)
        nisa.nc_matmul(p, stationary=t, moving=t)
        nisa.tensor_copy(t, p)
        nisa.tensor_tensor(t, t, u, op=nl.add)
        nisa.dma_copy(out[i], t)
        return out

    a = random(2, 32, 32)
    expected = a.transpose(0, 2, 1).astype(np.float64) @ a + a[::-1]
    np.testing.assert_allclose(kernel[2](a), expected, rtol=1e-5, atol=1e-5)


def test_values_can_be_looked_at_before_cores_exchange_any() -> None:
    @nki.jit
    def kernel(a: Any, *, late: bool) -> Any:
        t, u = nl.ndarray((1, 4), a.dtype), nl.ndarray((1, 4), a.dtype)
        nisa.dma_copy(t, a[0:1])
        if not late:
            assert recorder().peek(t)[0, 0] == 7
        swap(t, u)
        if late:
            recorder().peek(u)
        return a

    a = np.full((2, 4), 7, np.float32)
    kernel[2](a, late=False)
    with pytest.raises(NkiError, match=r"after sendrecv, which needs.*device_print.*NKI305"):
        kernel[2](a, late=True)


# --- refusals ----------------------------------------------------------------------------------


@nki.jit
def wrong(how: str) -> None:  # noqa: C901, PLR0912 (a table of mistakes)
    i = nl.program_id(0)
    t, u = nl.zeros((1, 4), nl.float32), nl.zeros((1, 4), nl.float32)
    shared = nl.ndarray((2, 4) if how != "shape" or i else (2, 5), nl.float32, nl.shared_hbm)
    if how == "pipe":
        swap(t, u, i)
    elif how in ("alone", "barrier alone"):
        if i == 0:
            if how == "alone":
                swap(t, u)
            else:
                nisa.core_barrier(shared, (0, 1))
    elif how == "kinds":
        if i == 0:
            swap(t, u)
        else:
            nisa.core_barrier(shared, (0, 1))
    elif how == "ranks":
        nisa.sendrecv(src=t, dst=u, send_to_rank=1, recv_from_rank=0, pipe_id=0)
    elif how == "tiles":
        x = nl.zeros((1, 4 + i), nl.float32)
        swap(x, nl.zeros((1, 4 + i), nl.float32))
    elif how == "count":
        with recorder().for_loop(0, 2 + i):
            pass
    elif how == "no loop":
        if i == 1:
            with recorder().for_loop(0, 2):
                pass
    elif how == "nested":
        with recorder().for_loop(0, 2):
            if i == 0:
                with recorder().for_loop(0, 2):
                    pass
    elif how == "loop":
        with recorder().for_loop(0, 2):
            if i == 0:
                swap(t, u)
        if i == 1:
            swap(t, u)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("shape", r"tensor 0 in shared HBM is float32\[2, 5\] on core 0 and float32\[2, 4\] on core 1; .*"
                  r"test_merge.py:\d+; .*same tensors in nl.shared_hbm.*NKI300"),
        ("pipe", r"core 0 waits at sendrecv with pipe_id 0, and core 1 is at sendrecv with pipe_id "
                 r"1 at .*test_merge.py:\d+; .*same order \[NKI302"),
        ("alone", r"core 0 waits at sendrecv with pipe_id 0, and core 1 does not come to one.*NKI302"),
        ("barrier alone", r"core 0 waits at core_barrier, and core 1 does not come to one.*NKI302"),
        ("kinds", r"core 0 waits at sendrecv .*, and core 1 is at core_barrier at .*NKI302"),
        ("ranks", r"core 0 receives from core 0 in sendrecv with pipe_id 0, and core 0 sends to core "
                  r"1 at .*NKI303"),
        ("tiles", r"core 0 receives float32\[1, 4\] in sendrecv, and core 1 sends float32\[1, 5\] at "
                  r".*same shape and data type.*NKI303"),
        ("count", r"core 0 runs a for loop from 0 to 2 in steps of 1 at .* on the device where core "
                  r"1 runs a for loop from 0 to 3 .*same control flow.*NKI301"),
        ("no loop", r"core 0 runs none on the device where core 1 runs a for loop.*NKI301"),
        ("nested", r"core 0 runs a for loop.* where core 1 runs none.*NKI301"),
        ("loop", r"core 0 waits at a loop on the device, and core 1 is at sendrecv .*NKI302"),
    ],
)  # fmt: skip
def test_refusals(how: str, text: str) -> None:
    with pytest.raises(NkiError, match=text):
        wrong[2](how)


@pytest.mark.parametrize("how", ["pipe", "kinds"])
def test_exchanges_need_two_cores(how: str) -> None:
    text = r"sendrecv with pipe_id 0 waits for core 1, and the kernel runs on core 0.*kernel\[2\]"
    with pytest.raises(NkiError, match=text + ".*NKI302"):
        wrong(how)
