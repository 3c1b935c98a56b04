"""Advice by rule: on every chip a program that each rule is about, and one that it is not."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import torch_neuronx
from neuronxcc.perf.graphs.host import HostParameters
from neuronxcc.targets import TARGETS
from nki.first_generation.launch import jit as first_jit
from tests.nki.first_kernels import spilling
from torch_neuronx.estimation.advice import RULES
from torch_neuronx.estimation.result import Estimate


def bf16(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def f32(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")


def gathered(table: Tensor, places: Tensor) -> Tensor:
    return table[places]


def turned(a: Tensor) -> Tensor:
    return (a.T.contiguous() + 1).T.contiguous()


class Case(NamedTuple):
    """Programs with their inputs, in a mode."""

    applies: tuple[Any, ...]
    does_not: tuple[Any, ...]
    mode: Any = "compiled"


PLACES = torch.zeros(50_000, dtype=torch.int64)
MATRIX = bf16(4096, 4096)
CASES = {
    "transposes": Case((turned, MATRIX), (lambda a: a + 1, MATRIX)),
    # 64 bytes a row, and 2 KiB.
    "short rows": Case((gathered, bf16(100_000, 32), PLACES), (gathered, bf16(9999, 1024), PLACES)),
    "unfused chains": Case(
        (lambda a: a.exp() + a.sin(), MATRIX), (lambda a: a.exp(), MATRIX), "eager"
    ),
    "spills": Case(
        (first_jit(spilling(24)), f32(128, 4096)), (first_jit(spilling(4)), f32(128, 4096))
    ),
    # Sums over 32 elements and over 128.
    "half of the array": Case(
        (torch.bmm, bf16(512, 512, 32), bf16(512, 32, 512)),
        (torch.bmm, bf16(512, 512, 128), bf16(512, 128, 512)),
    ),
    "float32 products": Case(
        (torch.mm, f32(2048, 2048), f32(2048, 2048)), (torch.mm, MATRIX, MATRIX)
    ),
    "host": Case((lambda a: [a + n for n in range(5)], bf16(8, 8)), (torch.mm, MATRIX, MATRIX),
                 "eager"),
    "operators of the host": Case((torch.linalg.eigvalsh, f32(64, 64)), (torch.tril, f32(64, 64))),
}  # fmt: skip


def estimated(program: tuple[Any, ...], target: str, mode: Any) -> Estimate:
    """Without the launch, which these small programs would mostly wait for."""
    return torch_neuronx.estimate(*program, target=target, mode=mode, host=HostParameters(launch=0))


@pytest.mark.filterwarnings("ignore:tensors take up:nki.errors.NkiWarning")  # they are to spill
@pytest.mark.parametrize("target", [target.name for target in TARGETS])
@pytest.mark.parametrize("rule", CASES)
def test_a_rule_is_said_where_it_applies_and_not_where_it_does_not(rule: str, target: str) -> None:
    case = CASES[rule]
    found = {one.rule: one for one in estimated(case.applies, target, case.mode).advice}
    assert rule in found
    (known,) = (one for one in RULES if one.name == rule)
    assert known.least < found[rule].share <= 1 + 1e-9
    assert rule not in {one.rule for one in estimated(case.does_not, target, case.mode).advice}


def test_every_rule_has_a_case() -> None:
    # Waiting for other cores is tested with a job of several ranks.
    assert {one.name for one in RULES} == {*CASES, "collectives"}


# Numbers by hand: the published figures of a chip and what a program needs, without any table.

#: TFLOPS of a core in bfloat16 (NKI guide: 92, 79) and GB/s of its share of HBM (820 for 2 cores,
#: 2900 for 8, of which two are a logical one).
SHEETS = {"trn1": (92.0, 820 / 2), "trn2": (2 * 79.0, 2 * 2900 / 8)}


@pytest.mark.parametrize("target", SHEETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shares_of_the_peaks_are_what_the_sheets_make_of_them(
    target: str, dtype: torch.dtype
) -> None:
    rows, k, n = 1024, 2048, 512
    layer = nn.Linear(k, n, bias=False, device="meta", dtype=dtype)
    found = torch_neuronx.estimate(
        layer, torch.empty(rows, k, dtype=dtype, device="meta"), target=target
    )
    tflops, gbps = SHEETS[target]
    flops, moved = 2 * rows * k * n, (rows * k + k * n + rows * n) * dtype.itemsize
    seconds = found.step_us / 1e6
    assert found.flops == flops
    assert found.read_bytes + found.written_bytes == moved
    assert found.mfu == pytest.approx(flops / seconds / (tflops * 1e12), rel=0.01)
    assert found.mbu == pytest.approx(moved / seconds / (gbps * 1e9), rel=0.01)
    low, high = found.interval_us
    assert low * high == pytest.approx(found.step_us**2)
    assert high / found.step_us == pytest.approx(1.67)


def test_a_row_names_the_line_the_layer_and_the_operator() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(512, 512, device="meta")

        def forward(self, a: Tensor) -> Tensor:
            b = self.first(a)
            return torch.softmax(b * 3, -1)

    first_line = Model.forward.__code__.co_firstlineno
    found = torch_neuronx.estimate(Model(), f32(4096, 512))
    lines = {row.operator: (row.layer, row.line) for row in found.rows if row.us > 0}
    assert lines["aten.addmm"] == ("first", f"{__file__}:{first_line + 1}")
    assert lines["aten._softmax"] == ("Model", f"{__file__}:{first_line + 2}")
