"""The cache of packed weights: when it packs, what a new generation means, how it is bounded."""

from __future__ import annotations

import importlib
import os
import subprocess
from typing import Any

import pytest
import torch

from tests import interpreter

MODULE = os.environ.get("TORCH_NEURONX_GEMM_TEST_MODULE", "torch_neuronx._C")
core: Any = importlib.import_module(MODULE)

pytestmark = pytest.mark.skipif(
    core.gemm_kernels()["Float"] == "none", reason="this processor has no matrix micro-kernels"
)

SCRIPT = """
import importlib, torch
core = importlib.import_module({module!r})
x, out = torch.rand(64, 256), torch.empty(64, 256)
weights = [torch.rand(256, 256).t() for _ in range(8)]   # 256 KiB packed, each
for step in range(3):
    for weight in weights:
        assert core.gemm_run(x, weight, out, generation=1)
        torch.testing.assert_close(out, x @ weight)
print(core.gemm_cache_stats())
"""


def run_with_limit(limit: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "TORCH_NEURONX_GEMM_CACHE_MB": limit,
        "TORCH_NEURONX_GEMM_PROBE": "0",
    }
    return interpreter.run(["-c", SCRIPT.format(module=MODULE)], env=environment)


def stats_with_limit(limit: str) -> dict[str, int]:
    done = run_with_limit(limit)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = eval(done.stdout)  # noqa: S307 - printed by our own script
    return found


def test_packs_on_second_sight_and_hits_afterwards() -> None:
    stats = stats_with_limit("512")
    assert stats["packed"] == 8
    assert stats["hits"] == 8
    assert stats["bytes"] == 8 * 256 * 256 * 4
    assert stats["evicted"] == 0


def test_bytes_are_bounded() -> None:
    stats = stats_with_limit("1")
    assert stats["byte_limit"] == 1 << 20
    assert 0 < stats["bytes"] <= 1 << 20
    assert stats["evicted"] > 0


def test_zero_keeps_nothing() -> None:
    stats = stats_with_limit("0")
    assert (stats["packed"], stats["bytes"], stats["entries"]) == (0, 0, 0)


@pytest.mark.parametrize("text", ["lots", "-1", "1.5"])
def test_a_wrong_limit_is_explained(text: str) -> None:
    done = run_with_limit(text)
    assert done.returncode != 0
    message = f'TORCH_NEURONX_GEMM_CACHE_MB must be a whole number of MiB, got "{text}"'
    assert message in done.stderr


def test_a_new_generation_is_packed_anew() -> None:
    core.gemm_clear()
    x, weight = torch.rand(64, 128), torch.rand(200, 128).t()
    out = torch.empty(64, 200)
    for generation in (1, 1, 1, 2, 2, 2):
        if generation == 2:
            weight.fill_(0.5)
        if not core.gemm_run(x, weight, out, generation=generation):
            pytest.skip("ATen is faster for this shape on this machine")
        torch.testing.assert_close(out, x @ weight)
    assert core.gemm_cache_stats()["packed"] == 2
    assert core.gemm_cache_stats()["entries"] == 1
    core.gemm_clear()
    assert core.gemm_cache_stats()["bytes"] == 0


def test_packed_and_unpacked_agree_to_the_bit() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x, weight = torch.rand(50, 1300).to(dtype), torch.rand(130, 1300).to(dtype).t()
        outs = [torch.empty(50, 130, dtype=dtype) for _ in range(2)]
        for packed, out in enumerate(outs):
            assert core.gemm_run_method(x, weight, out, None, 1.0, 0.0, "panel", bool(packed))
        assert torch.equal(*outs)
