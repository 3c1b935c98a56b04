"""`neuron-explorer`: files of profiles, what is made of them, and what is said of bad ones."""

import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from neuron_tools.explorer import advice, cli, page, session
from neuron_tools.explorer.session import Event, Sample, Session
from neuron_tools.explorer.tables import SCHEMA, covered, summary_of, tables_of
from neuronxcc.perf.explorer.schema import SCHEMA as PREDICTED

US = 1000
START = 1_700_000_000_000_000_000


def kernel(name: str, start: int, end: int, **facts: object) -> Event:
    """A kernel on core 0; times in microseconds."""
    return Event(name, "kernel", START + start * US, START + end * US, 0, 0, facts)


def sample_session() -> Session:
    return Session(
        events=[
            Event("aten::mm", "operator", START, START + 50 * US, -1, 77, {"id": 3}),
            Event("nrt_execute", "issue", START, START + 2 * US, 0, 77, {"work": "aten::mm"}),
            Event("neuron::program g", "program", START, START + 40 * US, 0, 0, {}),
            kernel("neuron::mm", 0, 30, program="g", source="model.py:7"),
            Event(
                "Memcpy HtoD", "copy", START + 30 * US, START + 40 * US, 0, 0,
                {"direction": "HtoD", "bytes": 4096},
            ),
            Event(
                "neuron::all_reduce", "communication", START + 35 * US, START + 60 * US, 0, 1000,
                {"Collective name": "all_reduce", "Bytes": 800, "dtype": "Float"},
            ),
        ],
        cpu=[Sample(START, "0", 50.0)],
        memory=[Sample(START, "used_bytes", 1 << 20), Sample(START, "used_percent", 12.5)],
        info={"hbm_bytes": 24 << 30, "target": "trn2"},
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = session.new_folder(tmp_path, "host")
    session.write(sample_session(), made)
    return made


def test_what_is_written_is_read(folder: Path) -> None:
    found = session.read(session.profiles(folder.parents[1])[0])
    wanted = sample_session()
    assert sorted(found.events) == sorted(wanted.events)
    assert (found.cpu, found.memory, found.info) == (wanted.cpu, wanted.memory, wanted.info)
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "profile_nc_0_session_0.ntff", "ntrace.pb", "trace_info.pb", "cpu_util.pb", "host_mem.pb",
    }  # fmt: skip
    for path in folder.iterdir():
        assert "not the format that AWS' tools read" in path.read_text().splitlines()[0]


def test_summary_by_hand(folder: Path) -> None:
    found = summary_of(session.read(folder).events, 0)
    # From 0 to 60 us; the kernel 30, the copy 10, the collective 25 of which 5 beside the copy.
    assert found["total_time"] == pytest.approx(60e-6)
    assert found["event_count"] == 3
    assert found["total_active_time"] == pytest.approx(60e-6)
    assert found["dma_transfer_total_bytes"] == 4096
    assert found["dma_active_time_percent"] == pytest.approx(10 / 60)
    assert found["cc_op_active_time"] == pytest.approx(25e-6)


def test_covered_time_is_that_of_a_set_of_moments() -> None:
    chance = random.Random(0)  # noqa: S311 - the same numbers each time
    for _ in range(200):
        spans = [(a, a + chance.randrange(6)) for a in (chance.randrange(20) for _ in range(8))]
        events = [Event("", "kernel", a, b, 0, 0, {}) for a, b in spans]
        assert covered(events) == len({t for a, b in spans for t in range(a, b)})


def test_tables_have_their_fields_and_sums_agree(folder: Path) -> None:
    found = session.read(folder)
    tables = tables_of(found)
    for name, rows in tables.items():
        for row in rows if name in SCHEMA else ():
            known = {field.name: field for field in SCHEMA[name]}
            assert row.keys() <= known.keys()
            assert all(row.get(f.name) is not None for f in known.values() if not f.nullable)
    events = tables["SystemProfileEvents"]
    assert {row["trace_event_source"] for row in events} == {
        "neuron_hw", "neuron_rt", "framework",
    }  # fmt: skip
    assert events[0]["instance_id"] == "host"
    assert events[0]["process_id"] > 0
    assert tables["CcOp"][0]["algorithm_bandwidth"] == pytest.approx(800 / 25e-6)
    described = {row["table_name"] for row in tables["SchemaFields"]}
    assert described == set(SCHEMA)


@pytest.mark.parametrize("kind", cli.FORMATS)
def test_every_format(
    kind: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="the extra `explorer` is not installed")
    target = tmp_path / "out"
    words = ["view", "-d", str(folder), "--output-format", kind, "--output-file", str(target)]
    assert cli.main(words) == 0
    said = capsys.readouterr().out.splitlines()
    if kind == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")

        read = parquet.read_table(target / "SystemProfileEvents.parquet").to_pylist()
        assert [row["name"] for row in read] == [e.name for e in session.read(folder).events]
        return
    assert said == [str(target)]
    text = target.read_text()
    if kind == "summary-text":
        assert "  dma_transfer_total_bytes" in text
        return
    document = json.loads(text)
    if kind == "json":
        assert {"trace_events", "mem_usage", "cpu_util"} == document.keys()
        assert document["trace_events"][0].keys() >= {"duration", "group", "lnc_idx", "type"}
    elif kind == "summary-json":
        assert document["profile_nc_0"]["cc_op_count"] == 1
    else:
        spans = [row for row in document["traceEvents"] if row["ph"] == "X"]
        assert len(spans) == 6
        assert max(row["ts"] + row["dur"] for row in spans) == pytest.approx(60)


def test_a_file_of_one_core(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "profile_nc_0_session_0.ntff"
    assert cli.main(["view", "-s", str(file), "--output-format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["summary"][0]["nc_idx"] == 0
    steps = {row["label"]: row for row in document["instruction"]}
    assert steps.keys() == {"neuron::mm", "Memcpy HtoD", "neuron::all_reduce"}
    assert steps["neuron::mm"]["nki_source_location"] == "model.py:7"


def test_filters(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["view", "-d", str(folder), "--output-format", "json"]
    for more, left in (
        (["--ignore-device-profile"], {"operator", "issue"}),
        (["--ignore-system-profile"], {"kernel", "program", "copy", "communication"}),
        (["--system-trace-filter-event-type", "copy,issue"], {"copy", "issue"}),
        (["--system-trace-filter-neuron-core", "1"], {"operator"}),
        (["--system-trace-filter-instance-id", "another"], set()),
        (
            ["--system-trace-filter-instance-id", "host,b", "--ignore-device-profile"],
            {"operator", "issue"},
        ),
    ):
        assert cli.main([*words, *more]) == 0
        document = json.loads(capsys.readouterr().out)
        assert {row["type"] for row in document["trace_events"]} == left


class _Scripts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.data = ""
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script" and dict(attrs).get("id") == "data"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.data += data

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 - the interface's
        self._inside = False


def test_the_page_holds_what_it_shows_and_no_more() -> None:
    found = sample_session()
    found.events.append(kernel("</script><script>alert(1)</script>", 70, 80))
    parser = _Scripts()
    parser.feed(page.render(found, "a < b"))
    shown = json.loads(parser.data)
    assert "</script><script>alert(1)</script>" in shown["names"]
    assert sum(len(row["events"]) for row in shown["rows"]) == 7
    assert shown["totals"][0][0] == "neuron::mm"
    assert shown["title"] == "a < b"


def test_a_page_of_many_events_keeps_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST", 3)
    shown = page.contents(sample_session(), "t")
    assert "the longest 3 of 6" in shown["title"]
    assert sum(len(row["events"]) for row in shown["rows"]) == 3


def test_view_writes_the_page(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["view", "-d", str(folder), "--data-path", str(tmp_path), "--ingest-only"]
    assert cli.main(words) == 0
    assert "neuron::mm" in Path(capsys.readouterr().out.strip()).read_text()


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ([kernel("a", 0, 10), kernel("a", 90, 100)], "idle"),
        ([kernel("a", i, i + 1) for i in range(200)], "short operators"),
        ([Event("Memcpy HtoD", "copy", START, START + 10, 0, 0, {"bytes": 1 << 20})], "copies"),
        (
            [
                Event("Memcpy HtoD", "copy", START + i, START + i + 1, 0, 0, {"bytes": 100})
                for i in range(30)
            ],
            "small copies",
        ),
        (
            [
                kernel("a", 0, 10),
                Event("neuron::all_reduce", "communication", START + 5 * US, START + 50 * US, 0,
                      1000, {}),
            ],
            "communication",
        ),
        ([kernel("a", 0, 80), kernel("b", 80, 90), kernel("c", 90, 100)], "dominant operator"),
    ],
)  # fmt: skip
def test_rules(events: list[Event], rule: str) -> None:
    assert rule in {item.rule for item in advice.advice(events)[0]}


def test_rules_find_nothing_in_a_full_core() -> None:
    events = [kernel(name, 100 * i, 100 * i + 100) for i, name in enumerate("abcd")]
    assert advice.advice(events) == {0: []}


def test_recommend(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["recommend", "-d", str(folder)]) == 0
    assert "nc_idx 0: communication" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x00\x01binary", "not of TorchNeuron's format"),
        (b"", "does not begin as a profile"),
        (b'{"format": "TorchNeuron profile", "version": 9}\n', "version 9"),
        (b'{"format": "TorchNeuron profile", "version": 1}\n[1, 2]\n', "no event"),
        (b'{"format": "TorchNeuron profile", "version": 1}\n{"a": 1}\n', "no list"),
        (
            b'{"format": "TorchNeuron profile", "version": 1}\n["a", "kernel", 5, 4, 0, 0, {}]\n',
            "no event",
        ),
        (b"[" * 100_000, "not of TorchNeuron's format"),
    ],
)
def test_bad_files_are_errors_of_one_line(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "profile.ntff"
    file.write_bytes(content)
    assert cli.main(["view", "-s", str(file), "--output-format", "json"]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_directory_without_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["view", "-d", str(tmp_path), "--ingest-only"]) == 1
    assert "No metadata found for system profile" in capsys.readouterr().err


def test_what_was_measured_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["view", "-d", str(folder), "--output-format"]
    assert cli.main([*words, "summary-json"]) == 0
    assert json.loads(capsys.readouterr().out)["profile_nc_0"]["is_simulation"] is False
    assert cli.main([*words, "summary-text"]) == 0
    assert re.search(r"^  is_simulation +false$", capsys.readouterr().out, re.MULTILINE)
    assert cli.main(["recommend", "-d", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("# Measured on the host")
    assert page.contents(sample_session(), "t")["source"].startswith("Measured on the host")


def test_show_session(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["show-session", "-s", str(folder.parent)]
    assert cli.main(words) == 0
    assert capsys.readouterr().out == f"{folder}: measured, 6 events on cores [0]\n"
    (folder / "ntrace.pb").write_text("damaged")
    assert cli.main([*words, "-j", "--show-errors"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert "not of TorchNeuron's format" in row["error"]


@pytest.mark.parametrize("option", sorted(cli.REFUSED))
def test_documented_options_without_a_meaning_are_refused(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["view", option, "x"])
    assert "documented for neuron-explorer, but not here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("-t systrace", "'systrace' is documented, but not possible here: `neuron-explorer insp"),
        ("--exec-mode async", "'async' is documented, but not possible here: an execution ends"),
        ("--exec-mode=async-wait", "documented, but not possible here: an execution ends before"),
        ("--exec-mode later", "'later' is none; it is 'sync'"),
    ],
)
def test_documented_values_that_are_not_possible_are_refused(
    words: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["capture", "-n", "x.neff", *words.split()])
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--show-profile-schema"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["profile_schema_version"] == "7.4.0"
    assert {row["table_name"] for row in document["fields"]} == set(SCHEMA)
    assert {row["table_name"] for row in document["predicted_fields"]} == set(PREDICTED)
