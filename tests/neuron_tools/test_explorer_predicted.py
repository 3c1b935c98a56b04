"""`neuron-explorer` on predictions of the performance model: kept apart from measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neuron_tools.explorer import cli, page, session
from neuron_tools.explorer.advice import recommendations
from neuron_tools.explorer.predicted import read_estimate, read_tables
from neuron_tools.explorer.session import Event, Session, SessionError
from neuronxcc.perf import Prediction, explorer, predict
from neuronxcc.perf.advice import advice_for
from neuronxcc.targets import get_target
from tests.nodevice.perf_programs import layered

pytest.importorskip("pyarrow", reason="the extra `explorer` is not installed")


@pytest.fixture(scope="module")
def made() -> Prediction:
    return predict(layered(6), get_target("trn1"))


@pytest.fixture
def folder(made: Prediction, tmp_path: Path) -> Path:
    explorer.save(made, tmp_path / "tables")
    return tmp_path / "tables"


def view(folder: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["view", "-d", str(folder), "--output-format", kind]) == 0
    return capsys.readouterr().out


def test_summaries_are_those_of_the_prediction(
    made: Prediction, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = json.loads(view(folder, "summary-json", capsys)).values()
    assert row["is_simulation"] is True
    assert row["total_time"] == pytest.approx(made.device_us / 1e6, rel=1e-3)
    wanted = {name: values[0] for name, values in explorer.tables_of(made)["Summary"].items()}
    for name, value in wanted.items():
        assert row.get(name) == (None if value is None else pytest.approx(value)), name
    lines = dict(line.split() for line in view(folder, "summary-text", capsys).splitlines())
    assert lines["is_simulation"] == "true"
    assert float(lines["total_time"]) == pytest.approx(row["total_time"])


def test_every_instruction_and_transfer_is_on_the_timeline(
    made: Prediction, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = explorer.tables_of(made)
    rows = json.loads(view(folder, "json", capsys))["instruction"]
    for name, label in (("Instruction", "opcode"), ("DmaPacketAggregated", "op")):
        table = tables[name]
        wanted = sorted(zip(table["start_ts"], table["duration_ns"], table[label], strict=True))
        kind = "transfer" if label == "op" else "instruction"
        mine = [(r["timestamp"], r["duration"], r["label"]) for r in rows if r["opcode"] == kind]
        assert sorted(mine) == wanted
    assert {r["engine"] for r in rows if r["opcode"] == "instruction"} == set(
        tables["Instruction"]["engine"]
    )


def test_a_trace_says_that_it_is_predicted(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert view(folder, "perfetto", capsys) == "device_profile.pftrace\n"
    document = json.loads(Path("device_profile.pftrace").read_text())
    assert document["otherData"]["is_simulation"] is True
    names = {r["args"]["name"] for r in document["traceEvents"] if r["name"] == "process_name"}
    assert names == {"trn1 NC:0 (predicted)"}


def test_tables_are_written_anew(folder: Path, tmp_path: Path) -> None:
    words = ["view", "-d", str(folder), "--output-format", "parquet", "--output-file"]
    assert cli.main([*words, str(tmp_path / "new")]) == 0
    parquet = pytest.importorskip("pyarrow.parquet")
    for path in folder.iterdir():
        new = parquet.read_table(tmp_path / "new" / path.name)
        assert new.equals(parquet.read_table(path))
        assert new.schema.metadata[b"is_simulation"] == b"true"


def test_what_was_measured_is_marked_in_its_tables(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    ran = session.new_folder(tmp_path, "host")
    session.write(Session(events=[Event("a", "kernel", 0, 9, 0, 0, {})]), ran)
    words = ["view", "-d", str(ran), "--output-format", "parquet", "--output-file"]
    assert cli.main([*words, str(tmp_path / "new")]) == 0
    found = parquet.read_table(tmp_path / "new" / "Summary.parquet")
    assert found.schema.metadata[b"is_simulation"] == b"false"
    assert found["is_simulation"].to_pylist() == [False]
    # Nor are these tables taken for a prediction.
    assert not session.predictions(tmp_path)


def test_the_page(made: Prediction, folder: Path) -> None:
    shown = page.contents(read_tables(folder), "kernel")
    assert shown["source"].startswith("Predicted for trn1 (TorchNeuron, performance model ")
    names = {row["name"].removeprefix("trn1 NC:0 (predicted) ") for row in shown["rows"]}
    assert {"tensor", "vector"} & names
    assert any(name.startswith("dma ") for name in names)
    assert shown["advice"] == [
        *(f"{one.rule}: {one.text}" for one in advice_for(made)),
        *(f"not modelled: {note}" for note in made.notes),
    ]
    assert "Measured" not in page.render(read_tables(folder), "kernel")


def test_recommendations_are_those_of_the_model(
    made: Prediction, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["recommend", "-d", str(folder)]) == 0
    first, *found = capsys.readouterr().out.splitlines()
    assert first.startswith("# Predicted for trn1")
    assert advice_for(made)  # or the test shows nothing
    assert found == [f"{one.rule}: {one.text}" for one in advice_for(made)]


def test_a_profile_goes_before_a_prediction(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = session.new_folder(tmp_path, "host")
    session.write(Session(events=[Event("a", "kernel", 0, 9, 0, 0, {})]), ran)
    words = ["view", "-d", str(tmp_path), "--output-format", "summary-json"]
    assert cli.main(words) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["profile_nc_0"]["is_simulation"] is False
    assert said.err == f"1 profiles and 1 predictions are in {tmp_path}; this is {ran}\n"
    assert cli.main(["show-session", "-s", str(tmp_path)]) == 0
    measured, predicted = capsys.readouterr().out.splitlines()
    assert "measured" in measured
    assert predicted.startswith(f"{folder}: predicted, ")


def damage(name: str, **columns: Any) -> Any:
    """Give a table other columns."""

    def act(folder: Path) -> None:
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        path = folder / f"{name}.parquet"
        table = parquet.read_table(path)
        for column, value in columns.items():
            at = table.schema.get_field_index(column)
            table = table.set_column(at, column, arrow.array([value] * table.num_rows))
        parquet.write_table(table, path)

    return act


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (damage("Metadata", is_simulation=False), "does not say is_simulation"),
        (damage("Metadata", is_simulation=None), "has no column is_simulation of type bool"),
        (damage("Instruction", start_ts=1.5), "has no column start_ts of type i64"),
        (damage("Instruction", end_ts=-1), "ends before it starts"),
        (lambda folder: (folder / "Summary.parquet").write_bytes(b"PAR1"), "no Parquet file"),
        (lambda folder: (folder / "Warning.parquet").unlink(), "No such file"),
    ],
)
def test_bad_tables_are_errors_of_one_line(
    act: Any, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    act(folder)
    assert cli.main(["recommend", "-d", str(folder)]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


ROW = {
    "section": "forward", "layer": "fc", "operator": "aten.mm", "line": "m.py:3",
    "engine": "tensor", "us": 3.5, "bytes": 10, "flops": 20, "how": "bytes and flops",
}  # fmt: skip
ESTIMATE: dict[str, Any] = {
    "is_simulation": True, "target": "trn2", "name": "model", "model": 3, "step_us": 5.0,
    "flops": 20, "mbu": 0.5, "mfu": 0.25, "read_bytes": 6, "written_bytes": 4,
    "busy_us": {"tensor": 3.0, "dma": 2.0, "latency": 1.0},
    "rows": [ROW, {**ROW, "engine": "host", "us": 1.5}],
    "advice": [{"rule": "host", "text": "Compile it.", "share": 0.3}], "notes": ["spills"],
}  # fmt: skip


def test_an_estimate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "estimate.json"
    file.write_text(json.dumps(ESTIMATE))
    found = read_estimate(file)
    spans = [(e.start, e.end, found.rows[e.row]) for e in found.events]
    assert spans == [(0, 3500, "tensor"), (3500, 5000, "host")]
    assert cli.main(["view", "-s", str(file), "--output-format", "summary-json"]) == 0
    row = json.loads(capsys.readouterr().out)["profile_nc_0"]
    assert row["is_simulation"] is True
    assert (row["total_time"], row["tensor_engine_active_time_percent"]) == (5e-6, 0.6)
    assert cli.main(["recommend", "-s", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["host: Compile it."]
    assert cli.main(["view", "-s", str(file), "--output-format", "parquet"]) == 1
    assert "an estimate has no instructions, so no tables" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "1", json.dumps({**ESTIMATE, "is_simulation": False}),
     json.dumps({**ESTIMATE, "rows": [1]}), json.dumps({**ESTIMATE, "step_us": "x"}),
     json.dumps({**ESTIMATE, "rows": [{**ROW, "us": 1e400}]})],
)  # fmt: skip
def test_a_document_that_is_no_estimate(content: str, tmp_path: Path) -> None:
    file = tmp_path / "estimate.json"
    file.write_text(content)
    with pytest.raises(SessionError, match="is no document of `python -m"):
        read_estimate(file)


def test_the_estimate_that_torch_neuronx_makes_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch_neuronx import estimate  # noqa: PLC0415

    made = estimate(torch.nn.Linear(64, 64), torch.randn(8, 64))
    (tmp_path / "made.json").write_text(made.to_json())
    found = recommendations(read_estimate(tmp_path / "made.json"))
    assert found == [[f"{one.rule}: {one.text}"] for one in made.advice]
