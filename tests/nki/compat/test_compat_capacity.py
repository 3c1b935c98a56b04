"""Kernels that need more SBUF or PSUM than there is run, and what would be spilled is named."""

from __future__ import annotations

import linecache
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import neuronxcc.nki as nki
import neuronxcc.nki.compiler as ncc
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import nki.isa as today_isa
import nki.language as today_nl
from nki.checks.spills import choose_spills, variable_at
from nki.errors import NkiError, NkiWarning
from nki.kernel import jit as today_jit
from tests.nki.compat.compat_tools import close, random, summed

LIVES = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=12
)


@given(lives=LIVES, fixed=st.lists(st.integers(0, 6), min_size=21, max_size=21), most=st.integers(4, 30))  # fmt: skip  # noqa: E501
def test_what_is_not_spilled_fits(
    lives: list[tuple[int, int, int]], fixed: list[int], most: int
) -> None:
    first = np.array([min(a, b) for a, b, _ in lives])
    last = np.array([max(a, b) for a, b, _ in lives])
    sizes, taken = np.array([size for _, _, size in lives]), np.array(fixed)

    def used(kept: list[int]) -> Any:
        return taken + [
            sum(int(sizes[i]) for i in kept if first[i] <= t <= last[i]) for t in range(21)
        ]

    everything = list(range(len(lives)))
    spilled = choose_spills(first, last, sizes, taken, most)
    if max(fixed) > most:
        assert spilled is None
        return
    assert spilled is not None
    kept = [i for i in everything if i not in spilled]
    assert len(set(spilled)) == len(spilled)
    assert (used(kept) <= most).all()
    assert bool(spilled) == bool((used(everything) > most).any())
    # None is spilled in vain: with the last one that was chosen it would not fit.
    assert not spilled or (used([*kept, spilled[-1]]) > most).any()


@nki.jit(platform_target="trn1")
def large(a: Any, b: Any) -> Any:
    """Products of more tiles at once than either memory holds."""
    count = 40
    out = nl.ndarray((count, 128, 512), dtype=a.dtype, buffer=nl.shared_hbm)
    w = nl.load(b)
    scaled = nl.ndarray((count, nl.par_dim(128), 512), dtype=a.dtype)
    wide = nl.ndarray((nl.par_dim(128), count, 2048), dtype=a.dtype, name="given")
    sums = nl.zeros((count, nl.par_dim(128), 512), dtype=nl.float32, buffer=nl.psum)
    row = nl.zeros((nl.par_dim(128), count, 512), dtype=nl.float32, buffer=nl.psum)
    for i in nl.affine_range(count):
        scaled[i] = nl.multiply(nl.load(a), float(i))
        wide[:, i, 0:512] = nl.load(a)
    for i in nl.affine_range(count):
        sums[i] += nisa.nc_matmul(w, scaled[i])
        row[:, i, :] += nisa.nc_matmul(w, wide[:, i, 0:512])
    for i in nl.affine_range(count):
        nl.store(out[i], sums[i] + row[:, i, :])
    return out


def test_large_kernels_run_and_say_what_would_be_spilled() -> None:
    a, b = random(128, 512), random(128, 128, seed=1)
    with pytest.warns(NkiWarning, match="NKI223") as caught:
        got = large(a, b)
    product = b.astype(float).T @ a
    for i in range(40):
        close(got[i], product * (i + 1), rounded=summed(128) + 3)
    texts = sorted((str(w.message) for w in caught), key=lambda text: "of SBUF" in text)
    assert len(texts) == 2
    assert re.search(
        r"up to 80 banks of PSUM, and trn1 has 8: .* would spill 33 of them, of \d+ bytes: "
        r"'row' float32\[128, 40, 512\], 10485760 bytes, first used at .*capacity.py:\d+, "
        r"'sums' 32 tiles of float32\[128, 512\], 8388608 bytes, first used at ", texts[0],
    )  # fmt: skip
    assert re.search(r"bytes per partition of SBUF, and trn1 has 196608: .*'given' fl", texts[1])
    assert all(w.filename == __file__ for w in caught)


def test_the_report() -> None:
    found = large.capacity(random(128, 512), random(128, 128))
    assert (found.target, found.psum.unit, found.psum.capacity, found.psum.peak) == (
        "trn1", "banks", 8, 80,
    )  # fmt: skip
    assert found.sbuf.peak > found.sbuf.capacity == 196608
    # The 40 tiles of 2048 bytes fit. Of the 8 banks `row` alone would need 40.
    assert [(s.name, s.memory, s.tiles, s.shape) for s in found.spills] == [
        ("given", "sbuf", 1, (128, 40, 2048)),
        ("row", "psum", 1, (128, 40, 512)), ("sums", "psum", 32, (128, 512)),
    ]  # fmt: skip
    assert found.spilled_bytes == sum(s.nbytes for s in found.spills)
    for spill in found.spills:
        assert spill.nbytes == spill.tiles * int(np.prod(spill.shape)) * 4
        file, line = spill.where
        named = {"given": "wide"}.get(spill.name, spill.name)
        assert linecache.getline(file, line).strip().startswith(f"{named}[")
    assert "PSUM: 80 of 8 banks; from " in str(found)


def test_the_report_of_a_kernel_that_fits() -> None:
    @nki.jit(platform_target="trn2")
    def kernel(a: Any) -> Any:
        tile = nl.load(a)
        return nl.copy(nl.matmul(tile, tile, transpose_x=True))

    found = kernel.capacity(random(128, 128))
    assert found.spills == ()
    assert (found.psum.peak, found.sbuf.peak) == (1, 512)
    assert str(found).endswith("SBUF: 512 of 229376 bytes per partition\nPSUM: 1 of 8 banks")


@pytest.mark.parametrize("mode", ["off", "strict"])
def test_modes(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NKI_CHECKS", mode)
    a, b = random(128, 512), random(128, 128, seed=1)
    if mode == "strict":
        with pytest.raises(NkiError, match=r"a compiler would spill .*; correct it.*NKI223"):
            large(a, b)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        large(a, b)


def test_placed_tiles_are_the_kernels_own() -> None:
    def placed(count: int, size: int) -> Any:
        @nki.jit(platform_target="trn1")
        def kernel(a: Any) -> Any:
            place = ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(count,))
            tiles = nl.ndarray((count, nl.par_dim(128), size), dtype=a.dtype, buffer=place)
            for i in nl.affine_range(count):
                tiles[i] = nl.load(a[0:128, 0:size])
            free = nl.load(a[0:128, 0:8192])  # what a compiler places has to make room
            for i in nl.affine_range(count):
                nl.store(a[0:128, 0:size], tiles[i])
            nl.store(a[0:128, 0:8192], free)

        return kernel

    a = random(128, 65536)
    with pytest.raises(NkiError, match=r"ends at byte 262144 of its partitions.*NKI005"):
        placed(1, 65536)(a)
    with pytest.warns(NkiWarning, match=r"would spill 1 of them, of 4194304 bytes.*NKI223"):
        placed(3, 16384)(a)


def test_kernels_of_today_place_their_own_tiles() -> None:
    @nki.jit
    def first(a: Any) -> None:
        wide = nl.ndarray((128, 80, 1024), dtype=np.float32)
        wide[:, 0, :] = nl.load(a)
        nl.store(a, wide[:, 0, :])

    @today_jit
    def kernel(a: Any, size: int) -> Any:
        first(a)
        tile = today_nl.ndarray((128, size), today_nl.float32)
        today_isa.dma_copy(dst=tile[:, 0:1024], src=a)
        return a

    with pytest.warns(NkiWarning, match=r"'wide' float32\[128, 80, 1024\].*NKI223"):
        kernel(random(128, 1024), 1024)
    with pytest.raises(NkiError, match="NKI005"):
        kernel(random(128, 1024), 80 * 1024)


def test_names_of_what_a_line_assigns_to(tmp_path: Path) -> None:
    path = tmp_path / "lines.py"
    path.write_text(
        "def f(t, x):\n    v[0][1] = (\n        x\n    )\n    self.y += x\n    t.store(x)\n"
        "    for i in x:\n        w = i\n"
    )
    assert [variable_at(str(path), line) for line in range(1, 9)] == [
        "", "v", "v", "v", "self.y", "", "", "w",
    ]  # fmt: skip
    path.with_name("bad.py").write_text("def (")
    assert variable_at(str(path.with_name("bad.py")), 1) == ""
    assert variable_at("<nowhere>", 1) == ""
