"""The page of a prediction: what it knows, that it needs nothing else, and how it looks."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from neuronxcc.perf import Stream, page, predict
from neuronxcc.perf.estimate import edges
from neuronxcc.targets import get_target
from tests.nodevice.perf_programs import layered

TRN1 = get_target("trn1")
CHROMIUM = shutil.which("chromium")


def column(packed: dict[str, str]) -> Any:
    return np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), packed["kind"])


def test_the_page_knows_the_timeline() -> None:
    made = predict(layered(), TRN1)
    known = page.contents(made)
    columns = {name: column(x) for name, x in known["columns"].items() if name != "count"}
    assert known["columns"]["count"] == len(made.flat.work) == 120
    assert columns["start"].tolist() == made.timeline.start.tolist()
    assert columns["end"].tolist() == made.timeline.end.tolist()
    assert columns["work"].tolist() == made.flat.work.tolist()
    assert columns["cause"].tolist() == made.timeline.cause.tolist()
    found = edges(made)
    assert columns["first"].tolist() == found.first.tolist()
    assert columns["other"].tolist() == found.other.tolist()
    tracks = [known["tracks"][i]["name"] for i in columns["track"].tolist()]
    assert tracks[:5] == ["load", "tensor", "tensor", "scalar", "store"]
    # An engine is busy for its instruction; bytes move after a transfer has begun.
    assert (columns["solid_from"] >= columns["start"]).all()
    assert (columns["solid_to"] > columns["solid_from"]).all()
    assert (columns["solid_to"] <= columns["end"]).all()
    busy = (columns["solid_to"] - columns["solid_from"])[np.array(tracks) == "tensor"].sum()
    assert busy / 1e6 == pytest.approx(made.busy_us["tensor"])
    assert sum(row["count"] for row in known["table"]) == made.instructions
    assert sum(row["busy_us"] for row in known["table"] if row["engine"] != "dma") == pytest.approx(
        sum(us for name, us in made.busy_us.items() if name != "dma")
    )
    line = known["lines"][0]
    assert (line["file"], line["line"]) == ("perf_programs.py", 1)
    assert line["text"] == '"""Small programs for the tests of what a prediction shows."""'
    assert [chart["name"] for chart in known["charts"]] == ["DMA", "SBUF", "PSUM"]


def test_rows_of_a_queue_do_not_overlap() -> None:
    made = predict(layered(40, row=512), TRN1)
    known = page.contents(made)["columns"]
    track, lane, start, end = (column(known[n]) for n in ("track", "lane", "start", "end"))
    assert 1 <= lane.max() < 8
    engines = np.array([t["engine"] for t in page.contents(made)["tracks"]])[track]
    assert not lane[engines].any()
    track, lane, start, end = (values[~engines] for values in (track, lane, start, end))
    for key in set(zip(track.tolist(), lane.tolist(), strict=True)):
        mine = (track == key[0]) & (lane == key[1])
        order = np.argsort(start[mine], kind="stable")
        assert (start[mine][order][1:] >= end[mine][order][:-1]).all() or key[1] == 7


def test_a_large_program_is_shown_as_far_as_it_is_said() -> None:
    made = predict(layered(), TRN1)
    with mock.patch.object(page, "MOST", 30):
        known = page.contents(made)
    columns = known["columns"]
    assert columns["count"] == 30
    assert "the timeline shows the first 30 of 120 instructions" in known["about"]["notes"]
    first = np.sort(np.argsort(made.timeline.start, kind="stable")[:30])
    assert column(columns["start"]).tolist() == made.timeline.start[first].tolist()
    for name in ("cause", "other", "own"):
        values = column(columns[name])
        assert values.max(initial=-1) < 30
        assert values.min(initial=-1) >= -1
    # What is waited for is what is waited for in the whole program.
    found, place = edges(made), {int(i): at for at, i in enumerate(first)}
    for at, number in enumerate(first.tolist()):
        whole = found.other[found.first[number] : found.first[number + 1]].tolist()
        low, high = column(columns["first"])[at : at + 2]
        assert column(columns["other"])[low:high].tolist() == [
            place[d] for d in whole if d in place
        ]


def test_a_name_cannot_leave_its_place(tmp_path: Path) -> None:
    name = "</script><script>alert(1)</script>{{ page.js }}{{ title }}{{ contents }}"
    made = predict(layered(3, name=name), TRN1)
    text = page.save(made, tmp_path / "kernel.html").read_text()
    assert text.count("<script") == 2
    assert text.count('"use strict";') == 1
    inside = re.search(r'id="contents">(.*?)</script>', text, re.DOTALL)
    assert inside is not None
    assert json.loads(inside[1])["about"]["name"] == name


def test_the_page_asks_nothing_of_a_network() -> None:
    text = page.render(predict(layered(3), TRN1))
    assert not re.findall(r"""(?:src|href)=["'](?!data:)|url\(|@import|https?://|fetch\(""", text)
    assert "default-src 'none'" in text


def test_an_empty_program_has_a_page() -> None:
    known = page.contents(predict(Stream(), TRN1))
    assert known["columns"]["count"] == 0
    assert known["advice"] == []


def in_chromium(path: Path, fragment: str, folder: Path, *options: str) -> str:
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1250",
        "--virtual-time-budget=8000", *options, f"{path.as_uri()}{fragment}",
    ]  # fmt: skip
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
@pytest.mark.parametrize("cores", [1, 2])
def test_chromium_draws_the_page(tmp_path: Path, cores: int) -> None:
    """Every instruction, the advice, the lines, and what an instruction waits for."""
    made = predict(layered(8, cores=cores), TRN1)
    path = page.save(made, tmp_path / "kernel.html")
    dom = in_chromium(path, "#at=3", tmp_path, "--dump-dom")
    assert 'data-ready="yes"' in dom
    assert f'data-instructions="{40 * cores}"' in dom
    drawn = re.search(r'data-drawn="(\d+)"', dom)
    assert drawn is not None
    assert 0 < int(drawn[1]) <= 40 * cores
    for advice in page.contents(made)["advice"]:
        assert advice["rule"] in dom
    assert "perf_programs.py:3" in dom
    assert "waits for:" in dom
    assert "nc_matmul (perf_programs.py:2)" in dom
    picture = tmp_path / "page.png"
    in_chromium(path, "", tmp_path, f"--screenshot={picture}")
    assert picture.stat().st_size > 20_000
