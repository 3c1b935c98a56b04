"""What the options of `neuronx-cc compile` do to a model: numbers, limits, files and messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from neuronxcc.cli import main
from neuronxcc.compiler import compile_graph
from neuronxcc.frontends.hlo import import_hlo
from neuronxcc.neff import read_neff
from neuronxcc.options import OptionError, parse
from tests.frontends.hlo_text import proto_of, text_of, to_numpy, to_torch
from tests.frontends.modules import Computation, module
from torch_neuronx.program.executable import Executable

_RNG = np.random.default_rng(17)
X = _RNG.standard_normal((8, 16)).astype(np.float32)
W = _RNG.standard_normal((16, 4)).astype(np.float32)
DOT = proto_of(
    text_of(
        """d = f32[8,4] dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        r = f32[8,4] sine(d)""",
        [X, W],
    )
)


def run(content: bytes, flags: str, args: list[np.ndarray]) -> np.ndarray:
    """The first result of a module that is compiled with flags."""
    graph = import_hlo(content).graph
    program = compile_graph(graph, parse(flags, environ={}))
    (result,) = Executable(program, "cpu")([to_torch(a) for a in args])
    return to_numpy(result, graph.results[0].dtype.numpy)


def tf32(x: np.ndarray) -> np.ndarray:
    """Rounded to 10 bits of mantissa, halves to even."""
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & 0xFFFFE000).astype(np.uint32).view(np.float32)


ROUND: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "bf16": lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float32),
    "fp16": lambda x: x.astype(np.float16).astype(np.float32),
    "tf32": tf32,
    "fp8_e4m3": lambda x: x.astype(ml_dtypes.float8_e4m3).astype(np.float32),
}


def exact(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.asarray(np.sin(x.astype(np.float64) @ w.astype(np.float64)))


@pytest.mark.parametrize("kind", ROUND)
def test_auto_cast_rounds_what_it_says(kind: str) -> None:
    plain = run(DOT, f"--auto-cast-type={kind}", [X, W])  # without --auto-cast it does nothing
    np.testing.assert_allclose(plain, exact(X, W), atol=1e-5)
    cast = run(DOT, f"--auto-cast=matmult --auto-cast-type={kind}", [X, W])
    np.testing.assert_allclose(cast, exact(ROUND[kind](X), ROUND[kind](W)), atol=1e-5)
    assert np.abs(cast - plain).max() > 1e-4
    everything = run(DOT, f"--auto-cast=all --auto-cast-type={kind}", [X, W])
    assert everything.dtype == np.float32
    if kind in {"bf16", "fp16"}:  # the product and the sine are rounded, too
        eps = {"bf16": 2.0**-8, "fp16": 2.0**-11}[kind]
        largest = np.abs(ROUND[kind](X) @ ROUND[kind](W)).max()
        assert np.abs(everything - cast).max() > eps / 8
        np.testing.assert_allclose(everything, cast, atol=eps * largest + eps)
    else:
        np.testing.assert_array_equal(everything, cast)


def test_sums_of_16_bits_accumulate_in_float32_unless_told_otherwise() -> None:
    x = _RNG.random((64, 1000)).astype(ml_dtypes.bfloat16)
    body = """z = bf16[] constant(0)
    r = bf16[64] reduce(p0, z), dimensions={1}, to_apply=sum"""
    called = """sum { a = bf16[] parameter(0)
      b = bf16[] parameter(1)
      ROOT c = bf16[] add(a, b) }
    """
    content = proto_of(text_of(body, [x], called))
    wide = x.astype(np.float32).sum(1).astype(ml_dtypes.bfloat16)
    for flags in ("", "--enable-mixed-precision-accumulation"):
        np.testing.assert_array_equal(run(content, flags, [x]), wide)
    part = x
    while part.shape[1] > 1:
        half = part.shape[1] // 2
        joined = part[:, :half] + part[:, half : 2 * half]
        part = np.concatenate([joined, part[:, 2 * half :]], 1)
    narrow = run(content, "--disable-mixed-precision-accumulation", [x])
    np.testing.assert_array_equal(narrow, part[:, 0])
    assert (narrow != wide).any()


@pytest.mark.parametrize("level", ["-O1", "-O2", "-O3", "--optlevel=3"])
def test_levels_change_no_result(level: str) -> None:
    np.testing.assert_array_equal(run(DOT, level, [X, W]), run(DOT, "", [X, W]))


# ---- through the command ------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEURON_CC_FLAGS", raising=False)
    (tmp_path / "model.pb").write_bytes(DOT)
    return tmp_path


def compiled(*flags: str) -> int:
    return main(["compile", "model.pb", "--framework", "XLA", *flags])


@pytest.mark.parametrize("target", ["inf2", "trn1", "trn1n", "trn2", "trn3"])
def test_every_target(target: str, folder: Path) -> None:
    assert compiled("--target", target) == 0
    assert read_neff((folder / "file.neff").read_bytes()).info.target == target


def test_the_lines_that_are_publicly_used(folder: Path) -> None:
    """Those of neuronx-distributed-inference, NKIPY and optimum."""
    assert compiled(
        "--target=trn2", "--auto-cast=none", "--model-type=transformer", "--lnc=2", "-O1",
        "--tensorizer-options=--enable-ccop-compute-overlap --cc-pipeline-tiling-factor=2",
        "--internal-hlo2tensorizer-options=--verify-hlo=true", "--verbose=35",
        "--enable-internal-neff-wrapper", "--hbm-scratchpad-page-size=1024",
        "--internal-max-instruction-limit=15000000", "--distribution-strategy=llm-training",
        "--internal-enable-dge-levels", "spill_reload", "vector_dynamic_offsets",
        "--native-int64=enabled", "--enable-saturate-infinity", "--enable-fast-context-switch",
        "--execute-repetition=1", "--logfile=my.log", "--output=my.neff",
    ) == 0  # fmt: skip
    info = read_neff((folder / "my.neff").read_bytes()).info
    assert "--distribution-strategy=llm-training" in info.flags
    assert "--internal-enable-dge-levels=spill_reload vector_dynamic_offsets" in info.flags
    assert "Compiler status PASS" in (folder / "my.log").read_text()


def test_the_old_name_of_a_strategy(folder: Path) -> None:
    assert compiled("--distribution-strategy=nemo") == 0
    assert "--distribution-strategy=llm-training" in (
        read_neff((folder / "file.neff").read_bytes()).info.flags
    )


def test_lnc_decides_how_much_memory_there_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Computation("main", 1)
    made.add("negate", "f32[50000,40000]", made.parameter("f32[50000,40000]"))
    (folder / "model.pb").write_bytes(module(made))
    assert compiled("--target=trn2", "--lnc=2") == 0
    assert compiled("--target=trn2", "--lnc=1") == 1
    assert "14.90 GiB are needed, a logical core of trn2 has 12 GiB" in capsys.readouterr().err


def test_a_neff_that_loads_fast_is_not_compressed(folder: Path) -> None:
    made = Computation("main", 1)
    x = made.parameter("f32[2]")
    for _ in range(50):
        x = made.add("sine", "f32[2]", x)
    (folder / "model.pb").write_bytes(module(made))
    assert compiled() == 0
    small = (folder / "file.neff").stat().st_size
    assert compiled("--enable-fast-loading-neuron-binaries") == 0
    assert (folder / "file.neff").stat().st_size > 2 * small


@pytest.mark.parametrize(
    ("level", "out", "err"),
    [
        ("debug", True, True), ("info", True, True), ("20", True, True),
        ("warning", False, True), ("30", False, True), ("35", False, False),
        ("error", False, False), ("critical", False, False),
    ],
)  # fmt: skip
def test_verbose(
    level: str, out: bool, err: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compiled("--enable-experimental-O1", "--num-parallel-jobs=8", "--verbose", level) == 0
    said = capsys.readouterr()
    assert ("[INFO] wrote file.neff" in said.out) == out
    assert ("[WARNING] --enable-experimental-O1 is deprecated; use -O1" in said.err) == err
    log = (folder / "log-neuron-cc.txt").read_text()
    assert "INFO wrote file.neff" in log
    assert "WARNING --enable-experimental-O1 is deprecated" in log


def test_temporary_files_are_kept_when_asked_for(folder: Path) -> None:
    assert compiled("--pipeline", "compile", "SaveTemps", "--workdir=temps", "--auto-cast=all") == 0
    names = sorted(path.name for path in (folder / "temps").iterdir())
    assert names[0] == "model-00-input.txt"
    assert names[-1].endswith("-program.txt")
    assert any("auto-cast" in name for name in names)
    assert "dot_general" in (folder / "temps" / names[0]).read_text()
    assert compiled() == 0
    assert not list(folder.glob("model-*.txt"))


def test_a_limit_of_instructions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compiled("--internal-max-instruction-limit=3") == 1
    said = capsys.readouterr().err
    assert "[NCC_EVRF007] number of instructions generated exceeds the limit of 3" in said
    assert (folder / "log-neuron-cc.txt").exists()


@pytest.mark.parametrize(
    ("flag", "allowed"),
    [
        ("--hbm-scratchpad-page-size=100", "MiB: a multiple of 512 below 4096"),
        ("--hbm-scratchpad-page-size=4096", "MiB: a multiple of 512 below 4096"),
        ("--num-parallel-jobs=0", "a number above 0"),
        ("--num-parallel-jobs=two", "a number above 0"),
        ("--internal-max-instruction-limit=-1", "a number above 0"),
    ],
)
def test_wrong_numbers(flag: str, allowed: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(flag, environ={})
    assert caught.value.allowed == allowed
    assert flag in str(caught.value)
