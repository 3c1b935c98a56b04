"""NEFFs with collectives: several processes, against JAX on as many of XLA's CPU devices."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nrtpy
from neuronxcc.environment.variable import VariableError
from neuronxcc.ir.collectives import ALL_RANKS
from neuronxcc.program.errors import NeffError
from neuronxcc.program.groups import members_of
from neuronxcc.program.steps.collective import CollectiveStep
from nrtpy import NrtError, NrtpyModel, NrtpyTensor
from tests.distributed import launch
from tests.frontends.modules import Computation, module, scalar
from tests.nrtpy import jax_ranks
from tests.nrtpy.neffs import compile_module
from torch_neuronx.nrt.groups import join

ROOT = "NEURON_RT_ROOT_COMM_ID"


def sum_of_all() -> bytes:
    """A module whose all-reduce names no ranks: everybody."""
    main = Computation("main", 1)
    main.add("all-reduce", "f32[4]", main.parameter("f32[4]"), called_computation_ids=[2])
    return module(main, scalar("add"))


def prepared(folder: Path, ranks: int) -> Path:
    """A folder of NEFFs with the arguments and results of every rank."""
    launch.run(
        [sys.executable, "-m", "tests.nrtpy.jax_ranks", str(folder), str(ranks)],
        environment={"XLA_FLAGS": jax_ranks.flags(folder, ranks)},
    )
    given = [np.arange(4, dtype=np.float32) + rank for rank in range(ranks)]
    arrays = {f"in{rank}_0": x for rank, x in enumerate(given)}
    arrays |= {f"out{rank}_0": np.sum(given, 0) for rank in range(ranks)}
    np.savez(folder / "all.npz", **arrays)  # type: ignore[arg-type]
    (folder / "all.pb").write_bytes(sum_of_all())
    for path in folder.glob("*.pb"):
        compile_module(path.read_bytes(), path.with_suffix(".neff"))
    return folder


CASES = {2: ("all", "everything", "loop", "rank", "training"), 4: ("all", "everything", "groups")}


def test_two_ranks_of_torchrun(tmp_path: Path) -> None:
    folder = prepared(tmp_path, 2)
    said = launch.torchrun(2, "-m", "tests.nrtpy.rank_worker", str(folder), "traced")
    for case in (*CASES[2], "traced"):
        for rank in range(2):
            assert f"rank {rank}: {case} agrees" in said


def test_four_processes_that_meet_where_the_variable_says(tmp_path: Path) -> None:
    folder = prepared(tmp_path, 4)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MASTER_")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.nrtpy.rank_worker", str(folder)],
            env={
                **kept, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "4",
                ROOT: f"127.0.0.1:{port}", "OMP_NUM_THREADS": "1",
            },
            cwd=launch.REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(4)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=100)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, text in enumerate(said):
        assert processes[rank].returncode == 0, text
        for case in CASES[4]:
            assert f"rank {rank}: {case} agrees" in text


def test_the_rank_is_filled_by_the_loader(tmp_path: Path) -> None:
    main = Computation("main", 1)
    main.add("add", "u32[]", main.parameter("u32[]"), main.add("partition-id", "u32[]"))
    path = compile_module(module(main), tmp_path / "rank.neff")
    for rank in (0, 3):
        model = NrtpyModel.load_from_neff(path, rank_id=rank, world_size=4)
        assert list(model.input_tensors_info) == ["parameter.1000"]
        outputs = model({"parameter.1000": NrtpyTensor.from_numpy(np.array(10, np.uint32))})
        assert outputs is not None
        assert outputs["output_0"].numpy() == 10 + rank


def test_loading_without_the_other_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ROOT, "MASTER_ADDR", "MASTER_PORT", "NEURON_RT_EXEC_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    path = compile_module(sum_of_all(), tmp_path / "all.neff")
    with pytest.raises(NrtError, match=r"INVALID\(2\).*has collectives: load it with cc_enabled=T"):
        NrtpyModel.load_from_neff(path)
    with pytest.raises(NrtError, match=r"INVALID\(2\).*the 2 ranks meet: set NEURON_RT_ROOT_COMM_"):
        NrtpyModel.load_from_neff(path, cc_enabled=True, world_size=2)
    model = NrtpyModel.load_from_neff(path, cc_enabled=True)  # a job of one
    x = np.arange(4, dtype=np.float32)
    outputs = model({"parameter.1000": NrtpyTensor.from_numpy(x)})
    assert outputs is not None
    np.testing.assert_array_equal(outputs["output_0"].numpy(), x)
    with pytest.raises(NrtError, match=r"is rank 0 of 1, it cannot be rank 1 of 2 too; call nrtpy"):
        NrtpyModel.load_from_neff(path, cc_enabled=True, rank_id=1, world_size=2)
    nrtpy.reset()
    NrtpyModel.load_from_neff(path, cc_enabled=True)


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({}, "nothing says where the 2 ranks meet"),
        ({ROOT: "here"}, "NEURON_RT_ROOT_COMM_ID='here' is not valid; allowed: <address>:<port>"),
        ({ROOT: "host:70000"}, "'host:70000' is not valid"),
        ({"NEURON_RT_EXEC_TIMEOUT": "soon"}, "EXEC_TIMEOUT='soon' is not valid; allowed: seconds"),
        ({"NEURON_RT_EXEC_TIMEOUT": "0"}, "EXEC_TIMEOUT='0' is not valid"),
    ],
)
def test_wrong_variables(variables: dict[str, str], text: str) -> None:
    ranks = 1 if "NEURON_RT_EXEC_TIMEOUT" in variables else 2
    with pytest.raises((NeffError, VariableError), match=text):
        join(0, ranks, variables)


def step(
    kind: str, name: str, group: tuple[tuple[int, ...], ...] = (), **more: object
) -> CollectiveStep:
    return CollectiveStep(kind, name, group, (), (), **more)  # type: ignore[arg-type]


def test_members() -> None:
    pairs = step("all_gather", "ranks:0,2;1,3", ((0, 2), (1, 3)))
    assert members_of(pairs, 3, 4) == (1, 3)
    everybody = step("all_reduce", ALL_RANKS)
    assert members_of(everybody, 1, 3) == (0, 1, 2)
    permute = step("collective_permute", ALL_RANKS, pairs=((0, 1),))
    assert members_of(permute, 3, 4) == (0, 1, 2, 3)
    for wrong, world, text in (
        (pairs, 3, "all_gather of the ranks 0,2;1,3 needs rank 3, there are 3"),
        (step("all_reduce", "ranks:1,2", ((1, 2),)), 4, "rank 0 is in 0 of the groups 1,2"),
        (step("all_gather", ALL_RANKS, ((0, 1),)), 4, "all ranks was compiled for 2, there are 4"),
        (permute, 1, "a collective_permute goes to rank 1, there are 1"),
    ):
        with pytest.raises(NeffError, match=text):
            members_of(wrong, 0, world)
