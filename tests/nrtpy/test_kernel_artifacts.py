"""NKI_ARTIFACTS_DIR: kernels that nrtpy runs from files, after the public tutorial on debugging."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from neuronxcc.neff import read_neff
from neuronxcc.perf.graphs.kept import predicted_us
from nki.perf import predict
from nrtpy import NrtError, NrtpyModel, NrtpyTensor
from tests.device.enqueued import to_the_end


@nki.jit
def gather(src_tensor, row):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    index = nl.ndarray((128, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=index, value=row)
    found = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=found.ap(pattern=[[512, 128], [1, 512]], offset=0),
        src=src_tensor.ap(
            pattern=[[512, 128], [1, 512]], offset=0, vector_offset=index, indirect_dim=0
        ),
    )
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    nl.store(out, found)
    return out


@nki.jit
def increase(a_input, b_input):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    """Adds to its first argument, and returns twice the second."""
    total = nl.add(nl.load(a_input), nl.load(b_input))
    nl.store(a_input, total)
    out = nl.ndarray(b_input.shape, dtype=b_input.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(nl.load(b_input), 2))
    return out


@nki.jit
def double(x):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    """Each core does its part of the rows."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = x.shape[0] // nl.num_programs(0)
    first = nl.program_id(0) * rows
    nl.store(out[first : first + rows], nl.multiply(nl.load(x[first : first + rows]), 2))
    return out


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    where = tmp_path / "new" / "artifacts"
    monkeypatch.setenv("NKI_ARTIFACTS_DIR", str(where))
    return where


def one_output(model: NrtpyModel, **arrays: np.ndarray) -> np.ndarray:
    inputs = {name: NrtpyTensor.from_numpy(array, name=name) for name, array in arrays.items()}
    outputs = model(inputs=inputs)
    assert outputs is not None
    (output,) = outputs.values()
    result: np.ndarray = output.numpy()
    return result


def test_its_file_says_what_it_is_predicted_to_take(folder: Path) -> None:
    source = np.zeros((128, 512), np.float32)
    gather(source, 5)
    program = read_neff((folder / "kernel.neff").read_bytes()).program
    assert predicted_us(program.meta) == predict(gather, source, 5).device_us > 0


def test_a_kernel_runs_from_its_file(folder: Path) -> None:
    source = np.arange(128 * 512, dtype=np.float32).reshape(128, 512)
    direct = gather(source, 5)
    model = NrtpyModel.load_from_neff(folder / "kernel.neff")
    assert list(model.output_tensors_info) == ["output_0"]
    (name,) = model.input_tensors_info
    first = model.input_tensors_info[name]
    assert (name, first.shape, first.size) == ("src_tensor", [128, 512], 4 * 128 * 512)
    np.testing.assert_array_equal(one_output(model, src_tensor=source + 1), direct + 1)
    assert [path.name for path in folder.iterdir()] == ["kernel.neff"]


def test_an_index_out_of_bounds_has_the_status_of_the_runtime(folder: Path) -> None:
    source = np.ones((128, 512), np.float32)
    with pytest.raises(IndexError, match="index 99999 is out of bounds"):
        to_the_end(gather, source, 99999)
    model = NrtpyModel.load_from_neff(folder / "kernel.neff")  # it was compiled
    with pytest.raises(NrtError, match=r"NRT_EXEC_OOB\(1006\).*index 99999.*artifacts\.py:\d+"):
        one_output(model, src_tensor=source)


def test_a_written_argument_is_written(folder: Path) -> None:
    a, b = np.full((4, 3), 1, np.float16), np.full((4, 3), 2, np.float16)
    increase(a.copy(), b)
    model = NrtpyModel.load_from_neff(folder / "kernel.neff")
    inputs = {
        name: NrtpyTensor.from_numpy(array, name=name)
        for name, array in (("a_input", a), ("b_input", b))
    }
    outputs = model(inputs=inputs)
    assert outputs is not None
    np.testing.assert_array_equal(outputs["output_0"].numpy(), 2 * b)
    np.testing.assert_array_equal(inputs["a_input"].numpy(), a + b)


@pytest.mark.parametrize(("cores", "lnc"), [(None, 2), (1, 2), (2, 2), (1, 1), (2, 1)])
def test_the_file_says_for_which_logical_cores_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cores: int | None, lnc: int
) -> None:
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    kernel = double if cores is None else double[cores]
    with monkeypatch.context() as patch:
        patch.setenv("NEURON_LOGICAL_NC_CONFIG", str(lnc))
        np.testing.assert_array_equal(kernel(x), 2 * x)
    info = read_neff((folder / "kernel.neff").read_bytes()).info
    assert (info.target, info.lnc) == ("trn2", max(lnc, cores or 1))
    if info.lnc == 2:  # as this process's cores are
        model = NrtpyModel.load_from_neff(folder / "kernel.neff")
        np.testing.assert_array_equal(one_output(model, x=x + 1), 2 * (x + 1))


def test_the_file_is_for_the_target_that_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = np.ones((4, 3), np.float16)
    for variables, target in (
        ({"NEURON_CC_FLAGS": "--target trn1"}, "trn1"),
        ({"NEURON_CC_FLAGS": "--target trn1", "NEURON_PLATFORM_TARGET_OVERRIDE": "trn3"}, "trn3"),
    ):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            increase(a, a)
        assert read_neff((folder / "kernel.neff").read_bytes()).info.target == target


def test_nothing_is_written_unless_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NKI_ARTIFACTS_DIR", "")
    increase(np.ones((4, 3), np.float16), np.ones((4, 3), np.float16))
    assert not folder.exists()
