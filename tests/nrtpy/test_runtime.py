"""configure, reset, cores, log lines; and what importing nrtpy costs."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nrtpy
from neuronxcc.status import Status, status_in
from nrtpy import NrtError, NrtpyError, NrtpyTensor
from nrtpy.logs import log

ROOT = Path(__file__).parents[2]
VISIBLE = "NEURON_RT_VISIBLE_CORES"
X = np.zeros(3, np.float32)


def device_of(tensor: NrtpyTensor) -> str:
    return str(tensor._ref.memory().device)


def test_configure_and_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    nrtpy.configure(visible_cores=[2, 3])
    assert os.environ[VISIBLE] == "2,3"
    tensors = [NrtpyTensor.from_numpy(X, core_id=core) for core in (0, 1)]
    assert [device_of(t) for t in tensors] == ["neuron:2", "neuron:3"]
    with pytest.raises(NrtpyError, match=r"the runtime is active; call nrtpy.reset\(\) before"):
        nrtpy.configure([0])
    with pytest.raises(NrtError, match=r"LOAD_NOT_ENOUGH_NC\(9\).*Requested:nc2-nc2 Available:2"):
        NrtpyTensor.from_numpy(X, core_id=2)
    nrtpy.reset()
    assert VISIBLE not in os.environ
    nrtpy.reset()  # nothing to do
    nrtpy.configure(range(1))
    assert device_of(NrtpyTensor.from_numpy(X)) == "neuron:0"


@pytest.mark.parametrize(
    ("cores", "kind", "text"),
    [
        (3, TypeError, "must be an iterable of core numbers such as [0, 1], got 3"),
        ([0, "1"], TypeError, "must hold integers, got '1'"),
        ([True], TypeError, "must hold integers, got True"),
        ("01", TypeError, "must hold integers, got '0'"),
        ([0, -1], ValueError, "must not be negative, got -1"),
        ([], ValueError, "visible_cores has no core"),
    ],
)
def test_wrong_cores(cores: object, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        nrtpy.configure(cores)  # type: ignore[arg-type]


def test_cores_that_cannot_be_used() -> None:
    nrtpy.configure([0, 2])
    with pytest.raises(NrtError, match=r"NRT_INVALID\(2\).*Failed to initialize the runtime: .*"):
        NrtpyTensor.from_numpy(X)
    nrtpy.reset()
    nrtpy.configure([40])
    with pytest.raises(NrtError, match=r"NOT_ENOUGH_NC\(9\).*since torch was imported: set NEURON"):
        NrtpyTensor.from_numpy(X)


@pytest.mark.slow
def test_torch_comes_with_the_first_use() -> None:
    program = (
        "import sys, numpy, nrtpy\n"
        "assert not {'torch', 'torch_neuronx', 'jax'} & set(sys.modules)\n"
        "nrtpy.configure([5, 6])\n"
        "t = nrtpy.NrtpyTensor.from_numpy(numpy.ones(2), core_id=1)\n"
        "assert 'torch' in sys.modules\n"
        "print(t._ref.memory().device, len(nrtpy.get_nrtpy_singleton().devices))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("neuron:1 2\n", 0), done.stderr


def test_log_lines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log("ERROR", "TDRV", "some_function", "two\nlines")
    log("INFO", "NRT", "nrt_load", "not wanted")
    pattern = (
        r"\d{4}-[A-Z][a-z]{2}-\d\d \d\d:\d\d:\d\d\.\d{6} \d+:\d+ ERROR  TDRV:"
        r"some_function {27}two lines\n"
    )
    assert re.fullmatch(pattern, capfd.readouterr().err)
    monkeypatch.setenv("NEURON_RT_LOG_LEVEL", "QUIET")
    monkeypatch.setenv("NEURON_RT_LOG_LEVEL_NMGR", "info")
    monkeypatch.setenv("NEURON_RT_LOG_LOCATION_NMGR", str(tmp_path / "nmgr.log"))
    log("ERROR", "NRT", "nrt_load", "quiet")
    log("INFO", "NMGR", "dlr_infer", "to a file")
    assert capfd.readouterr().err == ""
    assert "INFO   NMGR:dlr_infer" in (tmp_path / "nmgr.log").read_text()
    monkeypatch.setenv("NEURON_RT_LOG_LEVEL", "LOUD")
    with pytest.raises(
        ValueError, match="NEURON_RT_LOG_LEVEL='LOUD' is not valid; allowed: quiet, er"
    ):
        log("ERROR", "NRT", "nrt_load", "")


def test_errors_of_the_runtime() -> None:
    error = NrtError(1, "Failed to load model")
    assert str(error) == "NRT Error NRT_FAILURE(1): Failed to load model"
    assert error.status is Status.FAILURE
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - of our own
    assert (str(again), again.status) == (str(error), Status.FAILURE)
    assert isinstance(error, RuntimeError)


def test_one_table_of_statuses() -> None:
    """Every status that the product's sources name has the name and number of the table."""
    named = re.compile(r"NRT_([A-Z_]+) ?\((?:status )?(\d+)\)")
    found = set()
    for package in ("torch_neuronx", "neuronxcc", "nki", "nrtpy", "neuron_tools", "docs"):
        for path in (ROOT / package).rglob("*"):
            if path.suffix in {".py", ".cpp", ".h", ".md"}:
                found |= {(path, *m) for m in named.findall(path.read_text(encoding="utf-8"))}
    assert len(found) > 10
    for path, name, number in found:
        assert Status[name] == int(number), path
    assert status_in("it took too long [NRT_TIMEOUT(5)]") is Status.TIMEOUT
    assert status_in("NRT_INVALID (status 2): wrong") is Status.INVALID
    assert status_in("NRT_NOTHING(77), nothing") is None
