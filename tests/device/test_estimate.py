"""`torch_neuronx.estimate`: what it says of models whose flops and bytes are known by heart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import torch_neuronx
from neuronxcc.perf import Parameters
from neuronxcc.perf.graphs import GraphParameters
from neuronxcc.perf.graphs.collectives import ERAS
from neuronxcc.perf.graphs.host import HostParameters
from torch_neuronx.distributed import PlanError
from torch_neuronx.estimation import command, segments
from torch_neuronx.estimation.calibration.fit import GRID, estimated, line
from torch_neuronx.estimation.calibration.models import recorded
from torch_neuronx.estimation.calibration.rows import rows
from torch_neuronx.estimation.errors import EstimateError
from torch_neuronx.estimation.result import Estimate
from torch_neuronx.estimation.session import time_of

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
WIDTH, HIDDEN, ROWS, LAYERS = 256, 512, 128, 3
WEIGHTS = 2 * WIDTH * HIDDEN  # of a layer


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (
            nn.Linear(WIDTH, HIDDEN, bias=False),
            nn.Linear(HIDDEN, WIDTH, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.down(torch.relu(self.up(x)))
        return result


def model(dtype: torch.dtype = torch.bfloat16, device: str = "meta") -> nn.Module:
    with torch.device(device):
        return nn.Sequential(*(Layer() for _ in range(LAYERS))).to(dtype)


def x(rows: int = ROWS, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(rows, WIDTH, dtype=dtype, device="meta")


def check_whole(found: Estimate) -> None:
    """What holds for every estimate."""
    assert found.step_us > 0
    assert sum(row.us for row in found.rows) == pytest.approx(found.step_us)
    assert sum(found.sections.values()) == pytest.approx(found.step_us)
    low, high = found.interval_us
    assert low < found.step_us < high
    for us in found.busy_us.values():
        assert us <= found.step_us * (1 + 1e-9)
    assert found.step_us <= sum(found.busy_us.values()) * (1 + 1e-9)
    assert 0 <= found.mfu <= 1.02  # printed peaks are rounded
    assert 0 <= found.mbu <= 1
    for what in ("section", "layer", "operator", "line", "engine", "how"):
        shares = found.by(what)
        assert sum(one.us for one in shares) == pytest.approx(found.step_us)


def test_the_flops_and_bytes_of_a_forward() -> None:
    found = torch_neuronx.estimate(model(), x(), target="trn1")
    check_whole(found)
    assert found.flops == 2 * ROWS * WEIGHTS * LAYERS
    # The weights and the input once, the result once.
    assert found.read_bytes == 2 * (WEIGHTS * LAYERS + ROWS * WIDTH)
    assert found.written_bytes == 2 * ROWS * WIDTH
    assert found.hbm_in_use >= 2 * WEIGHTS * LAYERS
    assert (found.target, found.lnc, found.mode, found.training) == ("trn1", 1, "compiled", False)
    assert {row.layer for row in found.rows if row.flops} == {
        f"{n}.{name}" for n in range(LAYERS) for name in ("up", "down")
    }
    assert {row.how for row in found.rows} == {"bytes and flops", "host table"}


def test_a_training_step_has_three_times_the_flops_and_an_optimizer() -> None:
    found = torch_neuronx.estimate(
        model(), x(), training=True, loss=lambda y: y.float().square().sum()
    )
    check_whole(found)
    # The input needs no gradient, so that the first product of backward is left out.
    assert found.flops == 2 * ROWS * (3 * WEIGHTS * LAYERS - WEIGHTS // 2)
    assert set(found.sections) == {"forward", "backward", "optimizer"}
    # AdamW reads and writes the weight and two states.
    optimizer = sum(row.bytes for row in found.rows if row.section == "optimizer")
    assert optimizer >= 2 * 3 * 2 * WEIGHTS * LAYERS
    # What backward does belongs to the layer whose gradient it is.
    assert {row.layer for row in found.rows if row.section == "backward" and row.flops} == {
        f"{n}.{name}" for n in range(LAYERS) for name in ("up", "down")
    }
    alone = torch_neuronx.estimate(model(), x(), training=True, optimizer=None)
    assert set(alone.sections) == {"forward", "backward"}


def test_the_model_is_left_alone() -> None:
    given = model(device="cpu")
    before = {name: p.detach().clone() for name, p in given.named_parameters()}
    torch_neuronx.estimate(given, torch.randn(ROWS, WIDTH, dtype=torch.bfloat16), training=True)
    for name, parameter in given.named_parameters():
        assert parameter.device.type == "cpu"
        assert parameter.grad is None
        assert torch.equal(parameter, before[name])


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_where_a_model_is_does_not_matter(device: str) -> None:
    here = torch_neuronx.estimate(model(device=device), x())
    assert here.step_us == torch_neuronx.estimate(model(), x()).step_us


@pytest.mark.parametrize("mode", ["compiled", "eager"])
def test_more_rows_and_more_layers_take_longer(mode: Any) -> None:
    def us(rows: int, layers: int = LAYERS) -> float:
        kept = nn.Sequential(*list(model().children())[:layers])
        return torch_neuronx.estimate(kept, x(rows), mode=mode, target="trn1").step_us

    times = [us(rows) for rows in (1, 100, 128, 1000, 5000)]
    assert times == sorted(times)
    assert us(ROWS, 1) < us(ROWS, 2) < us(ROWS, 3)


def test_eager_operators_are_programs_and_a_compiled_model_is_one() -> None:
    compiled = torch_neuronx.estimate(model(), x())
    eager = torch_neuronx.estimate(model(), x(), mode="eager")
    check_whole(eager)
    # Two products, an activation and an addition in a layer; views are none.
    assert (compiled.programs, eager.programs) == (1, 4 * LAYERS)
    assert eager.read_bytes > compiled.read_bytes
    # The host is asked for each; what it asks for runs behind it.
    host = HostParameters(dispatch=10.0)
    faster = torch_neuronx.estimate(model(), x(), mode="eager", host=host)
    assert faster.step_us < eager.step_us
    assert "host" in [one.rule for one in eager.advice]


def test_reading_a_value_makes_the_host_wait() -> None:
    def reads(a: Tensor) -> Tensor:
        total = (a @ a.T).sum()
        return a + total.item()

    def keeps(a: Tensor) -> Tensor:
        return a + (a @ a.T).sum()

    late, early = (torch_neuronx.estimate(f, x(), mode="eager") for f in (reads, keeps))
    assert late.step_us > early.step_us + 900


def test_layers_that_are_alike_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []
    before = segments.Timer._timed

    def counted(self: Any, segment: Any, key: Any) -> Any:
        timed.append(len(segment.calls))
        return before(self, segment, key)

    monkeypatch.setattr(segments.Timer, "_timed", counted)
    counts = []
    for layers in (3, 6):
        torch_neuronx.estimate(
            nn.Sequential(*list(model().children())[:1] * layers), x(), mode="eager"
        )
        counts.append(len(timed))
    assert counts[0] > 0
    assert counts[1] == 2 * counts[0]


def test_float32_products_take_four_passes_and_are_advised_against() -> None:
    narrow = torch_neuronx.estimate(model(), x(4096), target="trn1")
    wide = torch_neuronx.estimate(model(torch.float32), x(4096, torch.float32), target="trn1")
    assert wide.busy_us["tensor"] >= 3.9 * narrow.busy_us["tensor"]
    assert "float32 products" in [one.rule for one in wide.advice]
    assert "float32 products" not in [one.rule for one in narrow.advice]
    cast = torch_neuronx.estimate(
        model(torch.float32),
        x(4096, torch.float32),
        target="trn1",
        options={"auto_cast": "matmult"},
    )
    assert cast.busy_us["tensor"] == pytest.approx(narrow.busy_us["tensor"], rel=0.3)


def test_a_model_of_wide_products_is_left_in_peace() -> None:
    found = torch_neuronx.estimate(model(), x(8192), host=HostParameters(launch=0))
    assert {one.rule for one in found.advice} <= {"half of the array"}


def test_parts_of_a_program_that_has_no_graph_are_counted_by_bytes() -> None:
    def program(a: Tensor) -> Tensor:
        values: Tensor = torch.linalg.eigvalsh(a)
        return values * 2

    found = torch_neuronx.estimate(program, torch.empty(64, 64, device="meta"))
    check_whole(found)
    assert "operators of the host" in [one.rule for one in found.advice]


# Jobs.


def bf16(*shape: int) -> Tensor:
    return torch.empty(shape, device="neuron", dtype=torch.bfloat16)


class Parallel(nn.Module):
    """A layer whose inner columns are divided."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.up = nn.Parameter(bf16(HIDDEN // ranks, WIDTH))
        self.down = nn.Parameter(bf16(WIDTH, HIDDEN // ranks))

    def forward(self, a: Tensor) -> Tensor:
        y = nn.functional.linear(torch.relu(nn.functional.linear(a, self.up)), self.down)
        dist.all_reduce(y)
        return a + y


def job() -> None:
    dist.init_process_group("neuron")
    layers = nn.Sequential(*(Parallel(dist.get_world_size()) for _ in range(LAYERS)))
    with torch.no_grad():
        layers(torch.empty(ROWS, WIDTH, dtype=torch.bfloat16, device="neuron"))


def test_one_rank_of_a_job_waits_for_the_others() -> None:
    found = torch_neuronx.estimate(job, world_size=64, instance="trn2.48xlarge")
    check_whole(found)
    assert found.flops == 2 * ROWS * WEIGHTS * LAYERS // 64
    sums = [row for row in found.rows if row.engine == "cc"]
    assert sum(row.bytes for row in sums) == LAYERS * ROWS * WIDTH * 2
    # Each is waited for, because the next operator reads it.
    assert sum(row.us for row in sums) == pytest.approx(found.busy_us["cc"])
    assert (found.instance, found.instances, found.era) == ("trn2.48xlarge", 1, "models")
    fewer = torch_neuronx.estimate(job, world_size=64, instance="trn2.48xlarge", era="documented")
    assert fewer.step_us <= found.step_us


def overlapping() -> None:
    dist.init_process_group("neuron")
    a = torch.empty(4096, 4096, dtype=torch.bfloat16, device="neuron")
    b = torch.empty(4096, 4096, dtype=torch.bfloat16, device="neuron")
    waits = dist.all_reduce(b, async_op=True)
    c = a @ a
    assert waits is not None
    waits.wait()
    (c @ b).sum()


def test_a_collective_runs_beside_what_does_not_read_it() -> None:
    found = torch_neuronx.estimate(overlapping, world_size=2, instance="trn1.32xlarge")
    check_whole(found)
    exposed = sum(row.us for row in found.rows if row.engine == "cc")
    assert 0 <= exposed < 0.9 * found.busy_us["cc"]


def test_tokens_and_dollars() -> None:
    embedding = nn.Embedding(1000, WIDTH, device="meta", dtype=torch.bfloat16)
    tokens = torch.zeros(2, 50, dtype=torch.int64)
    found = torch_neuronx.estimate(embedding, tokens, price_per_hour=36.0)
    assert found.tokens == 100
    assert found.tokens_per_second == pytest.approx(100 / found.step_us * 1e6)
    dollars = found.step_us / 1e6 / 3600 * 36 / 100 * 1e6
    assert found.dollars_per_million_tokens == pytest.approx(dollars)
    assert torch_neuronx.estimate(embedding, tokens, tokens=0).tokens_per_second is None


# What is said, and what is refused.


def test_the_text_and_the_document() -> None:
    found = torch_neuronx.estimate(model(), x(), target="trn2")
    text = str(found)
    for part in (
        "on trn2, LNC 2",
        "expected between",
        "bound by",
        "MFU",
        "layer",
        "operator",
        "line",
    ):
        assert part in text
    assert "*.up" in text
    document = json.loads(found.to_json())
    assert document["version"] == 1
    assert document["is_simulation"] is True
    assert document["step_us"] == found.step_us
    assert document["calibrated"] is found.calibrated
    assert len(document["rows"]) == len(found.rows)


def test_layers_of_a_sequence_are_apart_and_blocks_of_a_model_are_not() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm(64)
            self.parts = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.parts(self.norm1(x)) + x
            return made

    module = nn.Sequential(*(Block() for _ in range(3)), nn.Linear(64, 32))
    found = torch_neuronx.estimate(module, torch.zeros(64, 64), target="trn1")
    names = {share.name for share in found.by("layer", alike=True)}
    assert {"*.parts.0", "*.parts.1", "*.parts.2", "*.norm1", "*", "3"} <= names
    whole = sum(share.us for share in found.by("layer", alike=True))
    assert whole == pytest.approx(found.step_us)


SCRIPT = """
import sys, torch
from torch import nn
model = nn.Linear(64, 64, device="neuron")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    model(torch.ones(8, 64, device="neuron")).sum().backward()
    if "train" in sys.argv:
        optimizer.step()
"""


def test_a_script_is_timed_by_its_last_step_or_by_its_forwards(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    trained = torch_neuronx.estimate(path, "train")
    check_whole(trained)
    assert set(trained.sections) == {"forward", "backward", "optimizer"}
    assert trained.training
    assert {Path(row.line.rpartition(":")[0]).name for row in trained.rows if row.flops} == {
        path.name
    }
    forwards = torch_neuronx.estimate(path)
    assert {"forward 1", "forward 10", "backward 10"} <= set(forwards.sections)


def test_the_command_prints_a_table_or_a_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    monkeypatch.setattr(command, "machine_variables", lambda _: {})  # no new interpreter
    assert command.main(["--json", "-", str(path), "train"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["name"] == "script.py"
    assert command.main([str(path), "train"]) == 0
    assert "script.py: " in capsys.readouterr().out
    assert command.main([str(tmp_path / "none.py")]) == 2
    assert "cannot estimate: " in capsys.readouterr().err


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="mode='fast': 'compiled' and 'eager' are the modes"):
        torch_neuronx.estimate(model(), x(), mode="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="era='old': known are " + ", ".join(map(repr, ERAS))):
        torch_neuronx.estimate(model(), x(), era="old")
    with pytest.raises(ValueError, match=r"target='trn1', but trn2.48xlarge has chips of trn2"):
        torch_neuronx.estimate(model(), x(), target="trn1", instance="trn2.48xlarge")
    with pytest.raises(TypeError, match=r"no option 'x'; .* are given as kwargs={'x': ...}"):
        torch_neuronx.estimate(torch.relu, x=x())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown target 'trn9'"):
        torch_neuronx.estimate(model(), x(), target="trn9")
    with pytest.raises(ValueError, match="steps=0: an estimate has at least one step"):
        torch_neuronx.estimate(model(), x(), steps=0)
    with pytest.raises(ValueError, match="the program of a job, trains by itself"):
        torch_neuronx.estimate(job, world_size=2, training=True)
    with pytest.raises(PlanError, match="unknown instance type"):
        torch_neuronx.estimate(model(), x(), instance="trn9.large")
    with pytest.raises(EstimateError, match="ran no operator on the device neuron"):
        torch_neuronx.estimate(lambda: None)
    with pytest.raises(EstimateError, match="nothing that the program returns needs a gradient"):
        torch_neuronx.estimate(lambda a: a + 1, x(), training=True)


def test_parameters_ask_what_if() -> None:
    base = torch_neuronx.estimate(model(), x(4096), target="trn1")
    slower = torch_neuronx.estimate(
        model(), x(4096), target="trn1",
        graph_parameters=GraphParameters(product_efficiency=base_efficiency() / 2),
    )  # fmt: skip
    assert slower.busy_us["tensor"] > 1.5 * base.busy_us["tensor"]
    later = torch_neuronx.estimate(
        model(), x(4096), target="trn1", parameters=Parameters(vector_latency=20000)
    )
    assert later.step_us > base.step_us


def base_efficiency() -> float:
    return GraphParameters().product_efficiency


@pytest.mark.parametrize(
    "last",
    [
        lambda y: y.add_(1),
        lambda y: y.relu_(),
        lambda y: y.view(4096, WIDTH),
        lambda y: nn.functional.relu(y, inplace=True).view(4096, WIDTH),
        lambda y: y if y.device.type == "neuron" else None,
    ],
)
def test_a_result_that_is_changed_in_place_or_looked_at_is_computed(last: Any) -> None:
    """It was taken for one that the last operator takes and nobody needs."""
    plain = torch_neuronx.estimate(lambda a: a.exp(), x(4096))
    found = torch_neuronx.estimate(lambda a: last(a.exp()), x(4096))
    check_whole(found)
    assert found.device_us >= plain.device_us > 0
    assert found.written_bytes == plain.written_bytes


def test_device_programs_give_the_time_where_there_are_some() -> None:
    found = torch_neuronx.estimate(model(), x(), programs=True)
    check_whole(found)
    assert "simulated" in {row.how for row in found.rows}
    assert 0.0 < found.simulated <= 1.0
    assert found.flops == torch_neuronx.estimate(model(), x()).flops

    def attends(q: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    heads = torch.empty(1, 2, 128, 64, dtype=torch.bfloat16, device="meta")
    attention = torch_neuronx.estimate(attends, heads, programs=True)
    check_whole(attention)
    assert {row.how for row in attention.rows} == {"simulated", "host table"}

    def sorts(a: Tensor) -> Tensor:
        values: Tensor = torch.linalg.eigvalsh(a.float() @ a.float().T)
        return values

    mixed = torch_neuronx.estimate(sorts, x(), programs=True)
    check_whole(mixed)
    assert {"simulated", "bytes and flops"} <= {row.how for row in mixed.rows}
    assert any("has no instructions" in note for note in mixed.notes)


def test_what_is_no_graph_is_timed_call_by_call_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> None:
        raise NotImplementedError("asked for")

    monkeypatch.setattr(segments, "import_graph", refused)
    found = torch_neuronx.estimate(lambda a: a.exp().sin(), x())
    assert found.notes == (
        "aten.exp by its bytes alone: asked for",
        "aten.sin by its bytes alone: asked for",
        "call by call, as no graph can be made of a segment: asked for",
    )


# Published times of models.


def test_every_row_has_a_source_and_a_time_or_a_reason() -> None:
    table = rows()
    assert len({row.name for row in table}) == len(table)
    for row in table:
        assert row.source
        assert row.us > 0 or row.reason
        assert row.what in {"forward", "training", "prefill", "token"}
    assert sum(row.fitted for row in table) >= 20
    assert all(row.compared for row in table if row.fitted)


@pytest.mark.parametrize("name", ["distilbert b1", "llama-3-8b token"])
def test_the_line_of_a_row_goes_through_its_estimates(name: str) -> None:
    row = next(row for row in rows() if row.name == name)
    made = line(row, (1.0, 0.5))
    graph = GraphParameters(product_efficiency=0.5, section_gap=3.0, collective_floor=40.0)
    assert made.us(0.5, 3.0, 40.0) == pytest.approx(estimated(row, recorded(row), graph))


def test_the_model_has_what_the_fit_chose() -> None:
    for field in GRID:
        assert getattr(GraphParameters(), field) in GRID[field]


@pytest.mark.parametrize(
    "name", ["distilbert b1", "albert-base b16", "resnet152 b64", "vgg16 b8", "llama-3-8b token"]
)
def test_the_page_says_what_the_model_says(name: str) -> None:
    """A pass of the compiler changes estimates too: then the page and the fit are made anew."""
    row = next(row for row in rows() if row.name == name)
    (told,) = (told for told in PAGE.read_text().splitlines() if told.startswith(f"| {name} |"))
    cells = [cell.strip() for cell in told.split("|")]
    program = recorded(row)
    us = estimated(row, program)
    assert cells[2] == f"{row.us / 1e3:.3f}"
    assert float(cells[5]) == pytest.approx(us / 1e3, rel=1e-3, abs=1e-3), str(time_of(program))
    assert cells[6] == f"{us / row.us - 1:+.0%}"
