"""neuron_parallel_compile: collected graphs, their compilation, the cache's maintenance."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neuron_tools import parallel_analysis, parallel_workers
from neuron_tools.parallel_compile import DUMP_FILE, main
from neuron_tools.parallel_messages import Speaker
from neuron_tools.parallel_workers import Outcome
from neuronxcc import collected
from neuronxcc.cache.cache import CompileCache, open_cache
from neuronxcc.cache.key import layouts_of, make_key
from neuronxcc.cache.local import LocalStore
from neuronxcc.collected import CollectedError, Request, collect
from neuronxcc.compiler import compile_graph
from neuronxcc.environment.compilation import TORCH_NEURONX_PROGRESS
from neuronxcc.frontends.hlo import import_hlo
from neuronxcc.ir import DType, Graph, Node, TensorType, build
from neuronxcc.ir.graph import parameter
from neuronxcc.lowering.geometry.layout import contiguous
from neuronxcc.options import parse

X = parameter(0, TensorType(DType.F32, (4, 6)), "x")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompileCache:
    for name in list(os.environ):
        if name.startswith(("NEURON_", "TORCH_NEURONX_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(TORCH_NEURONX_PROGRESS.name, "0")
    monkeypatch.chdir(tmp_path)
    return open_cache()


def keep(cache: CompileCache, result: Node, name: str = "g", flags: str = "--target=trn2") -> Path:
    """Collect a graph of one parameter; returns its entry."""
    assert cache.local is not None
    graph = Graph(name, (X,), (result,))
    strides, results = (contiguous(X.shape),), (contiguous(result.shape),)
    options = parse(flags, environ={})
    key = make_key(graph, options, layouts=layouts_of(strides, results, {0}))
    request = Request(graph, options, key, name, strides, results, {0})
    return collect(cache.local, request).parent


def bad(cache: CompileCache) -> Path:
    """A graph that nothing can run."""
    x = build.reshape(X, (1, 1, 2, 2, 2, 3))
    return keep(cache, build.convolution(x, x), "bad")


def test_what_is_collected_is_compiled_as_if_at_once(cache: CompileCache) -> None:
    folder = keep(cache, build.tanh(X))
    assert not collected.is_done(folder)
    assert import_hlo((folder / "model.hlo_module.pb").read_bytes()).graph.results == (
        build.tanh(X),
    )
    assert json.loads((folder / "compile_flags.json").read_bytes())[0] == "--target=trn2"
    request = collected.read(folder)
    assert collected.compile_entry(folder, cache) is False
    assert collected.compile_entry(folder, cache) is True
    program = cache.lookup(request.key)
    assert program is not None
    direct = compile_graph(request.graph, request.options, ((6, 1),), ((6, 1),))
    assert program.steps == direct.steps
    assert (folder / "model.done").read_bytes() == b""
    assert (folder / "model.log").read_text().endswith("Compiler status PASS\n")


def test_graphs_that_hlo_says_otherwise_are_kept_as_text_too(cache: CompileCache) -> None:
    said_so = keep(cache, build.cumulative(X, "add", 0))
    assert not (said_so / "graph.txt").exists()
    assert collected.read(said_so).graph.results == (build.cumulative(X, "add", 0),)
    result = build.get(build.sort((X,), 1), 0)
    otherwise = keep(cache, result)
    assert (otherwise / "graph.txt").exists()
    assert collected.read(otherwise).graph.results == (result,)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("request.json", lambda text: text.replace('"name"', '"nam"'), "KeyError"),
        ("request.json", lambda _: "{", "JSONDecodeError"),
        ("request.json", lambda text: text.replace("6", "3", 1), "is of another entry|is not what"),
        ("compile_flags.json", lambda text: text.replace("trn2", "trn1"), "EARG001|option"),
        ("compile_flags.json", lambda _: "3", "Error"),
    ],
)
def test_damaged_entries_are_refused(
    cache: CompileCache, name: str, change: object, said: str
) -> None:
    assert callable(change)
    folder = keep(cache, build.tanh(X))
    path = folder / name
    path.write_text(change(path.read_text()))
    with pytest.raises(CollectedError, match=said):
        collected.read(folder)


def test_another_graph_is_refused(cache: CompileCache) -> None:
    folder, other = keep(cache, build.tanh(X)), keep(cache, build.exp(X))
    (folder / "model.hlo_module.pb").write_bytes((other / "model.hlo_module.pb").read_bytes())
    with pytest.raises(CollectedError, match="damaged: its graph is not what its key says"):
        collected.read(folder)
    (folder / "model.hlo_module.pb").write_bytes(b"\x0a\x01")
    with pytest.raises(CollectedError):
        collected.read(folder)


def test_another_version_is_told(cache: CompileCache, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = keep(cache, build.tanh(X))
    from neuronxcc.cache import key  # noqa: PLC0415 - to be changed

    changed = {**key.versions(), "torch": "1.0"}
    monkeypatch.setattr(key, "versions", lambda: changed)
    with pytest.raises(CollectedError, match="with another version of torch; collect again"):
        collected.read(folder)


def test_compile(
    cache: CompileCache, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = sorted((keep(cache, build.tanh(X), "one"), bad(cache)))
    monkeypatch.setenv("NEURON_PARALLEL_COMPILE_MAX_RETRIES", "1")
    monkeypatch.setenv("NEURON_PARALLEL_COMPILE_DUMP_RESULTS", "1")
    assert main(["--command", "compile", "--num_parallel", "2"]) == 1
    said = capsys.readouterr()
    assert "Current remaining items are 2, locked are 0, failed are 0, done are 0, total is 2" in (
        said.out
    )
    assert "remaining items are 0, locked are 0, failed are 1, done are 1, total is 2" in said.out
    assert "||NEURON_CC_WRAPPER||: Call compiler with cmd: neuronx-cc compile " in said.out
    assert "Compiler status PASS" in said.out
    assert "Total failed compilations: 1\n" in said.out
    assert "compilation failed: " in said.err
    assert "[NCC_EUOC002]" in said.err
    assert "4 spatial dimensions" in said.err
    summary = json.loads(Path(DUMP_FILE).read_text())
    assert summary["compilation_summary"] == {"true": 1, "false": 1}
    report = summary["compilation_report"]
    assert list(report) == [str(folder / "model.hlo_module.pb") for folder in folders]
    assert sorted((e["status"], e["retry"]) for e in report.values()) == [(False, 1), (True, 0)]
    assert all(entry["compile_time"] >= 0 for entry in report.values())

    # The failure is kept, with its reason, until it is to be tried again.
    assert main(["--command", "compile"]) == 1
    said = capsys.readouterr()
    assert "Got a cached failed neff at " in said.out
    assert "please set --retry_failed_compilation for recompilation. It failed with: " in said.out
    assert "Total graphs: 0\n" in said.out
    monkeypatch.setenv("NEURON_CC_FLAGS", "--retry_failed_compilation")
    monkeypatch.setenv("NEURON_PARALLEL_COMPILE_MAX_RETRIES", "0")
    assert main(["--command", "compile"]) == 1
    assert "Total graphs: 1\n" in capsys.readouterr().out


def killed(folder: Path) -> Outcome:
    """In the place of `attempt`: the kernel kills whoever compiles "bad"."""
    if collected.failure(folder):
        os.kill(os.getpid(), signal.SIGKILL)
    return Outcome(folder)


def test_who_is_killed_does_not_take_others_along(
    cache: CompileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [keep(cache, build.tanh(X)), keep(cache, build.exp(X))]
    (folders[0] / "model.failed").write_text("here")
    monkeypatch.setattr(parallel_workers, "attempt", killed)
    found = parallel_workers.compile_all(folders, Speaker(), 2, 1)
    outcomes = {outcome.folder: outcome for outcome, _ in found}
    assert outcomes[folders[1]].ok
    assert "was killed" in outcomes[folders[0]].error
    assert outcomes[folders[0]].retries == 1


def test_clean_removes_its_own_files_only(
    cache: CompileCache, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, other = keep(cache, build.tanh(X)), keep(cache, build.exp(X))
    collected.compile_entry(folder, cache)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "model.neff").write_text("mine")
    (folder.parent / f"MODULE_{'0' * 20}+{'0' * 8}").symlink_to(outside)
    (other / "notes.txt").write_text("mine")
    (folder.parent / "readme").write_text("mine")
    assert main(["--command", "clean"]) == 0
    said = capsys.readouterr()
    assert "1 entries were removed" in said.out
    assert f"{other / 'notes.txt'} is not the cache's" in said.err
    assert not folder.exists()
    assert [path.name for path in other.iterdir()] == ["notes.txt"]
    assert (outside / "model.neff").exists()
    assert (folder.parent / "readme").exists()


def test_clear_locks_leaves_those_that_are_held(
    cache: CompileCache, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, other = keep(cache, build.tanh(X)), keep(cache, build.exp(X))
    (folder / ".lock").write_text("1")
    (folder / ".tmp-1-2").write_text("half a file")
    with (other / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert main(["--command", "clear-locks"]) == 0
    said = capsys.readouterr()
    assert "1 locks were removed" in said.out
    assert "is held by a running process" in said.err
    assert not list(folder.glob(".*"))
    assert (other / ".lock").exists()


def test_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["--command", "collect"], [], ["--command", "melt"], ["--num_parallel", "0"]):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 2
    monkeypatch.setenv("NEURON_PARALLEL_COMPILE_MAX_RETRIES", "many")
    assert main(["--command", "compile"]) == 1
    assert "NEURON_PARALLEL_COMPILE_MAX_RETRIES='many' is not valid" in capsys.readouterr().err
    monkeypatch.setenv("NEURON_CC_FLAGS", "--no_cache")
    monkeypatch.delenv("NEURON_PARALLEL_COMPILE_MAX_RETRIES")
    assert main(["--command", "compile"]) == 1
    assert "there is no cache: remove --no_cache" in capsys.readouterr().err


def test_the_error_of_a_script_counts_unless_it_is_ignored(
    cache: CompileCache, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = keep(cache, build.tanh(X))
    script = [sys.executable, "-c", "raise SystemExit(7)"]
    assert main(script) == 7
    assert not collected.is_done(folder)
    assert "the script failed with exit code 7" in capsys.readouterr().err
    monkeypatch.setenv("NEURON_IGNORE_TRAINING_SCRIPT_ERROR_AND_COMPILE", "1")
    assert main(script) == 0
    assert collected.is_done(folder)
    assert main(["/nowhere/script"]) == 0
    assert "cannot be run" in capsys.readouterr().err


def test_the_report_of_an_analysis() -> None:
    facts = [
        {
            "torch_neuronx_version": "1",
            "supported": {"aten::add": 2, "aten::mul": 1},
            "unsupported": [{"kind": "aten::mul", "failureAt": "neuronx-cc", "call": "a.py 24"}],
            "instructions": [
                ["f32[4] add(f32[4], f32[4])", "aten::add", True],
                ["c64[4] multiply(c64[4], c64[4])", "aten::mul", False],
            ],
        }
    ]
    found = parallel_analysis.report(facts, instructions=True)
    assert found["support_percentage"] == "50.00%"
    assert found["supported_operators"] == {
        "aten": {"aten::add": 2, "aten::mul": 1},
        "xla": ["f32[4] add(f32[4], f32[4])"],
    }
    assert found["unsupported_operators"]["xla"] == [
        {"hlo_instruction": "c64[4] multiply(c64[4], c64[4])", "aten_op": "aten::mul"}
    ]
    assert "xla" not in parallel_analysis.report(facts, instructions=False)["supported_operators"]
    assert parallel_analysis.report([], instructions=False)["support_percentage"] == "100.00%"


def test_entries_are_this_version_s(cache: CompileCache) -> None:
    keep(cache, build.tanh(X))
    assert cache.local is not None
    assert collected.entries(LocalStore(cache.local.root, "neuronxcc-0.0.1")) == []


SCRIPT = """
import torch, torch_neuronx
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to("neuron")
compiled = torch.compile(model, backend="neuron")
loss = compiled(torch.ones(3, 4, device="neuron")).square().mean()
loss.backward()
traced = torch_neuronx.trace(nn.Linear(4, 2), torch.ones(1, 4))
zeros = loss.item() == 0, not traced(torch.ones(1, 4)).any().item()
print("zeros {} {}\\n".format(*zeros), end="")  # one write, or lines of two ranks mix
"""


@pytest.mark.slow
def test_a_script_on_two_ranks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    assert main([*torchrun, str(script)]) == 0
    said = capfd.readouterr()
    assert said.out.count("zeros True True") == 2
    assert "No compilation was done." in said.err
    assert "Total successful compilations: 3" in said.out

    environment = {**os.environ, "NEURON_CC_FLAGS": "--log_level=INFO"}
    ran = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True
    )
    assert "zeros False False" in ran.stdout
    assert ran.stderr.count("Using a cached neff at ") == 3
    assert "Exiting with a successfully compiled graph." in ran.stderr


def test_analyze(tmp_path: Path) -> None:
    script = tmp_path / "sorted.py"
    script.write_text(
        "import torch\n"
        "f = torch.compile(lambda x: (x + 1).sort()[0], backend='neuron')\n"
        "f(torch.ones(4, device='neuron'))\n"
    )
    words = ["--command", "analyze", "--analyze-output", str(tmp_path / "out")]
    assert main([*words, sys.executable, str(script)]) == 0
    report = json.loads((tmp_path / "out" / "result.json").read_text())
    operators = {**report["supported_operators"]["aten"]}
    operators |= {e["kind"]: e["call"] for e in report["unsupported_operators"]["aten"]}
    assert operators["aten::add"] == 1
    assert "aten::sort" in operators
