"""Kernels in the compile cache: what was recorded once runs without its Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from neuronxcc.cache.messages import CacheWarning
from nki.errors import NkiWarning
from nki.returned import Returned, from_data, to_data

A = np.arange(8, dtype=np.float32).reshape(2, 4)
SCALE = 2.0


def kernel(a: Any, b: Any, *, gap: bool = False) -> Any:
    out = nl.ndarray((2, 8), a.dtype, nl.shared_hbm)
    t = nl.ndarray(a.shape, a.dtype)
    nisa.dma_copy(dst=t, src=a)
    nisa.tensor_scalar(dst=t, data=t, op0="multiply", operand0=SCALE)
    nisa.dma_copy(dst=out[:, :4], src=t)
    nisa.dma_copy(dst=b, src=t)
    if not gap:
        nisa.dma_copy(dst=out[:, 4:], src=t)
    return {"b": b, "parts": [out[0], out[:, 4:]]}, out


@pytest.fixture(autouse=True)
def _native(own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    del own_cache
    monkeypatch.setenv("TORCH_NEURONX_NKI_EXECUTOR", "native")


@pytest.fixture
def no_recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_args: Any, **_kwargs: Any) -> None:
        pytest.fail("the kernel ran as Python")

    with monkeypatch.context() as patch:
        nki.jit(kernel)(A, A.copy())
        patch.setattr("nki.kernel.record", refuse)
        yield


def check(run: nki.Kernel) -> None:
    b = np.zeros_like(A)
    more, out = run(A, b)
    assert more["b"] is b
    np.testing.assert_array_equal(b, A * SCALE)
    np.testing.assert_array_equal(out, np.concatenate([A, A], 1) * SCALE)
    np.testing.assert_array_equal(more["parts"][0], out[0])
    np.testing.assert_array_equal(more["parts"][1], out[:, 4:])


@pytest.mark.usefixtures("no_recording")
def test_new_kernel_of_the_same_code_runs_from_the_cache() -> None:
    check(nki.jit(kernel))


@pytest.mark.usefixtures("no_recording")
@pytest.mark.parametrize("change", ["argument", "constant", "shape", "target", "grid"])
def test_whatever_changes_is_recorded(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = nki.jit(kernel)
    a, more = A, {}
    if change == "argument":
        more["gap"] = True
    elif change == "constant":
        monkeypatch.setitem(globals(), "SCALE", 3.0)
    elif change == "shape":
        a = A[:1]
    elif change == "target":
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    else:
        run = run[1]
    with pytest.raises(pytest.fail.Exception, match="ran as Python"):
        run(a, a.copy(), **more)


def test_findings_are_told_again() -> None:
    for _ in range(2):
        with pytest.warns(NkiWarning, match="NKI204"):
            nki.jit(unfinished)(A)


def unfinished(a: Any) -> Any:
    nisa.dma_copy(dst=a, src=nl.ndarray(a.shape, a.dtype))
    return a


def test_values_that_python_saw_are_not_kept(tmp_path: Path) -> None:
    nki.jit(looking)(A.copy())
    assert not list(tmp_path.rglob("*.neff"))


def looking(a: Any) -> Any:
    str(a)
    return a


def test_objects_of_the_users_classes_are_not_kept(tmp_path: Path) -> None:
    result = nki.jit(paired)(A.copy())
    assert isinstance(result, Pair)
    assert not list(tmp_path.rglob("*.neff"))


def paired(a: Any) -> Pair:
    return Pair(a, {"again": a})


_EMPTY = '{"results": null, "arguments": [], "written": [], "outputs": [], "findings": []}'


@pytest.mark.parametrize(
    "notes",
    [
        '{"results": 3}',
        "3",
        "null",
        "[" * 100_000,
        _EMPTY.replace('"arguments": []', '"arguments": [[[1e400], "float32"]]'),
        _EMPTY.replace('"arguments": []', '"arguments": [[[2], "no such type"]]'),
        _EMPTY.replace('"findings": []', '"findings": [["a", "b", []]]'),
        _EMPTY.replace('"written": []', '"written": [null]'),
    ],
)
def test_damaged_notes_are_recorded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("nki.store._notes", lambda _: notes)
        nki.jit(kernel)(A, A.copy())
    assert list(tmp_path.rglob("*.neff"))
    with pytest.warns(CacheWarning, match="notes in the cache are not usable"):
        check(nki.jit(kernel))


class Pair(NamedTuple):
    first: Any
    second: Any


_TENSORS = st.builds(
    Returned,
    st.sampled_from(["input", "output"]),
    st.integers(0, 9),
    st.sampled_from(["float32", "bfloat16"]),
    st.tuples(st.integers(1, 9)),
    st.tuples(st.integers(0, 9)),
    st.integers(0, 99),
    st.booleans(),
)
_TREES = st.recursive(
    _TENSORS | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(_TREES)
def test_structures_survive_json(tree: Any) -> None:
    assert from_data(json.loads(json.dumps(to_data(tree)))) == tree


@pytest.mark.parametrize(
    "data", [3, "x", ["tensor"], ["tensor", "temp", 0, "f", [], [], 0, 1], [[]]]
)
def test_other_data_is_refused(data: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        from_data(data)
