"""The neuronx-cc command: subcommands, files, messages, exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronxcc.cli import main
from neuronxcc.cli.operators import operator_names
from neuronxcc.cli.usage import EFFECTS
from neuronxcc.neff import read_neff
from neuronxcc.option_table import FLAGS, Status
from neuronxcc.targets import target_names
from tests.frontends.modules import Computation, module

#: The public list of the first releases, as XlaBuilder calls them.
DOCUMENTED = frozenset(
    {
        "Abs", "Add", "Allgather", "Allreduce", "Atan2", "Batchnorm", "Batchnormgrad",
        "Batchnorminference", "BitcastConvertType", "Broadcast", "BroadcastInDim", "Ceil",
        "Clamp", "Compare", "Concatenate", "Constant", "ConstantLiteral", "ConvertElementType",
        "Cos", "Customcall", "Div", "Dot", "DotGeneral", "DynamicUpdateSlice", "Eq", "Exp",
        "Floor", "Gather", "Ge", "GetTupleElement", "Gt", "Iota", "Le", "Log", "LogicalAnd",
        "LogicalNot", "Lt", "Max", "Min", "Mul", "Ne", "Neg", "Pad", "Pow", "Reduce", "Reshape",
        "Rev", "RngBitGenerator", "RngUniform", "Rsqrt", "Scatter", "Select",
        "SelectAndScatter", "ShiftRightLogical", "Sign", "Sin", "Slice", "Sqrt", "Sub", "Tanh",
        "Transpose", "Tuple",
    }
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("NEURON_CC_FLAGS", "NEURON_PLATFORM_TARGET_OVERRIDE"):
        monkeypatch.delenv(name, raising=False)
    made = Computation("main", 1)
    made.add("negate", "f32[4,4]", made.add("sine", "f32[4,4]", made.parameter("f32[4,4]")))
    (tmp_path / "model.pb").write_bytes(module(made))
    return tmp_path


def test_a_model_becomes_a_neff(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "model.pb", "--framework", "XLA", "--target", "trn2"]) == 0
    neff = read_neff((folder / "file.neff").read_bytes())
    assert neff.info.target == "trn2"
    assert [b.name for b in neff.program.buffers if b.kind == "input"] == ["parameter.1000"]
    said = capsys.readouterr()
    assert said.out == "Compiler status PASS\n"
    assert said.err == ""
    log = (folder / "log-neuron-cc.txt").read_text()
    assert "INFO neuronx-cc compile model.pb --framework XLA --target trn2" in log
    assert log.endswith("USER Compiler status PASS\n")


def test_equal_models_give_equal_bytes(folder: Path) -> None:
    words = ["compile", "model.pb", "--target=trn2"]
    assert main([*words, "--output", "first.neff"]) == 0
    assert main([*words, "--output", "second.neff", "--verbose=35"]) == 0
    assert (folder / "first.neff").read_bytes() == (folder / "second.neff").read_bytes()


def test_several_models_compile_at_once(folder: Path) -> None:
    for name in ("one.pb", "two.pb"):
        (folder / name).write_bytes((folder / "model.pb").read_bytes())
    assert main(["compile", "one.pb", "two.pb", "-O1", "--num-parallel-jobs=2"]) == 0
    assert (folder / "one.neff").read_bytes() == (folder / "two.neff").read_bytes()


@pytest.mark.parametrize("jobs", [1, 2])
def test_of_several_models_it_is_said_which_failed(
    folder: Path, capsys: pytest.CaptureFixture[str], jobs: int
) -> None:
    made = Computation("main", 1)
    made.add("fft", "f32[4]", made.parameter("f32[4]"))
    (folder / "bad.pb").write_bytes(module(made))
    (folder / "noise.pb").write_bytes(b"\xff" * 99)
    words = ["bad.pb", "model.pb", "noise.pb", "none.pb", f"--num-parallel-jobs={jobs}"]
    assert main(["compile", *words]) == 1
    said = capsys.readouterr()
    assert "[ERROR] bad.pb: [NCC_EUOC002]" in said.err
    assert "[ERROR] noise.pb: [NCC_EHLO001]" in said.err
    assert "[ERROR] none.pb: " in said.err
    assert "3 of 4 files failed: bad.pb, noise.pb, none.pb" in said.err
    assert (folder / "model.neff").exists()


def test_two_models_of_one_name_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "model.hlo").write_bytes((folder / "model.pb").read_bytes())
    assert main(["compile", "model.pb", "model.hlo"]) == 1
    assert "model.pb and model.hlo would both be written to model.neff" in capsys.readouterr().err
    assert not (folder / "model.neff").exists()


def test_an_error_is_printed_logged_and_told_by_the_exit_code(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Computation("main", 1)
    made.add("fft", "f32[4]", made.parameter("f32[4]"))
    (folder / "bad.pb").write_bytes(module(made))
    assert main(["compile", "bad.pb"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("[ERROR] [NCC_EUOC002] An unsupported operator was used: fft\n")
    assert "model.py:1001" in said.err
    assert said.out == "Compiler status ERROR\n"
    assert not (folder / "file.neff").exists()
    assert "ERROR [NCC_EUOC002]" in (folder / "log-neuron-cc.txt").read_text()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["compile"], "no model file was given"),
        (["compile", "none.pb"], "No such file"),
        (["compile", "model.pb", "--target=trn9"], "--target=trn9 is not valid; allowed: trn1"),
        (["compile", "model.pb", "--auto-cast", "some"], "allowed: none, matmult, all"),
        (["compile", "model.pb", "--target=trn1", "--lnc=2"], "[NCC_EARG001]"),
        (["compile", "model.pb", "--optlvel=1"], "Did you mean --optlevel?"),
        (["frobnicate"], "'frobnicate' is no command of neuronx-cc"),
        ([], "no command was given"),
        (["list-operators", "--framework", "ONNX"], "allowed: --framework XLA"),
    ],
)
def test_wrong_words(
    words: list[str], text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert text in capsys.readouterr().err
    assert not (folder / "file.neff").exists()


def test_deprecated_options_say_what_to_write(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", "model.pb", "--enable-experimental-O1"]) == 0
    assert "--enable-experimental-O1 is deprecated; use -O1" in capsys.readouterr().err
    assert (folder / "file.neff").exists()


def test_too_much_memory(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Computation("main", 1)
    made.add("negate", "f32[65536,65536]", made.parameter("f32[65536,65536]"))
    (folder / "big.pb").write_bytes(module(made))
    assert main(["compile", "big.pb", "--target=trn2"]) == 1
    said = capsys.readouterr().err
    assert "[NCC_EOOM001] combined memory needed for the model tensors exceeds the HBM" in said
    assert "32.00 GiB are needed, a logical core of trn2 has 24 GiB" in said


def test_explain_tells_memory_engines_and_times(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", str(folder / "model.pb"), "--explain"]) == 0
    said = capsys.readouterr().out
    for part in ("memory of a logical core of trn2 (24 GiB)", "inputs", "64 B", "steps by engine",
                 "reading", "lowering", "pass 0: simplify"):  # fmt: skip
        assert part in said


def test_versions_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("NeuronX Compiler version ")
    assert "Python version" in said
    assert "NumPy version" in said
    assert main(["compile", "--help"]) == 0
    said = capsys.readouterr().out
    for flag in ("--model-type generic, transformer, unet-inference", "--lnc, -lnc", "--explain"):
        assert flag in said
    assert f"--target {', '.join(target_names())}\n" in said
    does, _, nothing = said.partition("accepted and recorded, without effect:")
    assert "--num-parallel-jobs\n      a number: how many of several model files" in does
    names = [flag.name for flag in FLAGS if flag.status is Status.INTERNAL]
    assert all((name in does) != (name in nothing) for name in names)
    assert set(EFFECTS) <= set(names)
    assert main(["--help"]) == 0
    assert "list-operators" in capsys.readouterr().out


def test_the_documented_operators_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list-operators", "--framework", "XLA"]) == 0
    assert capsys.readouterr().out.split() == operator_names()
    assert not DOCUMENTED - set(operator_names())
    assert not [name for name in operator_names() if name.endswith(("Start", "Done", "Update"))]
