"""The profile of a kernel as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neuronxcc.nki as first_nki
import neuronxcc.nki.language as first_nl
import nki
import nki.isa as nisa
import nki.language as nl
from nki.errors import NkiWarning
from nki.perf import predict, profile
from nki.perf.profile import profile_paths


@nki.jit
def doubled(a: Any) -> Any:
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x, src=a)
    nisa.tensor_tensor(dst=x, data1=x, data2=x, op=nl.add)
    nisa.dma_copy(dst=out, src=x)
    return out


def first(a: Any) -> Any:
    out = first_nl.ndarray(a.shape, dtype=a.dtype, buffer=first_nl.shared_hbm)
    first_nl.store(out, first_nl.add(first_nl.load(a), 1.0))
    return out


A = np.ones((128, 64), np.float32)


def test_a_profile_is_a_page_a_trace_and_a_summary(tmp_path: Path) -> None:
    made = profile(doubled, A, folder=tmp_path / "new", name="doubled")
    assert made.device_us == predict(doubled, A).device_us
    page, trace, text = profile_paths(tmp_path / "new", "doubled")
    assert "nisa.tensor_tensor(dst=x, data1=x, data2=x, op=nl.add)" in page.read_text()
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 3
    assert text.read_text() == f"{made}\n"
    # All percentiles are equal: the model has no chance in it.
    assert {made.get_latency_percentile(p) for p in (0, 1, 50, 99.9, 100)} == {made.latency_us}
    with pytest.raises(ValueError, match="percentile 101 was asked for: use one from 0 to 100"):
        made.get_latency_percentile(101)


def test_a_profile_with_tables(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra `explorer` is not installed")
    profile(doubled, A, folder=tmp_path, name="doubled", tables=True)
    assert (tmp_path / "doubled" / "Metadata.parquet").exists()


def test_the_first_generation_writes_where_it_is_asked_to(tmp_path: Path) -> None:
    kernel = first_nki.profile(
        first, working_directory=tmp_path, save_trace_name="trace.ntff", platform_target="trn1"
    )
    np.testing.assert_array_equal(kernel(A), A + 1)
    paths = profile_paths(tmp_path, "trace")
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert paths[2].read_text() == f"{kernel.prediction}\n"
    with pytest.raises(FileExistsError, match=r"trace\.html exists; pass overwrite=True"):
        first_nki.profile(first, working_directory=tmp_path, save_trace_name="trace.ntff")
    again = first_nki.profile(
        working_directory=tmp_path, save_trace_name="trace", overwrite=True, platform_target="trn1"
    )(first)
    again(A)
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_options_without_effect_are_named() -> None:
    with pytest.warns(NkiWarning, match=r"each run is predicted alike: profile_nth has no effect"):
        first_nki.profile(first, profile_nth=2)
