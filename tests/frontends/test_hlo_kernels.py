"""Kernels of our NKI in a module, printing, and the product that gathers first."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nki
import nki.language as nl
from neuronxcc.frontends.hlo import HloError, import_hlo
from neuronxcc.frontends.hlo.custom_kernels import kernel_file
from neuronxcc.frontends.model import load_model
from neuronxcc.ir.reference import evaluate_ranks
from neuronxcc.options import parse
from tests.frontends.hlo_text import natively
from tests.frontends.modules import Computation, custom, module, shape, tuple_shape

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@nki.jit
def add_one(x: Any) -> Any:
    """x + 1."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nl.store(out, nl.add(tile, 1.0))
    return out


@pytest.fixture
def file(tmp_path: Path) -> Path:
    launch = add_one.prepared([((X,), {})])[0]
    folder = tmp_path / "71adab98b5b4ec7f"
    folder.mkdir()
    path = folder / "add_one.neff"
    path.write_bytes(kernel_file(launch.program, launch.written))
    return path


def kernel_call(path: object, *, encoded: bool = True, result: str = "f32[3,4]") -> bytes:
    config = json.dumps({"func_name": "add_one", "grid": [], "kernel_file": path}).encode()
    config = base64.b64encode(config) if encoded else config
    return custom("AwsNeuronCustomNativeKernel", ["f32[3,4]"], result, config)


@pytest.mark.parametrize("encoded", [True, False])
def test_a_kernel_is_a_step_of_the_program(file: Path, encoded: bool) -> None:
    imported = import_hlo(kernel_call(str(file), encoded=encoded))
    np.testing.assert_array_equal(natively(imported, [X])[0], X + 1)


def test_a_kernel_is_found_by_its_last_folder(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    imported = import_hlo(kernel_call(f"/home/user/{file.parent.name}/{file.name}"))
    np.testing.assert_array_equal(natively(imported, [X])[0], X + 1)


def refusal(content: bytes) -> HloError:
    with pytest.raises(HloError) as caught:
        import_hlo(content)
    return caught.value


def test_a_kernel_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = refusal(kernel_call("/home/user/71ad/kernel"))
    assert error.code == "NCC_EVRF059"
    assert error.text == (
        "Kernel file '/home/user/71ad/kernel' referenced by AwsNeuronCustomNativeKernel "
        "instruction does not exist on the host"
    )
    assert "copy the file to 71ad/kernel" in error.remedy


def test_a_kernel_that_only_the_vendor_can_read(tmp_path: Path) -> None:
    path = tmp_path / "kernel"
    path.write_bytes(b"\x7fNKI" * 100)
    error = refusal(kernel_call(str(path)))
    assert error.code == "NCC_EVRF065"
    assert "NKI kernel 'add_one' was traced with an unsupported NKI version" in error.text
    for config in (b"", b"{}", b"[1]", base64.b64encode(b'{"func_literal": "x"}')):
        content = custom("AwsNeuronCustomNativeKernel", ["f32[3,4]"], "f32[3,4]", config)
        assert refusal(content).code == "NCC_EVRF065"


def test_a_kernel_of_other_types(file: Path) -> None:
    assert "the module says f32[4,3]" in str(refusal(kernel_call(str(file), result="f32[4,3]")))
    config = json.dumps({"func_name": "add_one", "kernel_file": str(file)}).encode()
    content = custom("AwsNeuronCustomNativeKernel", ["f32[4,3]"], "f32[3,4]", config)
    assert "takes (f32[3,4]), it is given (f32[4,3])" in str(refusal(content))


def test_printing(capfd: pytest.CaptureFixture[str]) -> None:
    content = custom("AwsNeuronDevicePrint", ["f32[3,4]"], "f32[3,4]", b"x is")
    np.testing.assert_array_equal(natively(import_hlo(content), [X])[0], X)
    said = capfd.readouterr().out
    assert said.startswith("x is [[ 0.  1.  2.  3.]")
    assert said.count("x is") == 1


def test_printing_that_nobody_can_keep_in_place_is_a_warning() -> None:
    content = custom("AwsNeuronDevicePrint", ["f32[3,4]"], tuple_shape())
    (warning,) = load_model(content, parse("", environ={})).warnings
    assert warning.startswith("AwsNeuronDevicePrint of f32[3,4] prints nothing")
    assert "instruction 'custom-call.1001'" in warning


def test_a_product_that_gathers_first() -> None:
    rng = np.random.default_rng(1)
    parts = [rng.standard_normal((2, 4)).astype(np.float32) for _ in range(2)]
    rhs = rng.standard_normal((4, 5)).astype(np.float32)
    config = b"rhs_contracting_dim=0,tp_degree=2,num_groups=1,use_sb_to_sb=0"
    content = custom("AwsNeuronCollectiveMatmul", ["f32[2,4]", "f32[4,5]"], "f32[4,5]", config)
    graph = import_hlo(content).graph
    for (got,) in evaluate_ranks(graph, [[part, rhs] for part in parts]):
        np.testing.assert_allclose(got, np.concatenate(parts) @ rhs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "target",
    ["AwsNeuronModuleMarkerStart-Forward", "AwsNeuronModuleMarkerEnd-Backward",
     "NeuronBoundaryMarker-End", "AwsNeuronLNCShardingConstraint"],
)  # fmt: skip
def test_marks_pass_on_what_they_are_given(target: str) -> None:
    main = Computation("main", 1)
    given = [main.parameter("f32[3,4]"), main.parameter("s32[2]")]
    both = tuple_shape(shape("f32[3,4]"), shape("s32[2]"))
    main.add("custom-call", both, *given, custom_call_target=target)
    graph = import_hlo(module(main)).graph
    assert list(graph.results) == list(graph.params)
