"""NrtpyModel: loading, calls, errors with their statuses, benchmarks, traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import nrtpy
from neuronxcc.neff import read_neff, write_neff
from nrtpy import NrtError, NrtpyError, NrtpyModel, NrtpyTensor
from tests.nrtpy.neffs import arrays_of, compile_jax, tensors_for

A = np.arange(12, dtype=np.float32).reshape(4, 3)
B = A[::-1] - 3


def changed(path: Path, folder: Path, **facts: Any) -> Path:
    """The same program in a NEFF that says something else about itself."""
    program, info = read_neff(path.read_bytes())
    target = folder / "changed.neff"
    target.write_bytes(write_neff(program, replace(info, **facts)))
    return target


def test_the_documented_interface(small: Path) -> None:
    model = NrtpyModel.load_from_neff(small)
    assert model.name == "small"
    assert list(model.input_tensors_info) == ["a.1", "b.1"]
    first = model.input_tensors_info["a.1"]
    assert (first.shape, first.size, first.dtype) == ([4, 3], 48, np.dtype(np.float32))
    assert list(model.output_tensors_info) == ["output_0", "output_1"]
    second = model.output_tensors_info["output_1"]
    assert (second.shape, second.size, second.dtype) == ([4, 4], 32, np.dtype(ml_dtypes.bfloat16))
    inputs = tensors_for(model, [A, B])
    outputs = model(inputs=inputs)
    assert outputs is not None
    assert [o.name for o in outputs.values()] == list(outputs) == ["output_0", "output_1"]
    np.testing.assert_array_equal(outputs["output_0"].numpy(), A + B)
    given = {name: NrtpyTensor.from_numpy(o.numpy() * 0, name) for name, o in outputs.items()}
    assert model(inputs, outputs=given) is None
    np.testing.assert_array_equal(given["output_0"].numpy(), A + B)
    inputs["a.1"].write_from_numpy(B)
    model(inputs, given)
    np.testing.assert_array_equal(given["output_0"].numpy(), B + B)
    assert repr(model) == f"NrtpyModel('small', {small}, core 0)"
    assert NrtpyModel.load_from_neff(str(small), name="mine").name == "mine"


def test_another_core(small: Path) -> None:
    model = NrtpyModel.load_from_neff(small, core_id=2)
    outputs = model(tensors_for(model, [A, B], core_id=2))
    assert outputs is not None
    assert str(outputs["output_0"]._ref.memory().device) == "neuron:2"


def _inputs(model: NrtpyModel) -> dict[str, NrtpyTensor]:
    return tensors_for(model, [A, B])


def _tensor(shape: tuple[int, ...] = (4, 3), dtype: Any = np.float32, core: int = 0) -> NrtpyTensor:
    return NrtpyTensor.from_numpy(np.zeros(shape, dtype), core_id=core)


WRONG: dict[str, tuple[Callable[[NrtpyModel], Any], str]] = {
    "missing": (
        lambda m: m({"a.1": _tensor()}), "inputs ['b.1'] are missing; they are ['a.1', 'b.1']",
    ),
    "unknown": (
        lambda m: m({**_inputs(m), "c": _tensor()}), "['c'] are no inputs of it; they are ['a.1'",
    ),
    "misspelt": (
        lambda m: m({"a": _tensor(), "b.1": _tensor()}),
        "inputs ['a.1'] are missing, and ['a'] are no inputs of it; they are ['a.1', 'b.1']",
    ),
    "shape": (
        lambda m: m({**_inputs(m), "b.1": _tensor((4, 4))}),
        "input 'b.1' must be float32[4, 3], 48 bytes, got float32[4, 4], 64 bytes",
    ),
    "dtype": (
        lambda m: m({**_inputs(m), "b.1": _tensor(dtype=np.int32)}),
        "input 'b.1' must be float32[4, 3], 48 bytes, got int32[4, 3], 48 bytes",
    ),
    "core": (
        lambda m: m({**_inputs(m), "b.1": _tensor(core=1)}),
        "input 'b.1' lies on core 1, the model on core 0",
    ),
    "outputs": (
        lambda m: m(_inputs(m), {"output_0": _tensor()}), "outputs ['output_1'] are missing",
    ),
    "more outputs": (
        lambda m: m(_inputs(m), {**(m(_inputs(m)) or {}), "z": _tensor()}), "['z'] are no outputs",
    ),
    "an output's shape": (
        lambda m: m(_inputs(m), {**(m(_inputs(m)) or {}), "output_0": _tensor((2,))}),
        "output 'output_0' must be float32[4, 3], 48 bytes, got float32[2], 8 bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_tensors(name: str, small: Path) -> None:
    model = NrtpyModel.load_from_neff(small)
    call, text = WRONG[name]
    with pytest.raises(NrtError) as raised:
        call(model)
    assert str(raised.value).startswith("NRT Error NRT_EXEC_BAD_INPUT(1002): Failed to execute")
    assert text in str(raised.value)


def test_what_is_no_tensor(small: Path) -> None:
    model = NrtpyModel.load_from_neff(small)
    with pytest.raises(TypeError, match=r"'a.1' must be an NrtpyTensor, got ndarray; .*from_numpy"):
        model({"a.1": A, "b.1": B})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="inputs must be tensors by name, got list"):
        model([A, B])  # type: ignore[arg-type]
    inputs = _inputs(model)
    nrtpy.get_nrtpy_singleton().free_tensor(inputs["b.1"])
    with pytest.raises(NrtpyError, match="the tensor was freed"):
        model(inputs)
    nrtpy.reset()
    with pytest.raises(NrtpyError, match=r"NRT_CLOSED\(14\)"):
        model(_inputs(model))


def test_files_that_cannot_be_loaded(small: Path, tmp_path: Path) -> None:
    content = small.read_bytes()
    cases: dict[str, tuple[bytes, str]] = {
        "none": (b"", "NRT_INVALID(2): Failed to load model"),
        "cut": (content[:-1], "the file is cut off or too long"),
        "flipped": (content[:-9] + bytes([content[-9] ^ 1]) + content[-8:], "the file is damaged"),
        "vendor": (
            content[:544] + (0x100).to_bytes(8, "little") + content[552:],
            "features: 0x100 are not supported. Currently supporting: 0x100000000000000. The file",
        ),
    }
    for data, text in cases.values():
        (tmp_path / "x.neff").write_bytes(data)
        with pytest.raises(NrtError) as raised:
            NrtpyModel.load_from_neff(tmp_path / "x.neff")
        assert text in str(raised.value)
    with pytest.raises(NrtError, match=r"NRT_FAILURE\(1\): Failed to load model .*No such file"):
        NrtpyModel.load_from_neff(tmp_path / "missing.neff")
    with pytest.raises(NrtError, match=r"NRT_LOAD_NOT_ENOUGH_NC\(9\)"):
        NrtpyModel.load_from_neff(small, core_id=-1)
    with pytest.raises(NrtError, match=r"NRT_INVALID\(2\).*there is no rank 2 among 2"):
        NrtpyModel.load_from_neff(small, rank_id=2, world_size=2)


def test_targets_and_logical_cores(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NEURON_RT_ALLOW_LEGACY_NEFF", raising=False)
    old = changed(small, tmp_path, target="trn1")
    with pytest.raises(
        NrtError, match=r"VERSION\(10\).*trn1, this machine is a trn2: compile it a"
    ):
        NrtpyModel.load_from_neff(old)
    monkeypatch.setenv("NEURON_RT_ALLOW_LEGACY_NEFF", "TRUE")
    NrtpyModel.load_from_neff(old)
    new = changed(small, tmp_path, target="trn3")
    with pytest.raises(
        NrtError, match=r"VERSION\(10\).*for trn3, this machine is a trn2"
    ) as raised:
        NrtpyModel.load_from_neff(new)
    assert "NEURON_RT_ALLOW_LEGACY_NEFF" not in str(raised.value)
    one = changed(small, tmp_path, lnc=1)
    with pytest.raises(NrtError, match=r"NRT_INVALID\(2\).*of 1 physical ones, here they have 2"):
        NrtpyModel.load_from_neff(one)


def test_the_hash_is_always_checked(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray(small.read_bytes())
    content[200] ^= 1  # of the hash
    (tmp_path / "x.neff").write_bytes(content)
    for value in ("false", "true"):
        monkeypatch.setenv("NEURON_RT_VALIDATE_HASH", value)
        with pytest.raises(NrtError, match="does not have the hash in the header"):
            NrtpyModel.load_from_neff(tmp_path / "x.neff")


@pytest.fixture(scope="module")
def logarithm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("neffs") / "logarithm.neff"
    return compile_jax(path, lambda x, n: (jnp.log(x), n), A, np.int32(1))


@pytest.mark.parametrize(
    ("variable", "value"),
    [("NEURON_FAIL_ON_NAN", "1"), ("NEURON_RT_NUMERICAL_ERRORS_VERBOSITY", "critical")],
)
def test_results_that_are_no_numbers(
    variable: str, value: str, logarithm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    one = np.array(1, np.int32)
    model = NrtpyModel.load_from_neff(logarithm)
    arrays_of(model, tensors_for(model, [-A - 1, one]))  # is not reported unless that is asked for
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("NEURON_RT_DBG_DUMP_INPUTS_ON_ERR", "1003")
    monkeypatch.chdir(tmp_path)
    model = NrtpyModel.load_from_neff(logarithm)
    arrays_of(model, tensors_for(model, [A + 1, one]))
    assert capfd.readouterr().err == ""
    given = {
        name: NrtpyTensor.from_numpy(np.zeros(info.shape, info.dtype), name)
        for name, info in model.output_tensors_info.items()
    }
    with pytest.raises(NrtError, match=r"NUM_ERR\(1003\).*NaN in the outputs output_0$"):
        model(tensors_for(model, [-A - 1, one]), given)
    assert np.isnan(given["output_0"].numpy()).all()  # it did complete
    (folder,) = tmp_path.glob("input_dump_*_h_nn_1*")
    assert (folder / "input0.bin").read_bytes() == (-A - 1).tobytes()
    assert (folder / "input1.bin").read_bytes() == one.tobytes()
    assert (folder / "model_name.txt").read_text() == str(logarithm)
    said = capfd.readouterr().err
    assert "NMGR:dlr_infer" in said
    assert "completed with err: 1003" in said
    assert "2 input tensors were dumped successfully to directory" in said


def test_failures_of_a_program_have_statuses(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = NrtpyModel.load_from_neff(small)
    for error, status in (
        (RuntimeError("x\nException raised from somewhere"), "NRT_EXEC_COMPLETED_WITH_ERR(1004)"),
        (RuntimeError("ranks are missing [NRT_TIMEOUT(5)]"), "NRT_TIMEOUT(5)"),
        (IndexError("index 9 of 4"), "NRT_EXEC_OOB(1006)"),
        (MemoryError("no memory"), "NRT_FAIL_HOST_MEM_ALLOC(11)"),
        (ValueError("argument 0"), "NRT_EXEC_BAD_INPUT(1002)"),
    ):

        def fail(_args: Any, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(model, "_run", fail)
        with pytest.raises(NrtError) as raised:
            model(_inputs(model))
        assert str(raised.value).startswith(f"NRT Error {status}: Failed to execute model")
        assert "Exception raised from" not in str(raised.value)
        assert raised.value.__cause__ is error


@pytest.mark.parametrize("mode", ["device", "host"])
def test_benchmark(mode: str, small: Path) -> None:
    model = NrtpyModel.load_from_neff(small)
    result = model.benchmark(_inputs(model), warmup_iter=1, benchmark_iter=4, mode=mode)
    assert (result.iterations, result.warmup_iterations, len(result.durations_ms)) == (4, 1, 4)
    assert 0 < result.min_ms == min(result.durations_ms) <= result.mean_ms <= result.max_ms
    assert result.std_dev_ms == pytest.approx(np.std(result.durations_ms))
    given = {
        name: NrtpyTensor.from_numpy(np.zeros(info.shape, info.dtype))
        for name, info in model.output_tensors_info.items()
    }
    assert model.benchmark(_inputs(model), given, mode=mode).iterations == 5
    np.testing.assert_array_equal(given["output_0"].numpy(), A + B)


def test_wrong_benchmarks(small: Path) -> None:
    model = NrtpyModel.load_from_neff(small)
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"mode": "chip"}, "mode must be one of device, host, got 'chip'"),
        ({"benchmark_iter": 0}, "benchmark_iter must be at least 1, got 0"),
        ({"warmup_iter": -1}, "warmup_iter must not be negative, got -1"),
    )
    for options, text in cases:
        with pytest.raises(ValueError, match=text):
            model.benchmark(_inputs(model), **options)


def test_traces(small: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model.neff"
    copy.write_bytes(small.read_bytes())
    model = NrtpyModel.load_from_neff(copy)
    outputs = model(_inputs(model), save_trace=True)
    assert outputs is not None
    np.testing.assert_array_equal(outputs["output_0"].numpy(), A + B)
    document = json.loads((tmp_path / "model.ntff").read_text())
    assert document["format"].startswith("Chrome trace")
    names = {event.get("name", "") for event in document["traceEvents"]}
    assert any("gemm" in name for name in names)
    model(_inputs(model), save_trace=True, ntff_name=str(tmp_path / "other.ntff"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.neff", "model.ntff", "other.ntff"]
    with pytest.raises(NrtError, match=r"NRT_FAILURE\(1\)"):
        model(_inputs(model), save_trace=True, ntff_name=str(tmp_path / "no" / "x.ntff"))
