"""`neuron-explorer capture`: a NEFF that runs, and its profile."""

import json
import re
import zlib
from pathlib import Path

import numpy as np
import pytest

from neuron_tools.explorer import cli, session
from tests.nrtpy.neffs import compile_jax


def double(x: np.ndarray) -> np.ndarray:
    return np.float32(2) * x + 1


def file_of(line: str) -> Path:
    """The file that a line says an output is saved in."""
    found = re.fullmatch(r'saved output "[^"]+" as "([^"]+)"', line)
    assert found is not None
    return Path(found[1])


@pytest.fixture(scope="module")
def neff(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("neff") / "double.neff"
    return compile_jax(path, double, np.ones((64, 64), np.float32))


def test_the_profile_of_an_execution(
    neff: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ntff = tmp_path / "profile.ntff"
    words = ["capture", "-n", str(neff), "-s", str(ntff), "--num-exec", "3"]
    assert cli.main([*words, "--save-output-npy"]) == 0
    first, saved = capsys.readouterr().out.splitlines()
    assert first == str(ntff)
    # Inputs that are not given are zeros.
    assert (np.load(file_of(saved)) == 1).all()
    events = session.read_events(ntff)
    assert sum(event.kind == "program" for event in events) == 1
    assert any(event.facts.get("program") for event in events)
    assert cli.main(["view", "-s", str(ntff), "--output-format", "summary-json"]) == 0
    summary = json.loads(capsys.readouterr().out)["profile_nc_0"]
    assert summary["event_count"] == len(events) - 1
    assert summary["total_time"] > 0


def test_inputs_from_files(neff: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from nrtpy import NrtpyModel  # noqa: PLC0415

    name = next(iter(NrtpyModel.load_from_neff(neff).input_tensors_info))
    array = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    (tmp_path / "x.bin").write_bytes(array.tobytes())
    np.save(tmp_path / "x.npy", array)
    for file in ("x.bin", "x.npy"):
        ntff = tmp_path / f"{file}.ntff"
        words = ["capture", "-n", str(neff), "-s", str(ntff), "--num-exec", "2"]
        words += ["--profile-nth-exec", "1", "--save-output-npy", name, str(tmp_path / file)]
        assert cli.main(words) == 0
        profile, saved = capsys.readouterr().out.splitlines()
        assert Path(profile).name == f"{file}_exec_1.ntff"
        assert (np.load(file_of(saved)) == 2 * array + 1).all()
    (tmp_path / "short").write_bytes(b"1234")
    for words, said in (
        ([name, str(tmp_path / "short")], "has 4 bytes"),
        (["nothing", str(tmp_path / "x.npy")], "has no input 'nothing'"),
        ([name], "pairs of a name and a file"),
        (["--profile-nth-exec", "2"], "execution 2 is to be kept of 1"),
    ):
        assert cli.main(["capture", "-n", str(neff), "-s", str(ntff), *words]) == 1
        assert said in capsys.readouterr().err


def test_results_as_bytes_and_their_checksums(
    neff: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["capture", "-n", str(neff), "--num-exec", "2", "--disable-profile"]
    assert cli.main([*words, "--save-output", "--check-output-determinism"]) == 0
    saved, checked = capsys.readouterr().out.splitlines()
    content = np.ones((64, 64), np.float32).tobytes()
    assert file_of(saved).read_bytes() == content
    assert checked.endswith(f"equal in all executions, CRC32 {zlib.crc32(content):08x}")
    assert not list(tmp_path.glob("*.ntff"))
