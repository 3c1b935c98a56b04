"""A chip that does not exist, in one file: everything emulates it and compiles for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# What a file of neuronxcc/targets would say of it.
CHIP = """
from dataclasses import replace

from neuronxcc.targets import trn3
from neuronxcc.targets.spec import GIB

TARGET = replace(
    trn3.TARGET,
    name="trn4",
    aliases=("gen5",),
    chip_name="Trainium4",
    capability=(5, 0),
    core=replace(trn3.CORE, version="v5"),
    hbm_bytes=2 * GIB,
    dtypes=trn3.TARGET.dtypes - {"float8_e4m3"},
)
"""
# Registered before PyTorch looks for its devices.
START = f"""
from neuronxcc import targets

names: dict = {{}}
exec({CHIP!r}, names)
targets.register(names["TARGET"])
"""
PARTS = {
    "eager": """
import torch
from torch_neuronx import ops

properties = torch.neuron.get_device_properties(0)
assert (properties.name, properties.neuroncore_version) == ("trn4", "v5"), properties
assert torch.neuron.get_device_capability() == (5, 0)
assert properties.total_memory == 2**29
with ops.portability("strict"):
    x = torch.arange(4.0, device="neuron")
    print(((x + 1) @ x).item())
    try:
        x.int() @ x.int()
    except ops.PortabilityError as error:
        assert error.code == "EVRF035" and "(trn4)" in str(error), error
    else:
        raise AssertionError("products of integers have a limit on it")
    x.to(torch.float8_e4m3fn)
assert "trn4 runs with" in ops.explain("add")
""",
    "compile": """
import torch, torch_neuronx

x = torch.arange(4.0, device="neuron")
print(torch.compile(lambda x: (x + 1) @ x, backend="neuron")(x).item())
with torch_neuronx.compile_only("trn3"):
    torch.compile(lambda x: x - 1, backend="neuron")(x)
""",
    "kernel": """
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl
from nki import core

@nki.jit
def twice(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(out, tile)
    return out

assert core.default_target().name == "trn4"
print(twice(np.full((4, 4), 1.75, np.float32)).sum())
""",
    "command": """
import numpy as np
from neuronxcc.cli import main
from neuronxcc.ir import DType, TensorType, build, parameter
from neuronxcc.ir.gaps import gaps
from neuronxcc.neff.rules import check_target
from neuronxcc.program.errors import NeffError
from tests.frontends.hlo_text import proto_of, text_of

x = np.ones((4, 4), np.float32)
open("model.pb", "wb").write(proto_of(text_of("r = f32[4,4] add(p0, p0)", (x,))))
assert main(["compile", "model.pb", "--framework=XLA"]) == 0
check_target("trn4", "gen5", "")
for older in ("trn1", "trn3"):
    try:
        check_target(older, "trn4", "compile it again")
    except NeffError as error:
        assert "or set NEURON_RT_ALLOW_LEGACY_NEFF=1" in str(error), error
    else:
        raise AssertionError("programs of older cores need leave")
node = build.convert(parameter(0, TensorType(DType.F8E4M3, (4,))), DType.BF16)
assert [gap.code for gap in gaps(node, targets.get_target("trn4"))] == ["NCC_EVRF052"]
assert not gaps(node, targets.get_target("trn3"))
print("compiled")
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_one_file_adds_a_chip(part: str, tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "NEURON_PLATFORM_TARGET_OVERRIDE": "gen5",
        "NEURON_CC_CACHE_DIR": str(tmp_path / "cache"),
        "NEURON_COMPILE_CACHE_URL": str(tmp_path / "cache"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    run = subprocess.run(
        [sys.executable, "-c", START + PARTS[part]],
        env=environ, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    said = {"eager": "20.0", "compile": "20.0", "kernel": "56.0", "command": "compiled"}
    assert run.stdout.splitlines()[-1] == said[part]


def test_a_name_is_taken_once() -> None:
    code = START + "targets.register(names['replace'](targets.get_target('trn2'), name='trn4'))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ValueError: the name 'trn4' is that of the target trn4" in run.stderr
