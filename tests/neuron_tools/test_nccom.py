"""nccom-test: its words, its numbers, and collectives between real ranks."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neuron_tools.machine import ToolError
from neuron_tools.nccom import command, options
from neuron_tools.nccom.operations import BY_NAME, OPERATIONS, Operation, elements
from neuronxcc.perf.graphs.collectives import Reach, collective_us
from neuronxcc.targets import get_target

ROOT = Path(__file__).parents[2]


def read(*words: str) -> Any:
    return options.read(["-r", "4", *words, "allr"])


@pytest.mark.parametrize(
    ("text", "size"),
    [("8", 8), ("1kb", 1024), ("32M", 32 << 20), ("1GB", 1 << 30), ("2MiB", 2 << 20), ("3k", 3072)],
)
def test_sizes(text: str, size: int) -> None:
    assert options.size(text) == size


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ("-b 8 -e 16 -i 4", [8, 12, 16]),
        ("-b 8 -e 32 -f 2", [8, 16, 32]),
        ("-b 100 -e 200", list(range(100, 201, 10))),
        ("", [32 << 20]),
        ("-b 64M", [64 << 20]),
    ],
)
def test_documented_steps(words: str, sizes: list[int]) -> None:
    assert options.sizes(read(*words.split())) == sizes


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("-b 2 -e 1", "--minbytes 2 must be from 1 to --maxbytes 1"),
        ("-b 0 -e 1", "--minbytes 0 must be from 1"),
        ("-i 1 -f 2", "give --stepbytes or --stepfactor, not both"),
        ("-b 1 -e 1M -i 1", "more than 10000 sizes: choose a larger step"),
        ("-b 1 -e 1M -i 0", "--stepbytes must be at least 1"),
    ],
)
def test_sizes_that_are_none(words: str, why: str) -> None:
    with pytest.raises(ToolError, match=re.escape(why)):
        options.sizes(read(*words.split()))


@pytest.mark.parametrize("name", [name for names in options.REFUSED for name in names])
def test_what_is_not_emulated_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read(name, "x")
    assert ended.value.code == 2
    assert f"error: {name} is not possible: " in capsys.readouterr().err


def test_several_hosts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["-r", "4", "-N", "2", "allr"]) == 1
    assert capsys.readouterr().err.startswith("nccom-test: --nnodes 2: several hosts are not ")


def test_a_check_without_a_name() -> None:
    assert options.read(["-r", "2", "--check", "allg"]).check == "random"
    assert options.read(["-r", "2", "--check", "all_ones", "allg"]).check == "all_ones"
    assert options.read(["-r", "2", "allg"]).check is None


def test_statistics_end_with_the_operation() -> None:
    found = options.read(["-r", "2", "-t", "avg", "p50", "p99", "allr"])
    assert (found.stats, found.operation) == (["avg", "p50", "p99"], "allr")
    assert command._statistic("p50", [3e-6, 1e-6, 2e-6]) == pytest.approx(2)
    assert command._statistic("avg", [3e-6, 1e-6, 2e-6]) == pytest.approx(2)
    assert command._statistic("p99", [3e-6, 1e-6, 2e-6]) == pytest.approx(3)
    assert command._statistic("min", [3e-6, 1e-6, 2e-6]) == pytest.approx(1)


def test_bus_factors_are_those_of_the_documented_tables() -> None:
    """algbw and busbw of the guide: 2 ranks of all_reduce, 32 of all_gather."""
    assert BY_NAME["allr"].bus_factor(2) == 1
    assert 2.73 * BY_NAME["allg"].bus_factor(32) == pytest.approx(2.64, abs=0.01)
    assert 23.92 * BY_NAME["allr"].bus_factor(64) == pytest.approx(47.09, abs=0.02)
    assert BY_NAME["permute"].bus_factor(7) == 1


def test_elements_are_divided_between_ranks() -> None:
    assert elements(BY_NAME["allr"], 10, 4, 3) == 3
    assert elements(BY_NAME["allg"], 10, 4, 4) == 4
    assert elements(BY_NAME["alltoall"], 17, 1, 4) == 20


@pytest.mark.parametrize(
    ("option", "document", "why"),
    [
        (
            "--custom-replica-groups",
            {"replica_groups": [[0, 1], [2]]},
            "each of the ranks 0-3 once",
        ),
        ("--custom-replica-groups", {"replica_groups": [[0], [1, 2, 3]]}, "must be equally large"),
        ("--custom-replica-groups", [], "is no JSON object with"),
        ("--custom-src-target-pairs", {"src_target_pairs": [[0, 9]]}, "pairs are of ranks 0-3"),
        ("--custom-src-target-pairs", {"src_target_pairs": [[0, 1], [2, 1]]}, "pairs are of ranks"),
    ],
)
def test_files_that_do_not_fit(option: str, document: object, why: str, tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text(json.dumps(document))
    found = options.read(["-r", "4", option, str(file), "permute"])
    with pytest.raises(ToolError, match=re.escape(why)):
        (options.groups if "groups" in option else options.pairs)(found)


def test_metadata_that_does_not_fit(tmp_path: Path) -> None:
    rows = {
        "send_counts": [1, 2],
        "send_displs": [0, 1],
        "recv_counts": [1, 1],
        "recv_displs": [0, 1],
    }
    file = tmp_path / "file.json"
    file.write_text(json.dumps({"metadata": [rows, rows]}))
    found = options.read(["-r", "2", "--variable-size-op-metadata", str(file), "alltoallv"])
    with pytest.raises(ToolError, match="rank 0 sends 2 elements to rank 1, which receives 1"):
        options.metadata(found, 2)


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "neuron_tools.nccom.command", "--non-interactive", *words],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **environ},
    )  # fmt: skip


SMALL = ("-b", "64", "-e", "4096", "-f", "8", "-n", "2", "-w", "1")


@pytest.mark.slow
@pytest.mark.every(2)
@pytest.mark.parametrize("operation", [o.short for o in OPERATIONS])
def test_every_operation_is_right(operation: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run("-r", "3", *SMALL, "-d", "fp32", "-c", "random", "--report-to-json-file",
               str(report), operation)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "# measured on this host: 3 ranks on emulated NeuronCores"
    assert lines[1].split() == [
        "size(B)", "count(elems)", "type", "time:avg(us)", "algbw(GB/s)", "busbw(GB/s)",
    ]  # fmt: skip
    assert len(lines) == 2 + 3 + 1
    assert re.fullmatch(r"Avg bus bandwidth:\t\d+\.\d{4}GB/s", lines[-1])
    document = json.loads(report.read_text())
    assert document["time_source"] == "measured on this host"
    for line, row in zip(lines[2:-1], document["results"], strict=True):
        cells = line.split()
        assert [int(cells[0]), int(cells[1]), cells[2]] == [
            row["size(B)"], row["count(elems)"], "fp32",
        ]  # fmt: skip
        assert row["size(B)"] == 4 * row["count(elems)"]
        gib = row["size(B)"] / 2**30
        assert row["algbw(GB/s)"] == pytest.approx(gib / (row["time:avg(us)"] / 1e6))
        factor = BY_NAME[operation].bus_factor(3)
        assert row["busbw(GB/s)"] == pytest.approx(row["algbw(GB/s)"] * factor)


# More types of what the others show: they differ in nothing that the tool does.
MORE = [pytest.param(d, marks=pytest.mark.exhaustive) for d in ("int8", "fp16", "int32", "fp8")]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["uint8", "bf16", *MORE])
def test_types(dtype: str) -> None:
    done = run("-r", "2", "-b", "64", "-e", "64", "-n", "2", "-d", dtype, "-c", "all_ones", "allr")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_groups_stats_and_more_operations_at_once(tmp_path: Path) -> None:
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps({"replica_groups": [[0, 3], [1, 2]]}))
    done = run("-r", "4", *SMALL, "-I", "3", "-W", "1", "--unique-buff", "-t", "p50", "p99",
               "--coalesced-cc-size-ratio", "1:2", "--custom-replica-groups", str(groups),
               "--show-input-output-size", "-c", "random", "redsct")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split()[2:7] == [
        "total_input_size(B)", "total_output_size(B)", "type", "time:p50(us)", "time:p99(us)",
    ]  # fmt: skip


@pytest.mark.slow
def test_variable_sizes(tmp_path: Path) -> None:
    sent = [[3, 1], [2, 5]]  # rank 0 to ranks 0 and 1, rank 1 to both
    rows = [
        {
            "send_counts": sent[rank],
            "send_displs": [0, sent[rank][0]],
            "recv_counts": [sent[0][rank], sent[1][rank]],
            "recv_displs": [0, sent[0][rank]],
        }
        for rank in range(2)
    ]
    file = tmp_path / "file.json"
    file.write_text(json.dumps({"metadata": rows}))
    done = run("-r", "2", "-n", "2", "-d", "int32", "-c", "random", "--variable-size-op-metadata",
               str(file), "alltoallv")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[2].split()[:2] == ["24", "6"]


def predicted(
    capsys: pytest.CaptureFixture[str], report: Path, ranks: int, operation: str, *more: str
) -> dict[str, Any]:
    words = ["-r", str(ranks), "-d", "bf16", "--predict-only", "--report-to-json-file", str(report)]
    assert command.main([*words, *more, operation]) == 0
    table = capsys.readouterr().out.splitlines()
    found: dict[str, Any] = json.loads(report.read_text())
    assert (found["time_source"], found["results"]) == ("nothing was measured", [])
    assert table[0] == f"# {found['predicted']['time_source']}"
    # Nobody's parser takes it for what was measured.
    assert "avg" not in table[1]
    assert table[-1].startswith("Predicted avg bus bandwidth:")
    return dict(found["predicted"])


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: str(operation.name))
def test_predictions_are_those_of_the_performance_model(
    operation: Operation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """16 ranks are on four chips of trn2.48xlarge; messages go to the next core or chip."""
    words = ["-b", "1kb", "-e", "1MB", "-f", "32", "--predict", "trn2.48xlarge"]
    found = predicted(capsys, tmp_path / "report", 16, operation.short, *words)
    assert found["time_source"].startswith("predicted for trn2.48xlarge at LNC=2: published")
    ranks = 2 if operation.kind == "send" else 16
    chips, on_chip = (2, 1) if operation.kind == "send" else (4, 4)
    reach = Reach(ranks, chips, 1, on_chip, ranks, 4, 64, 3200)
    sizes = [row["size(B)"] for row in found["results"]]
    assert sizes == [1 << 10, 1 << 15, 1 << 20]
    for row in found["results"]:
        us = collective_us(operation.kind, row["size(B)"], reach, get_target("trn2"))
        assert us is not None
        assert row["time:predicted(us)"] == pytest.approx(us)
        assert row["algbw(GB/s)"] == pytest.approx(row["size(B)"] / (1 << 30) / (us / 1e6))
        factor = operation.bus_factor(16)
        assert row["busbw(GB/s)"] == pytest.approx(row["algbw(GB/s)"] * factor)


def test_predictions_of_other_chips_say_whose_hops_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NEURON_LOGICAL_NC_CONFIG", raising=False)
    found = predicted(capsys, tmp_path / "r", 2, "allr", "--predict", "trn1.32xlarge")
    assert "at LNC=1" in found["time_source"]
    assert "hops of trn2, no others are published" in found["time_source"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--predict trn9.large", "--predict 'trn9.large' is not known; allowed: inf2"),
        ("-r 128 --predict trn2.48xlarge", "--nworkers 128: trn2.48xlarge at LNC=2 has 64 cores"),
        ("--predict-only", "--predict-only needs --predict INSTANCE"),
        ("--predict trn2.48xlarge --coalesced-cc-size-ratio 1:2", "one operation with equal"),
    ],
)
def test_predictions_that_there_are_not(
    words: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["-r", "4", *words.split(), "allr"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"nccom-test: {why}") or why in said.err


@pytest.mark.slow
def test_measured_and_predicted_are_two_tables(tmp_path: Path) -> None:
    report = tmp_path / "report"
    words = ["-r", "2", "-b", "1kb", "-e", "1kb", "-n", "2", "-w", "0"]
    done = run(*words, "--predict", "trn2.48xlarge", "--report-to-json-file", str(report), "allr")
    first, second = done.stdout.split("# predicted")
    assert "time:avg(us)" in first
    assert "time:avg(us)" not in second
    found = json.loads(report.read_text())
    assert found["time_source"] == "measured on this host"
    assert "time:predicted(us)" not in found["results"][0]
    assert "time:avg(us)" not in found["predicted"]["results"][0]


@pytest.mark.slow
def test_a_failure_is_reported_as_documented() -> None:
    done = run("-r", "2", *SMALL, "allr", NEURON_PLATFORM_TARGET_OVERRIDE="trn9")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert re.match(
        r"Failure running neuron-bench - log file \S+nccom_test_log_\w+\.log", lines[-3]
    )
    assert lines[-1] == "1 errors found - test failed"
    log = Path(lines[-3].rpartition(" ")[2])
    log.unlink()
