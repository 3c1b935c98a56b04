"""Planning: one rank of a job that isn't there, against formulas and against real runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.distributed import plan_programs
from tests.distributed.plan_programs import HIDDEN, LAYER_BYTES, LAYERS, ROWS, WIDTH
from tests.distributed.ranks import run_ranks
from torch_neuronx.distributed import Plan, PlanError, plan
from torch_neuronx.distributed.planning.command import main
from torch_neuronx.distributed.planning.placement import Placement

ROOT = Path(__file__).parents[2]


def planned(name: str, *arguments: int, world_size: int = 64, rank: int = 0) -> Plan:
    return plan(plan_programs.planned, name, *arguments, world_size=world_size, rank=rank)


def short(found: Plan) -> list[tuple[str, str, int, str, int]]:
    return [(r.phase, r.kind, r.count, r.operation, r.bytes) for r in found.rows()]


# What a step issues.


def test_ddp_reduces_each_gradient_once() -> None:
    reduced = [one for one in planned("ddp").collectives() if one.phase == "backward"]
    assert {one.kind for one in reduced} == {"all_reduce"}
    assert sum(one.bytes for one in reduced) == LAYERS * LAYER_BYTES
    assert all(
        one.size == 64 and one.group == "world" and one.dtype == "float32" for one in reduced
    )
    assert all(one.operation == "sum" for one in reduced)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 64, 512])
def test_fsdp_gathers_twice_and_scatters_once(world_size: int) -> None:
    # Rows of each weight are divided, and padded to the same number on every rank.
    rows = sum(-(-size // world_size) * other for size, other in ((HIDDEN, WIDTH), (WIDTH, HIDDEN)))
    whole = rows * world_size * 4
    assert short(planned("fsdp", world_size=world_size)) == [
        ("forward", "all_gather", LAYERS, "", whole),
        ("backward", "all_gather", LAYERS, "", whole),
        ("backward", "reduce_scatter", LAYERS, "avg", whole),
    ]


def test_tensor_parallelism_reduces_after_the_second_product() -> None:
    # The input needs no gradient, so nothing is reduced for the first layer's in backward.
    size = ROWS * WIDTH * 4
    assert short(planned("tensor_parallel", world_size=4)) == [
        ("forward", "all_reduce", LAYERS, "sum", size),
        ("backward", "all_reduce", LAYERS - 1, "sum", size),
    ]


def test_hybrid_sharding_reduces_the_shards_of_replicas() -> None:
    found = planned("hybrid", 2, world_size=16)
    rows = {(r.phase, r.kind): r for r in found.rows()}
    scatter, reduce = rows["backward", "reduce_scatter"], rows["backward", "all_reduce"]
    assert (scatter.group, scatter.size, scatter.count) == ("shard", 8, LAYERS)
    assert (reduce.group, reduce.size, reduce.count) == ("replicate", 2, LAYERS)
    assert reduce.bytes * 8 == scatter.bytes == LAYER_BYTES


def test_every_rank_of_a_job_issues_the_same() -> None:
    assert short(planned("hybrid", 2, world_size=16, rank=3)) == short(
        planned("hybrid", 2, world_size=16)
    )


@pytest.fixture(scope="module")
def real() -> list[dict[str, tuple[list[tuple[str, int, int]], int]]]:
    return run_ranks(2, plan_programs.really, backend="neuron")


@pytest.mark.parametrize("name", plan_programs.PROGRAMS)
def test_a_real_run_issues_the_same_in_the_same_order(
    name: str, real: list[dict[str, tuple[list[tuple[str, int, int]], int]]]
) -> None:
    order = [(one.kind, one.bytes, one.size) for one in planned(name, world_size=2).order]
    assert order == real[0][name][0]
    assert order  # and it is not about nothing


@pytest.mark.parametrize("name", plan_programs.PROGRAMS)
def test_a_real_run_needs_as_much_memory(
    name: str, real: list[dict[str, tuple[list[tuple[str, int, int]], int]]]
) -> None:
    # The rest: small tensors, whose size classes are larger than what is asked for.
    needed = real[0][name][1]
    assert planned(name, world_size=2).peak_bytes == pytest.approx(needed, abs=32 << 10)


# Memory.


def test_what_lies_in_memory() -> None:
    found = planned("fsdp", world_size=4)
    share = LAYERS * LAYER_BYTES // 4
    assert found.memory["parameters"] == share
    assert found.memory["optimizer state"] == share  # momentum
    assert found.memory["gathered parameters"] <= 2 * LAYER_BYTES
    assert found.fits
    assert found.remedies() == ()
    assert sum(found.memory.values()) == found.peak_bytes


def too_large() -> None:
    dist.init_process_group("neuron")
    layers = nn.Sequential(*(nn.Linear(32768, 32768, device="neuron") for _ in range(4)))
    network = nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.zeros(8, 32768, device="neuron")).sum().backward()
    optimizer.step()


def test_a_job_that_does_not_fit_says_what_is_large_and_what_to_do() -> None:
    found = plan(too_large, world_size=64)
    assert not found.fits
    assert found.peak_bytes > 64 << 30  # parameters, gradients, buckets and two moments of 16 GiB
    assert any("divide the optimizer's state" in remedy for remedy in found.remedies())
    text = str(found)
    assert "DOES NOT FIT" in text
    assert "4 x 32768x32768 float32, parameters: module.0.weight and others" in text
    assert "To make it fit: " in text


# What scripts do besides training.


def bookkeeping() -> None:
    """Numbers of the host and small integers have values, those of the device are zero."""
    dist.init_process_group()  # no backend named
    flag = torch.tensor([7], device="neuron")
    dist.all_reduce(flag)
    gathered = [torch.zeros_like(flag) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, flag)
    assert [int(one) for one in gathered] == [7] * dist.get_world_size()
    objects: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(objects, {"rank": dist.get_rank()})
    assert objects[-1] == {"rank": dist.get_rank()}
    dist.barrier()
    host = torch.arange(6.0).sum()
    assert host.item() == 15.0
    network = nn.Linear(3000, 3000).to("neuron")  # large on the host, so without values there, too
    loss = network(torch.ones(2, 3000).to("neuron")).sum()
    assert loss.item() == 0.0
    assert loss.detach().cpu().numpy().shape == ()
    scaler = torch.amp.GradScaler("neuron")
    scaler.scale(loss).backward()
    optimizer = torch.optim.AdamW(network.parameters())
    scaler.step(optimizer)
    scaler.update()


def test_a_script_keeps_its_books() -> None:
    found = plan(bookkeeping, world_size=8, rank=2)
    assert found.steps == 1
    assert not dist.is_initialized()


def depends_on_values() -> None:
    dist.init_process_group("neuron")
    scores = nn.Linear(2048, 2048, device="neuron")(torch.ones(64, 2048, device="neuron"))
    scores[scores > 0].sum().backward()


def no_group(name: str) -> Callable[[], object]:
    errors: dict[str, Callable[[], object]] = {
        "instance": lambda: plan(print, world_size=2, instance="p5.48xlarge"),
        "rank": lambda: plan(print, world_size=2, rank=2),
        "lnc": lambda: plan(print, world_size=2, lnc=4),
        "ranks": lambda: plan(print, world_size=2, ranks_per_instance=65),
        "size": lambda: plan(print, world_size=0),
        "steps": lambda: plan(print, world_size=2, steps=0),
        "core": lambda: plan(print, world_size=64, rank=63),
        "script": lambda: plan("missing.py", world_size=2),
        "values": lambda: plan(depends_on_values, world_size=2),
        "exit": lambda: plan(lambda: sys.exit(3), world_size=2),
    }
    return errors[name]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("instance", r"unknown instance type 'p5.48xlarge'; known: trn1.2xlarge, .*trn2.48xlarge"),
        ("rank", "rank 2 is not one of 0 to 1"),
        ("lnc", "lnc=4: trn2 groups its cores by 1, 2"),
        ("ranks", "65 ranks on trn2.48xlarge, which has 64 logical cores"),
        ("size", "world_size=0: a job has at least one rank"),
        ("steps", "steps=0: a plan has at least one step"),
        (
            "core",
            r"local rank 63, .* sees 4 cores; set NEURON_RT_NUM_CORES=64 before Python starts",
        ),
        ("script", "missing.py is not a file"),
        ("values", "the shape of what aten.* gives depends on values, and a plan has none"),
        ("exit", "the script ended itself with 3"),
    ],
)
def test_errors(name: str, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        no_group(name)()
    assert not dist.is_initialized()
    assert torch.ones(2, device="neuron").sum().item() == 2.0  # the process is as before


# Links and times.


def test_links_are_those_between_the_ranks() -> None:
    place = Placement.of(512, "trn2.48xlarge", None, None)
    assert place.instances == 8
    assert place.span([5]) == "core"
    assert place.span(range(4)) == "chip"
    assert place.span(range(8)) == "instance"
    assert place.span([0, 64]) == "network"


def test_times_follow_the_published_numbers() -> None:
    place = Placement.of(512, "trn2.48xlarge", None, None)
    size = 1 << 30
    # Eight groups of an instance share its 3200 Gbit/s; of 64 ranks each sends 63/64.
    dp = place.seconds("all_gather", size, range(0, 512, 8))
    assert dp == pytest.approx(size * 63 / 64 * 8 / 400e9, rel=0.01)
    # Two chips, one group on each pair.
    tp = place.seconds("all_gather", size, range(8))
    assert tp == pytest.approx(max(size * 7 / 8 / 1280e9, 2 * size * 7 / 8 * 4 / 2900e9), rel=0.01)
    assert place.seconds("barrier", 0, range(8)) == pytest.approx(2e-6)
    assert Placement.of(2, "trn1.32xlarge", None, None).seconds("barrier", 0, range(2)) is None


# Data and command.

KEYS = {
    "version": int,
    "job": {
        "rank", "world_size", "instance", "instances", "lnc", "ranks_per_instance", "steps",
    },
    "memory": {
        "fits", "hbm_bytes", "peak_bytes", "peak_phase", "peak_step", "at_peak", "phases",
        "consumers", "host_bytes", "remedies",
    },
    "collectives": {"step", "rows", "setup", "order"},
}  # fmt: skip
ISSUED = {
    "number", "kind", "group", "ranks", "dtype", "shapes", "bytes", "operation", "peer", "phase",
    "step", "module",
}  # fmt: skip
ROW = {
    "kind", "group", "size", "dtype", "operation", "phase", "bytes", "count", "total", "sent",
    "span", "seconds",
}  # fmt: skip


def check_json(text: str) -> dict[str, Any]:
    data = json.loads(text)
    assert data["version"] == 1
    assert set(data) == set(KEYS)
    for part in ("job", "memory", "collectives"):
        assert set(data[part]) == KEYS[part]
    assert all(set(one) == ISSUED for one in data["collectives"]["order"])
    assert all(set(one) == ROW for one in data["collectives"]["rows"])
    documented = (ROOT / "docs/planning.md").read_text()
    for part in ("job", "memory", "collectives"):
        assert all(f"`{key}`" in documented for key in data[part])
    assert isinstance(data, dict)
    return data


def test_json_has_the_documented_keys() -> None:
    data = check_json(planned("fsdp", world_size=4).to_json())
    order = data["collectives"]["order"]
    assert [one["number"] for one in order] == list(range(len(order)))


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch_neuronx.distributed.plan", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.slow
def test_command_runs_an_unmodified_script(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    done = command(
        "--world-size", "512", "--rank", "63", "--order", "--json", str(out),
        "examples/plan_job.py", "--size", "tiny", "--tp", "4",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step ") >= 1
    assert "Plan of rank 63 of 512 on 8 x trn2.48xlarge" in done.stdout
    assert "Order of the collectives of the step of step 2" in done.stdout
    data = check_json(out.read_text())
    assert {row["group"] for row in data["collectives"]["rows"]} == {"dp", "tp"}


def test_command_tells_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--world-size", "4", "--instance", "x", "examples/plan_job.py"]) == 2
    assert capsys.readouterr().err.startswith("cannot plan: unknown instance type 'x'")


@pytest.mark.exhaustive
@pytest.mark.parametrize("world_size", [64, 512])
def test_eight_billion_parameters(world_size: int, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    done = command(
        "--world-size", str(world_size), "--json", str(out), "examples/plan_job.py",
        "--size", "8b", "--tp", "8",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = check_json(out.read_text())
    rows = {(row["phase"], row["kind"], row["group"]): row for row in data["collectives"]["rows"]}
    # A layer's weights: attention 4096*(4096+1024+1024+4096), feed-forward 3*4096*14336, two norms.
    layer = 4096 * 10240 + 3 * 4096 * 14336
    backward = rows["backward", "all_gather", "dp"]
    assert backward["count"] == 32
    assert backward["bytes"] == pytest.approx(layer / 8 * 2, rel=0.01)
