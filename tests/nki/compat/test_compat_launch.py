"""How kernels of the first generation are made, launched and measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import nki as today
from nki.errors import NkiWarning
from tests.nki.compat.compat_tools import Array, random


@nki.jit
def doubled(a: Any) -> Any:
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    tile = nl.load(a)
    nl.store(out, tile + tile)
    return out


def test_simulate_kernel_prints_and_returns(capsys: pytest.CaptureFixture[str]) -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.empty_like(a, buffer=nl.hbm)
        tile = nl.load(a)
        nl.device_print("value of a:", tile)
        nl.store(out, value=tile)
        return out

    a = np.array([[1.5, 2.5], [3.5, 4.5]], np.float32)
    np.testing.assert_array_equal(nki.simulate_kernel(kernel, a), a)
    assert capsys.readouterr().out == "value of a: [[1.5 2.5]\n [3.5 4.5]]\n"


def spmd(a: Any) -> Any:
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    i, j = nl.program_id(0), nl.program_id(1)
    assert nl.program_ndim() == 2
    assert (nl.num_programs(0), nl.num_programs(axes=1), nl.num_programs()) == (4, 2, 8)
    nl.store(out[i, j], nl.load(a[i, j]))
    return out


GRIDS = [(4, 2), (nl.spmd_dim(nl.nc(2), 2), 2), (nl.nc(2) * 2, 2), (nl.spmd_dim(2, nl.nc(2)), 2),
         (2 * nl.nc(2), 2)]  # fmt: skip


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_every_program_of_a_grid_runs(grid: Any) -> None:
    kernel = nki.jit(nki.jit(spmd), mode="simulation", platform_target="trn2")
    a = random(4, 2, 1, 1)
    np.testing.assert_array_equal(kernel[grid](a), a)


def test_programs_share_what_is_shared_and_arguments() -> None:
    @nki.jit
    def kernel(a: Any, total: Any) -> None:
        own = nl.ndarray((1, 4), dtype=a.dtype, buffer=nl.private_hbm)
        nl.store(own, nl.load(a[nl.ds(nl.program_id(0), 1), :]))
        nl.store(total[nl.ds(nl.program_id(0), 1), :], nl.load(own) + nl.program_id(0))

    a, total = random(3, 4), np.zeros((3, 4), np.float32)
    kernel[3](a, total)
    np.testing.assert_array_equal(total, a + np.arange(3, dtype=np.float32)[:, None])


@pytest.mark.parametrize("decorate", [nki.jit, nki.trace, nki.baremetal, nki.profile])
def test_every_decorator_makes_a_kernel(decorate: Any) -> None:
    a = random(8, 4)
    np.testing.assert_array_equal(decorate(doubled.func)(a), a + a)
    np.testing.assert_array_equal(decorate()(doubled.func)(a), a + a)


def test_a_kernel_within_a_kernel_is_a_function() -> None:
    @nki.jit
    def outer(a: Any) -> Any:
        return doubled(doubled(a))

    a = random(8, 4)
    np.testing.assert_array_equal(outer(a), 4 * a)
    assert isinstance(doubled, nki.FirstKernel)
    assert doubled.func.__name__ == "doubled"


def test_methods_can_be_kernels() -> None:
    class Scaled:
        factor = 3.0

        @nki.jit
        def kernel(self, a: Any) -> Any:
            out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
            nl.store(out, nl.load(a) * self.factor)
            return out

    a = random(8, 4)
    np.testing.assert_array_equal(Scaled().kernel(a), a * np.float32(3))


def test_equal_signatures_run_python_once() -> None:
    runs: list[int] = []

    @nki.jit
    def kernel(a: Any, n: int = 1) -> Any:
        runs.append(n)
        return doubled(a)

    a = random(8, 4)
    for n in (1, 1, 2):
        kernel(a, n)
    assert runs == [1, 2]


def test_platform_target_is_what_the_kernel_is_built_for() -> None:
    found = []

    def kernel(a: Any) -> Any:
        found.append(nisa.get_nc_version())
        return doubled(a)

    for target in ("trn1", "trn2", "trn3", None):
        nki.jit(kernel, platform_target=target)(random(8, 4))
    version = nisa.nc_version
    assert found == [version.gen2, version.gen3, version.gen4, version.gen4]
    assert version.gen2 < version.gen3


def test_benchmark_predicts_measures_and_leaves_arguments_alone() -> None:
    @nki.benchmark(warmup=1, iters=5)
    def measured(a: Any, total: Any) -> Any:
        nl.store(total, nl.load(total) + nl.load(a))
        return doubled(a)

    a, total = random(8, 4), np.zeros((8, 4), np.float32)
    before = measured.benchmark_result
    assert before is None
    np.testing.assert_array_equal(measured(a, total), a + a)
    np.testing.assert_array_equal(total, a)
    host = measured.benchmark_result.host_latency
    percentiles = [host.get_latency_percentile(p) for p in (0, 1, 10, 25, 50, 90, 99, 100)]
    assert percentiles == sorted(percentiles)
    assert percentiles[0] > 0
    assert "Latency(5 runs on this computer" in repr(host)
    latency = measured.benchmark_result.nc_latency
    expected = measured.predict(a, total).latency_us
    assert {latency.get_latency_percentile(p) for p in (0, 50, 99, 100)} == {round(expected)}
    assert f"predicted {expected:.0f} us on trn3" in repr(latency)


def test_the_predicted_time_is_that_of_the_target() -> None:
    def kernel(a: Any) -> Any:
        return doubled(a)

    a = random(128, 512)
    found = {}
    for target in ("trn1", "trn2", "trn3"):
        measured = nki.benchmark(kernel, warmup=0, iters=1, platform_target=target)
        measured(a)
        found[target] = measured.benchmark_result.nc_latency.prediction
        assert found[target].target == target
    assert found["trn1"].device_us > found["trn2"].device_us > found["trn3"].device_us


def test_profile_keeps_the_prediction_of_the_last_call() -> None:
    @nki.profile
    def kernel(a: Any) -> Any:
        return doubled(a)

    before = kernel.prediction
    assert before is None
    for shape in ((128, 512), (128, 2048)):
        a = random(*shape)
        np.testing.assert_array_equal(kernel(a), a + a)
        assert kernel.prediction.device_us == kernel.predict(a).device_us
        assert kernel.prediction.lines[0].file == __file__
    kernel[2](a)
    assert kernel.prediction.device_us > kernel.predict(a).device_us


@pytest.mark.parametrize("name", ["benchmark", "baremetal"])
def test_files_that_are_not_written_are_said(name: str) -> None:
    with pytest.warns(NkiWarning, match=rf"nki\.{name} writes no files here.*save_neff_name"):
        getattr(nki, name)(save_neff_name="file.neff")(doubled.func)


def test_results_keep_their_structure() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        tile = nl.load(a)
        return {"sbuf": tile, "list": [nl.matmul(tile, tile, transpose_x=True), None]}

    a = random(8, 4)
    got = kernel(a)
    np.testing.assert_array_equal(got["sbuf"], a)
    np.testing.assert_allclose(got["list"][0], a.T @ a, rtol=1e-6)
    assert got["list"][1] is None


def test_loop_reduce_reads_what_it_is_assigned_to() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        best = nl.full((8, 4), -1.0, dtype=nl.float32)
        total = nl.zeros((8, 8), dtype=nl.float32)
        for i in nl.affine_range(a.shape[0]):
            tile = nl.load(a[i])
            best = nl.loop_reduce(tile, op=np.maximum, loop_indices=[i])
            total[:, 2:6] = nl.loop_reduce(tile, op=np.add, loop_indices=i, dtype=nl.float32)
        return best, total

    a: Array = random(5, 8, 4) - np.float32(0.5)
    best, total = kernel(a)
    np.testing.assert_array_equal(best, np.maximum(a.max(0), -1))
    want = np.zeros((8, 8), np.float32)
    for part in a:
        want[:, 2:6] += part
    np.testing.assert_array_equal(total, want)


def test_spelling_out_keeps_closures_defaults_and_lines() -> None:
    bound, factor = 3, 2.0

    @nki.jit
    def kernel(a: Any, scale: float = factor, *, shift: float = 1.0) -> Any:
        p, f = nl.mgrid[0:8, 0:4]
        tile = nl.zeros((8, 4), dtype=nl.float32)
        tile[p, f] = nl.multiply(nl.load(a), scale, mask=(p < bound and f < 2))
        return tile + shift

    a = random(8, 4)
    want = np.ones((8, 4), np.float32)
    want[:3, :2] += a[:3, :2] * 2
    np.testing.assert_array_equal(kernel(a), want)
    recording = kernel.today().record(a)
    assert {file for file, _ in recording.locations} == {__file__}


def test_a_grid_leaves_its_measurement_in_the_kernel() -> None:
    kernel: Any = nki.benchmark(spmd, warmup=0, iters=2)
    a = random(4, 2, 1, 1)
    np.testing.assert_array_equal(kernel[4, 2](a), a)
    assert len(kernel.benchmark_result.host_latency.samples) == 2


def test_kernels_of_today_call_those_of_the_first_generation() -> None:
    @today.jit
    def kernel(a: Any) -> Any:
        return doubled(a)

    a = random(8, 4)
    np.testing.assert_array_equal(kernel(a), a + a)
    np.testing.assert_array_equal(today.simulate(doubled)(a), a + a)
