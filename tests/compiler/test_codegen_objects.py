"""The cache of machine code: private, checked, bounded; and what its keys are made of."""

from __future__ import annotations

import logging
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronxcc.codegen import build
from neuronxcc.codegen.llvm import Host, compile_kernels, emission
from neuronxcc.codegen.loop import Access, Dim, Kernel, Kind, Slot, Store
from neuronxcc.codegen.objects import ObjectCache, default_directory
from neuronxcc.codegen.text import to_text
from neuronxcc.ir import DType, Op
from tests.compiler.codegen_compare import HOSTS

F32 = DType.F32


def scaled(factor: float, extent: int = 20, name: str = "scaled") -> Kernel:
    value = build.op(Op.MULTIPLY, build.load(F32, 0, (1,)), factor)
    return Kernel(name, (Dim(extent),), (Slot(F32), Slot(F32)), (Store(Access(1, (1,)), value),))


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "objects")


def files(cache_path: Path) -> list[Path]:
    return sorted((cache_path / "objects").glob("*.obj"))


def test_second_compilation_reads_the_first(
    cache: ObjectCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = [scaled(2.0), scaled(3.0), scaled(2.0, name="again")]
    first = compile_kernels(kernels, cache=cache)
    assert first.functions[0] == first.functions[2]  # equal kernels are compiled once
    assert first.functions[0].address != first.functions[1].address
    (path,) = files(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700

    def refuse(*_: object) -> bytes:
        raise AssertionError("compiled although it is in the cache")

    monkeypatch.setattr(emission, "compile_object", refuse)
    second = compile_kernels(kernels, cache=cache)
    x = np.arange(20, dtype=np.float32)
    for compiled in (first, second):
        out = np.zeros(20, np.float32)
        compiled.run(1, [x, out])
        np.testing.assert_array_equal(out, 3 * x)


def test_what_differs_is_compiled_apart(cache: ObjectCache, tmp_path: Path) -> None:
    compile_kernels([scaled(2.0)], cache=cache)
    compile_kernels([scaled(2.0, name="other")], cache=cache)
    assert len(files(tmp_path)) == 1
    compile_kernels([scaled(-0.0)], cache=cache)
    compile_kernels([scaled(0.0)], cache=cache)
    compile_kernels([scaled(2.0, extent=21)], cache=cache)
    assert len(files(tmp_path)) == 4
    for host in HOSTS:
        compile_kernels([scaled(2.0)], host, cache)
    assert len(files(tmp_path)) == 4 + len(HOSTS) - (Host.detect() in HOSTS)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "magic"])
def test_damage_is_noticed(
    cache: ObjectCache, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    compile_kernels([scaled(5.0)], cache=cache)
    (path,) = files(tmp_path)
    good = path.read_bytes()
    bad = {
        "flip": good[:-9] + bytes([good[-9] ^ 1]) + good[-8:],
        "cut": good[:-100],
        "empty": b"",
        "magic": b"X" + good[1:],
    }[damage]
    path.write_bytes(bad)
    with caplog.at_level(logging.WARNING):
        compiled = compile_kernels([scaled(5.0)], cache=cache)
    assert "is damaged; compiled anew" in caplog.text
    assert path.read_bytes() == good
    out = np.zeros(20, np.float32)
    compiled.run(0, [np.ones(20, np.float32), out])
    np.testing.assert_array_equal(out, 5.0)


def test_links_are_not_followed(cache: ObjectCache, tmp_path: Path) -> None:
    compile_kernels([scaled(5.0)], cache=cache)
    (path,) = files(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert cache.get(path.stem) is None


def test_a_directory_of_others_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "objects"
    directory.mkdir()
    directory.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        cache = ObjectCache(directory)
        cache.put("k", b"content")
        assert cache.get("k") is None
    assert "can be written to by others" in caplog.text
    assert caplog.text.count("not cached") == 1
    assert not list(directory.iterdir())


def test_the_oldest_go_first(tmp_path: Path) -> None:
    """Three files of 340 bytes fit."""
    cache = ObjectCache(tmp_path / "objects", limit_bytes=1100)
    for number in range(4):
        cache.put(f"k{number}", bytes(300))
        os.utime(tmp_path / "objects" / f"k{number}.obj", (number, number))
    assert [p.stem for p in files(tmp_path)] == ["k1", "k2", "k3"]
    assert cache.get("k1") == bytes(300)  # now the youngest
    cache.put("k4", bytes(300))
    assert [p.stem for p in files(tmp_path)] == ["k1", "k3", "k4"]


@given(st.lists(st.integers(0, 4000), max_size=40))
def test_files_stay_within_the_limit(sizes: list[int]) -> None:
    """Most files are written without a look at the directory, and yet they never take more."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "objects"
        ObjectCache(directory, limit_bytes=100_000).put("of an earlier process", bytes(3000))
        cache = ObjectCache(directory, limit_bytes=10_000)
        for number, size in enumerate(sizes):
            cache.put(f"k{number}", bytes(size))
            assert sum(path.stat().st_size for path in directory.iterdir()) <= 10_000
            assert cache.get(f"k{number}") == bytes(size)


def test_few_writes_look_at_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def scandir(home: int) -> list[os.DirEntry[str]]:
        looks.append(home)
        return []

    monkeypatch.setattr(os, "scandir", scandir)
    cache = ObjectCache(tmp_path / "objects", limit_bytes=100_000)
    for number in range(32):
        cache.put(f"k{number}", bytes(1000))
    assert len(looks) == 5  # the first, and each before which 6 files of 1040 bytes were written


def test_no_directory() -> None:
    cache = ObjectCache(None)
    cache.put("k", b"content")
    assert cache.get("k") is None


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert default_directory() == Path("/c/torchneuron/objects")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/h")
    assert default_directory() == Path("/h/.cache/torchneuron/objects")
    monkeypatch.delenv("HOME")
    assert default_directory() is None


def test_text() -> None:
    """The canonical text names everything that has a meaning."""
    x = build.load(F32, 0, (8, 1), 2)
    position = build.index(1, DType.S32)
    mask = build.compare("LT", position, 5)
    y = build.select(mask, build.op(Op.SUBTRACT, x, build.reduce(Op.MAXIMUM, x)), -1.0)
    indexed = Store(Access(2, (0, 1), 0, ((build.load(DType.S64, 1, (1, 0)), 8),)), y, Op.ADD, mask)
    kernel = Kernel(
        "k", (Dim(3), Dim(8, Kind.REDUCE)), (Slot(F32), Slot(DType.S64), Slot(F32)), (indexed,)
    )
    assert (
        to_text(kernel)
        == """\
kernel k
dims parallel:3 reduce:8
slots f32 s64 f32
%0 = s64 load [1: 1,0+0]
%1 = s32 index 1
%2 = s32 const 5
%3 = pred op compare LT %1 %2
%4 = f32 load [0: 8,1+2]
%5 = f32 reduce maximum %4
%6 = f32 op subtract %4 %5
%7 = f32 const -1.0
%8 = f32 op select %3 %6 %7
store [2: 0,1+0+%0*8] %8 combine add mask %3
"""
    )


def test_threads_compile_at_once(cache: ObjectCache) -> None:
    def work(number: int) -> float:
        compiled = compile_kernels([scaled(float(number)), scaled(number + 0.5)], cache=cache)
        out = np.zeros(20, np.float32)
        compiled.run(1, [np.ones(20, np.float32), out])
        return float(out[19])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(24))) == [n + 0.5 for n in range(24)]
