"""`TORCH_NEURONX_ISA` holds everything that computes to fewer instructions, or says why not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.isas import ISAS
from torch_neuronx._host import InstructionSetError, hold_instructions

ROOT = Path(__file__).parents[2]
HELD = [isa for isa in ("avx2", "portable") if isa in ISAS]


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    ignored = ("NEURON_", "TORCH_", "ATEN_", "ONEDNN_", "MKL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ignored)}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=kept | {"OMP_NUM_THREADS": "1"} | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def output(code: str, **variables: str) -> str:
    done = python(code, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


FACTS = """
import torch
from neuronxcc.codegen.llvm.host import Host
from torch_neuronx import _C
print(_C.kernel_isa(), torch.backends.cpu.get_cpu_capability().lower(), Host.detect().lanes)
"""


@pytest.mark.slow
@pytest.mark.parametrize("isa", HELD)
def test_everybody_is_held(isa: str) -> None:
    expected = {"avx2": "avx2 avx2 8", "portable": "portable default 4"}
    assert output(FACTS, TORCH_NEURONX_ISA=isa) == expected[isa]


# oneDNN says what it may use before its first kernel.
ONEDNN = "import torch; torch.conv2d(torch.ones(8, 64, 28, 28), torch.ones(64, 64, 3, 3))"


@pytest.mark.slow
@pytest.mark.parametrize("isa", HELD)
def test_onednn_is_held(isa: str) -> None:
    said = output(ONEDNN, TORCH_NEURONX_ISA=isa, ONEDNN_VERBOSE="1")
    (line,) = (line for line in said.splitlines() if "cpu,isa:" in line)
    assert line.endswith({"avx2": "isa:Intel AVX2", "portable": "isa:Intel SSE4.1"}[isa])


COMPUTE = """
import math
import torch
torch.manual_seed(0)
F = torch.nn.functional
worst = 0.0
def close(result, exact, dtype, terms):
    # Each of `terms` roundings is at most half a unit in the last place of what it rounds.
    unit = torch.finfo(dtype).eps
    scale = exact.abs().max().item() + 1
    error = (result.cpu().double() - exact).abs().max().item() / scale
    bound = unit + math.sqrt(terms) * 4 * torch.finfo(torch.float32).eps
    assert error < bound, (dtype, error, bound)
def rounded_once(result, exact, dtype, terms):
    # Sums of float32, each rounded to its type at its own size.
    sums = terms * torch.finfo(torch.float32).eps * exact.abs().max()
    bound = torch.finfo(dtype).eps / 2 * exact.abs() + sums
    assert ((result.cpu().double() - exact).abs() <= bound).all(), dtype
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    x = torch.randn(67, 130).to(dtype)
    w = torch.randn(259, 130).to(dtype)
    exact = x.double() @ w.double().T
    close(x.to("neuron") @ w.to("neuron").T, exact, dtype, 130)
    big = torch.randn(300, 700).to(dtype)
    close(big.to("neuron") @ big.to("neuron").T, big.double() @ big.double().T, dtype, 700)
    close(x.to("neuron").softmax(1), x.double().softmax(1), dtype, 130)
    close(F.gelu(x.to("neuron")), F.gelu(x.double()), dtype, 16)
    close(F.layer_norm(x.to("neuron"), (130,)), F.layer_norm(x.double(), (130,)), dtype, 130)
    image, kernel = torch.randn(2, 16, 14, 14).to(dtype), torch.randn(16, 16, 3, 3).to(dtype)
    close(F.conv2d(image.to("neuron"), kernel.to("neuron"), padding=1),
          F.conv2d(image.double(), kernel.double(), padding=1), dtype, 16 * 9 * 16)
    for convolve in (F.conv2d, F.conv_transpose2d):
        results = []
        for device, type in (("neuron", dtype), ("cpu", torch.float64)):
            given = [t.to(device, type).requires_grad_() for t in (image, kernel)]
            out = convolve(*given, stride=2, padding=1)
            grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
            results.append([out, *torch.autograd.grad(out, given, grad.to(device, type))])
        for found, exact in zip(*results):
            rounded_once(found.detach(), exact.detach(), dtype, 2 * 27 * 27)
    q, k, v = (torch.randn(2, 4, 96, 64).to(dtype) for _ in range(3))
    close(F.scaled_dot_product_attention(q.to("neuron"), k.to("neuron"), v.to("neuron")),
          F.scaled_dot_product_attention(q.double(), k.double(), v.double()), dtype, 160)
    f = torch.compile(lambda t: (t.exp() * 0.5).sum(1), backend="neuron")
    close(f(x.to("neuron")), (x.double().exp() * 0.5).sum(1), dtype, 130)
print("right", worst)
"""


@pytest.mark.slow
@pytest.mark.every(2)
@pytest.mark.parametrize("isa", HELD)
@pytest.mark.parametrize("kernels", ["auto", "brgemm", "none"])
def test_computes_right(isa: str, kernels: str, tmp_path: Path) -> None:
    said = output(
        COMPUTE,
        TORCH_NEURONX_ISA=isa,
        TORCH_NEURONX_GEMM_KERNELS=kernels,
        XDG_CACHE_HOME=str(tmp_path),
    )
    assert said.startswith("right")


BRGEMM = """
import torch
from torch_neuronx import _C
x = torch.randn(70, 130).bfloat16()
torch.testing.assert_close((x.to("neuron") @ x.to("neuron").T).cpu(), x @ x.T)
print(_C.gemm_kernels()["BFloat16"])
"""


@pytest.mark.slow
def test_brgemm_where_onednn_alone_is_held() -> None:
    """It has no product of bfloat16 then; operands are widened, and `gemm_kernels` says so."""
    held = {"TORCH_NEURONX_GEMM_KERNELS": "brgemm", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    assert output(BRGEMM, **held) == ("brgemm_f32" if "avx2" in ISAS else "none")


def raised(code: str, **variables: str) -> str:
    done = python(code, **variables)
    assert done.returncode == 1, done.stdout
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_a_wrong_value() -> None:
    said = raised("import torch_neuronx", TORCH_NEURONX_ISA="sse9")
    assert "VariableError: TORCH_NEURONX_ISA='sse9' is not valid; allowed: auto, avx2, " in said


@pytest.mark.slow
@pytest.mark.skipif("avx2" not in ISAS, reason="this processor has no AVX2")
def test_contradiction() -> None:
    said = raised("import torch_neuronx", TORCH_NEURONX_ISA="avx2", ATEN_CPU_CAPABILITY="avx512")
    assert said.endswith(
        "TORCH_NEURONX_ISA=avx2 and ATEN_CPU_CAPABILITY=avx512 contradict each other. Unset one of "
        "them."
    )


@pytest.mark.slow
@pytest.mark.skipif("avx512" not in ISAS, reason="this processor has nothing better to use first")
def test_too_late() -> None:
    code = "import torch; torch.ones(100).exp(); import torch_neuronx"
    late = {"TORCH_NEURONX_ISA": "avx2", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    said = raised(code, **late)
    assert "TORCH_NEURONX_ISA=avx2 came too late: PyTorch has computed" in said
    assert "ATEN_CPU_CAPABILITY=avx2, ONEDNN_MAX_CPU_ISA=AVX2, MKL_ENABLE_INSTR" in said
    set_before = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    assert python(code, **late, **set_before).returncode == 0


def test_a_processor_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_ISA", "avx2")
    core = ModuleType("core")
    core.kernel_isas = lambda: ["portable"]  # type: ignore[attr-defined]
    with pytest.raises(InstructionSetError, match="has no such instructions, its best are 'port"):
        hold_instructions(core)
