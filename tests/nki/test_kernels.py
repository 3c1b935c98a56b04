"""`nki.jit`: recording, signatures, loops of the device, and what is looked at meanwhile."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.context import current_run
from nki.errors import NkiError, NkiTypeError, NkiWarning
from nki.recorder import Recorder

Array = npt.NDArray[Any]


pytestmark = pytest.mark.usefixtures("executor", "own_cache")


def recorder() -> Recorder:
    found = current_run()
    assert isinstance(found, Recorder)
    return found


def random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@nki.jit
def add(a: Any, b: Any, scale: float = 1.0) -> Any:
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(a.shape[0] // 128):
        rows = slice(i * 128, (i + 1) * 128)
        x = nl.ndarray((128, a.shape[1]), dtype=a.dtype)
        y = nl.ndarray((128, a.shape[1]), dtype=a.dtype)
        nisa.dma_copy(dst=x, src=a[rows])
        nisa.dma_copy(dst=y, src=b[rows])
        nisa.tensor_scalar(dst=x, data=x, op0="multiply", operand0=scale)
        nisa.tensor_tensor(dst=x, data1=x, data2=y, op="add")
        nisa.dma_copy(dst=out[rows], src=x)
    return out


def test_kernel_runs_on_arrays() -> None:
    a, b = random(256, 32), random(256, 32)
    np.testing.assert_array_equal(add(a, b), a + b)
    np.testing.assert_array_equal(add(a, b, scale=2.0), a * 2 + b)
    half = a.astype(ml_dtypes.bfloat16)
    assert add(half, half).dtype == ml_dtypes.bfloat16


def test_a_kernel_names_its_function() -> None:
    """Public tools rewrite the source of ``kernel.func`` and run it with its globals."""
    source = inspect.getsource(add.func).replace("nl.affine_range", "nl.sequential_range")
    names = dict(add.func.__globals__)
    exec(source, names)  # noqa: S102 (it is this file's)
    a, b = random(256, 8), random(256, 8)
    simulated = nki.simulate(names[add.func.__name__])
    np.testing.assert_array_equal(simulated(a, b), add(a, b))
    assert simulated.func is names["add"].func
    assert add[1].func is add.func


def test_equal_signatures_are_recorded_once() -> None:
    runs = []

    @nki.jit
    def kernel(a: Any, n: int, flag: float | bool) -> Any:
        runs.append((n, flag))
        return a

    a, b = random(4, 4), random(4, 4)
    assert kernel(a, 1, flag=True) is a
    assert kernel(b, 1, flag=True) is b
    kernel(a, 1, flag=1.0)
    kernel(a, 2, flag=True)
    kernel(random(4, 5), 2, flag=True)
    assert runs == [(1, True), (1, 1.0), (2, True), (2, True)]


def test_many_instructions_take_little_memory() -> None:
    recording = add.record(random(512, 4), random(512, 4))
    assert len(list(recording.events())) == 20
    # One template for each kind of instruction: places differ only.
    assert len(recording.templates) == 4


def test_kernels_call_kernels_and_take_functions_and_objects() -> None:
    class Config(nl.NKIObject):
        width: int = 0
        op: Any = None

    @nki.jit
    def double(t: Any) -> None:
        nisa.tensor_scalar(dst=t, data=t, op0="multiply", operand0=2.0)

    @nki.jit
    def outer(pair: tuple[Any, Any], config: Config, pick: Any) -> tuple[Any, dict[str, Any]]:
        t = nl.ndarray((4, config.width), nl.float32)
        nisa.dma_copy(dst=t, src=pick(pair))
        double(t)
        out = nl.ndarray(t.shape, t.dtype, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=t)
        nisa.dma_copy(dst=pair[0], src=t)
        return out, {"first": pair[0], "row": out[1]}

    a, b = random(4, 3), random(4, 3) + 1
    out, more = outer((a, b), Config(width=3), lambda p: p[1])
    np.testing.assert_array_equal(out, b * 2)
    np.testing.assert_array_equal(more["row"], b[1] * 2)
    assert more["first"] is a
    np.testing.assert_array_equal(a, b * 2)


def test_products_accumulate_where_something_has_written() -> None:
    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        out = nl.ndarray((128, 64), nl.float32, nl.shared_hbm)
        x, y = nl.ndarray((128, 128), a.dtype), nl.ndarray((128, 64), b.dtype)
        nisa.dma_copy(dst=x, src=a)
        nisa.dma_copy(dst=y, src=b)
        ps = nl.ndarray((128, 64), nl.float32, nl.psum)
        nisa.nc_matmul(dst=ps[:, :32], stationary=x, moving=y[:, :32])
        nisa.nc_matmul(dst=ps, stationary=x, moving=y)  # adds to the first half only
        t = nl.ndarray((128, 64), nl.float32)
        nisa.tensor_copy(dst=t, src=ps)
        nisa.dma_copy(dst=out, src=t)
        return out

    a, b = random(128, 128), random(128, 64)
    product = a.T.astype(np.float64) @ b
    expected = product * np.where(np.arange(64) < 32, 2, 1)
    np.testing.assert_allclose(kernel(a, b), expected, rtol=1e-5, atol=1e-4)
    used = [event.template for event in kernel.record(a, b).events()]
    flags = [
        (t.row.name, t.accumulate, t.hidden) for t in used if t.row.name[:4] in ("nc_m", "fill")
    ]
    assert flags == [
        ("nc_matmul", False, False),
        ("fill", None, True),
        ("nc_matmul", True, False),
    ]


def test_product_in_a_loop_of_the_device_adds_from_the_second_iteration_on() -> None:
    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        out = nl.ndarray((32, 16), nl.float32, nl.shared_hbm)
        x, y = nl.ndarray((32, 32), a.dtype), nl.ndarray((32, 16), b.dtype)
        nisa.dma_copy(dst=x, src=a)
        nisa.dma_copy(dst=y, src=b)
        ps = nl.ndarray((32, 16), nl.float32, nl.psum)
        with recorder().for_loop(0, 3):
            nisa.nc_matmul(dst=ps, stationary=x, moving=y)
        t = nl.ndarray((32, 16), nl.float32)
        nisa.tensor_copy(dst=t, src=ps)
        nisa.dma_copy(dst=out, src=t)
        return out

    a, b = random(32, 32), random(32, 16)
    np.testing.assert_allclose(kernel(a, b), 3 * a.T @ b, rtol=1e-5, atol=1e-4)
    names = [e.template.row.name for e in kernel.record(a, b).events()]
    assert names.index("fill") < names.index("nc_matmul")


def test_loops_count_on_the_device() -> None:
    @nki.jit
    def kernel(x: Any, count: Any) -> Any:
        out = nl.zeros(x.shape, x.dtype, nl.shared_hbm)
        number = nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(dst=number, src=count)
        upper = nisa.register_alloc()
        nisa.register_load(upper, number)
        t = nl.ndarray((1, 4), x.dtype)
        with recorder().for_loop(0, upper, 2) as i:
            nisa.dma_copy(dst=t, src=x.ap([[4, 1], [1, 4]], scalar_offset=i, indirect_dim=1))
            nisa.tensor_scalar(dst=t, data=t, op0="add", operand0=1.0)
            nisa.dma_copy(dst=out.ap([[4, 1], [1, 4]], scalar_offset=i, indirect_dim=1), src=t)
        return out

    x = np.arange(16, dtype=np.float32).reshape(1, 16)
    result = kernel(x, np.array([[3]], np.int32))
    np.testing.assert_array_equal(result[0, :6], np.arange(1, 7))
    np.testing.assert_array_equal(result[0, 6:], 0)
    result = kernel(x, np.array([[9]], np.int32))
    np.testing.assert_array_equal(result[0, :12], np.arange(1, 13))
    assert len(kernel._launches) == 1


def test_while_runs_until_its_register_is_zero() -> None:
    @nki.jit
    def kernel(count: Any) -> Any:
        out = nl.ndarray((1, 1), nl.int32, nl.shared_hbm)
        n, total = nl.ndarray((1, 1), nl.int32), nl.zeros((1, 1), nl.int32)
        nisa.dma_copy(dst=n, src=count)
        r = nisa.register_alloc()
        nisa.register_load(r, n)
        with recorder().while_loop(r) as (current, following):
            nisa.tensor_tensor(dst=total, data1=total, data2=n, op="add")
            nisa.tensor_scalar(dst=n, data=n, op0="subtract", operand0=1)
            nisa.register_load(current, n)
            following.append(current)
        nisa.dma_copy(dst=out, src=total)
        return out

    assert kernel(np.array([[4]], np.int32)).item() == 10
    assert kernel(np.array([[0]], np.int32)).item() == 0


def test_memory_that_nothing_has_written_is_found_exactly() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        t = nl.ndarray(a.shape, a.dtype)
        nisa.dma_copy(dst=t[:, :3], src=a[:, :3])
        nisa.dma_copy(dst=out, src=t)
        return out

    a = random(4, 4)
    with pytest.warns(NkiWarning, match=r"dma_copy src reads a tensor in SBUF at \[0, 3\].*NKI204"):
        result = kernel(a)
    np.testing.assert_array_equal(result[:, :3], a[:, :3])
    assert np.isnan(result[:, 3]).all()


def test_strict_checks_refuse_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        nisa.dma_copy(dst=a, src=nl.ndarray(a.shape, a.dtype))
        return a

    monkeypatch.setenv("TORCH_NEURONX_NKI_CHECKS", "strict")
    with pytest.raises(NkiError, match=r"nothing has written; .*test_kernels.py:\d+; .*NKI204"):
        kernel(random(2, 2))
    monkeypatch.setenv("TORCH_NEURONX_NKI_CHECKS", "off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel(random(2, 2))


def test_values_are_there_while_the_kernel_is_recorded() -> None:
    seen = []

    @nki.jit
    def kernel(a: Any) -> Any:
        t = nl.ndarray(a.shape, a.dtype)
        nisa.dma_copy(dst=t, src=a)
        seen.append(recorder().peek(t).copy())
        nisa.tensor_scalar(dst=a_out(t), data=t, op0="add", operand0=1.0)
        seen.append(recorder().peek(t[0:1]).copy())
        nisa.dma_copy(dst=a, src=t)
        return a

    def a_out(t: Any) -> Any:
        return t

    a = random(2, 2)
    before = a.copy()
    kernel(a)
    np.testing.assert_array_equal(seen[0], before)
    np.testing.assert_array_equal(seen[1], before[0:1] + 1)
    np.testing.assert_array_equal(a, before + 1)  # looking changed nothing: added once
    kernel(a)
    assert len(seen) == 4  # what looks at values is recorded anew


def test_tensors_print_what_they_hold(capsys: pytest.CaptureFixture[str]) -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        t = nl.ndarray(a.shape, a.dtype, name="tile")
        nisa.dma_copy(dst=t, src=a)
        print(t)  # noqa: T201 (what is tested)
        recorder().device_print("again", t)
        return a

    kernel(np.array([[1.5, 2.5]], np.float32))
    text = "<tensor 'tile' in SBUF: float32[1, 2]>\n[[1.5 2.5]]\n"
    assert capsys.readouterr().out == text + "again [[1.5 2.5]]\n"


def test_looking_at_values_needs_values() -> None:
    @nki.jit
    def kernel(a: Any) -> None:
        with recorder().for_loop(0, 1):
            str(a)

    with pytest.raises(NkiError, match=r"in the body of a loop.*nl.device_print.*NKI205"):
        kernel(random(1, 1))


def test_imprecise_types_can_be_stored_as_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, nl.bfloat16, nl.shared_hbm)
        t = nl.ndarray(a.shape, nl.bfloat16)
        nisa.dma_copy(dst=t, src=a)
        nisa.tensor_scalar(dst=t, data=t, op0="add", operand0=1e-3)
        nisa.dma_copy(dst=out, src=t)
        nisa.dma_copy(dst=a, src=t)
        return out

    ones = np.ones((2, 2), ml_dtypes.bfloat16)
    a = ones.copy()
    assert (kernel(a) == 1).all()
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    result = kernel(a)
    assert result.dtype == np.float32
    assert (result == np.float32(1.001)).all()
    assert (a == ones).all()
    assert a.dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("run", "error", "text"),
    [
        (lambda k: k(1), NkiTypeError, r"missing a required argument: 'b'; .* \(a: .*NKI207"),
        (lambda k: k[3](1, 2), NkiError, r"add\[3\]; .*kernel\[1\] or kernel\[2\].*NKI209"),
        (lambda k: k(bytearray(b"x"), 1), NkiTypeError, "type bytearray is neither.*NKI207"),
    ],
)
def test_refusals_of_launches(run: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(add)


def test_results_lie_in_hbm() -> None:
    @nki.jit
    def kernel(kind: str) -> Any:
        return nl.zeros((2, 2), nl.float32) if kind == "sbuf" else kind

    with pytest.raises(NkiError, match=r"returns <a tensor in SBUF.*nisa.dma_copy.*NKI208"):
        kernel("sbuf")
    with pytest.raises(NkiTypeError, match=r"returns a str.*NKI208"):
        kernel("x")


def test_registers_are_read_after_they_are_written() -> None:
    @nki.jit
    def kernel(which: str) -> None:
        r = nisa.register_alloc()
        if which == "read":
            nisa.register_move(nisa.register_alloc(), r)
        elif which == "bound":
            with recorder().for_loop(0, r):
                pass
        elif which == "frozen":
            with recorder().for_loop(0, 2) as i:
                nisa.register_move(i, 3)
        elif which == "step":
            with recorder().for_loop(0, 2, 0):
                pass
        elif which == "float":
            with recorder().for_loop(0, 2.5):
                pass

    for which, text in {
        "read": "read before it was written.*NKI136",
        "bound": "read before it was written.*NKI136",
        "frozen": "a loop's counter is written.*NKI136",
        "step": "has the step 0.*NKI200",
        "float": "upper of a loop on the device is a float.*NKI202",
    }.items():
        with pytest.raises(NkiError, match=text):
            kernel(which)


def test_platform_target_is_refused() -> None:
    with pytest.raises(NkiError, match=r"NEURON_PLATFORM_TARGET_OVERRIDE=trn1.*NKI207"):
        nki.jit(platform_target="trn2")(lambda: None)


def test_target_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = []

    @nki.jit
    def kernel() -> None:
        versions.append(nisa.get_nc_version())

    for name in ("trn1", "gen3", "trn3"):
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", name)
        kernel()
    gen = nisa.nc_version
    assert versions == [gen.gen2, gen.gen3, gen.gen4]


@nki.jit
def scheduled(t: Any) -> None:
    a, b = nl.ndarray(t.shape, t.dtype), nl.ndarray(t.shape, t.dtype)
    nisa.dma_copy(dst=a, src=t, name="load")
    nisa.reciprocal(dst=b, data=a, name="recip")
    nisa.tensor_scalar(dst=b, data=a, op0="add", operand0=1.0, name="plus")
    nisa.tensor_scalar(dst=b, data=b, op0="add", operand0=1.0, name="again")
    nisa.tensor_scalar(dst=b, data=b, op0="add", operand0=1.0, name="again")


def test_schedules_are_checked() -> None:
    a = random(2, 2)
    scheduled.with_schedule([("plus", "recip"), ("recip", ["load"])])(a)
    for edges, text in (
        ([("plus", "minus")], r"names 'minus', and no instructions.*name='minus'.*NKI281"),
        ([("plus", "again")], r"names 'again', and 2 instructions.*NKI281"),
        ([("plus", "recip"), ("recip", ["load", "plus"])], r"plus waits for recip.*NKI282"),
        ([("plus",)], r"\('plus',\) is no edge.*NKI280"),
        (3, "3 is no edge.*NKI280"),
    ):
        with pytest.raises(NkiError, match=text):
            scheduled.with_schedule(edges)(a)
