"""Every reader of every cache over everything that may stand where an entry should.

A reader computes the right thing again and replaces what it could, or refuses with its own error;
it never waits, never fills the memory, and never takes what isn't this user's entry of that name.
"""

from __future__ import annotations

import logging
import os
import re
import resource
import shutil
import signal
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from neuron_tools.parallel_workers import command
from neuronxcc import collected
from neuronxcc.cache.cache import VERSION_FOLDER, CompileCache, default_directory
from neuronxcc.cache.key import layouts_of, make_key
from neuronxcc.cache.local import FAILED_NAME, FLAGS_NAME, KEY_NAME, LOCK_NAME, LocalStore
from neuronxcc.cache.locks import file_lock
from neuronxcc.cache.messages import CacheWarning
from neuronxcc.cache.private import NotPrivateError
from neuronxcc.cache.remote import RemoteStore
from neuronxcc.codegen.llvm import compile_kernels
from neuronxcc.codegen.objects import _MAGIC, ObjectCache, _digest
from neuronxcc.files import UntrustedFileError, read_regular, write_whole
from neuronxcc.ir import build as ir_build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import TensorType
from neuronxcc.options import Options
from nrtpy import NrtError, NrtpyModel
from tests.compiler.neff_programs import large_program, same
from tests.compiler.test_codegen_objects import scaled

OPTIONS = Options()
PROGRAM = large_program(layers=1)
KEY, OTHER = make_key("graph", OPTIONS), make_key("other", OPTIONS)
SECONDS, BYTES = 20, 2 << 30
STRANGER = 65534

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(autouse=True)
def _guard() -> Iterator[None]:
    """Who waits is interrupted, and who reads without a limit gets a MemoryError."""

    def stop(*_: object) -> None:
        raise AssertionError(f"it took more than {SECONDS} seconds")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, before[1]))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


# ---- what stands there -------------------------------------------------------------------------


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def link(path: Path) -> None:
    """To what was there: right, but somebody else could bend the link."""
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


def sparse(path: Path) -> None:
    os.truncate(path, 100 << 30)


def listening(path: Path) -> None:
    path.unlink()
    here = Path.cwd()
    with socket.socket(socket.AF_UNIX) as one:
        os.chdir(path.parent)  # such names are short
        one.bind(path.name)
        os.chdir(here)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def noise(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(5000))


def deep(path: Path) -> None:
    path.write_bytes(b"[" * 200_000)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def strangers(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER)
    path.chmod(0o644)


HOSTILE: dict[str, Callable[[Path], None]] = {
    f.__name__: f
    for f in (fifo, endless, link, dangling, sparse, listening, folder, empty, noise, deep, cut)
}
EVERY = [*HOSTILE.values(), pytest.param(strangers, marks=ROOT)]
every = pytest.mark.parametrize("hostile", EVERY, ids=[*HOSTILE, "strangers"])


# ---- who reads ---------------------------------------------------------------------------------


@every
def test_programs(tmp_path: Path, hostile: Callable[[Path], None]) -> None:
    cache = CompileCache(LocalStore(tmp_path / "cache", VERSION_FOLDER))
    path = cache.compile(KEY, lambda: PROGRAM, OPTIONS).path
    assert path is not None
    hostile(path)
    with pytest.warns(CacheWarning, match="compiled again") as caught:
        compiled = cache.compile(KEY, lambda: PROGRAM, OPTIONS)
    assert same(compiled.program, PROGRAM)
    assert not compiled.hit
    if hostile is not folder:
        assert len(caught) == 1
        assert cache.compile(KEY, pytest.fail, OPTIONS).hit
    if hostile is link:
        assert not path.is_symlink()


@every
@pytest.mark.filterwarnings("ignore:the compiled program cannot be kept")
def test_shared_programs(tmp_path: Path, hostile: Callable[[Path], None]) -> None:
    def machine(name: str) -> CompileCache:
        remote = RemoteStore(f"file://{tmp_path}/shared", VERSION_FOLDER)
        return CompileCache(LocalStore(tmp_path / name, VERSION_FOLDER), remote)

    machine("a").compile(KEY, lambda: PROGRAM, OPTIONS)
    machine("a").compile(OTHER, lambda: PROGRAM, OPTIONS)
    remote = machine("a").remote
    assert remote is not None
    hostile(Path(remote.place(KEY)))
    second = machine("b")
    if hostile is strangers:  # several users share by a URL
        assert second.compile(KEY, pytest.fail, OPTIONS).hit
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = second.compile(KEY, lambda: PROGRAM, OPTIONS)
    assert same(compiled.program, PROGRAM)
    assert not compiled.hit
    assert any("again" in str(w.message) or hostile is dangling for w in caught)


@every
def test_explanations(
    tmp_path: Path, hostile: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    cache = CompileCache(LocalStore(tmp_path / "cache", VERSION_FOLDER), explain=True)
    path = cache.compile(OTHER, lambda: PROGRAM, OPTIONS).path
    assert path is not None
    capsys.readouterr()
    hostile(path.with_name(KEY_NAME))
    cache.compile(KEY, lambda: PROGRAM, OPTIONS)
    assert "is empty" in capsys.readouterr().err  # nothing to explain by


@pytest.mark.parametrize("hostile", [fifo, endless, link, dangling, listening, folder])
def test_locks(tmp_path: Path, hostile: Callable[[Path], None]) -> None:
    cache = CompileCache(LocalStore(tmp_path / "cache", VERSION_FOLDER))
    path = cache.compile(KEY, lambda: PROGRAM, OPTIONS).path
    assert path is not None
    lock = path.with_name(LOCK_NAME)
    lock.write_text("precious")
    hostile(lock)
    with pytest.raises(OSError), file_lock(lock, pytest.fail):
        pytest.fail("it has been locked")
    if hostile is link:
        assert lock.read_text() == "precious"  # not emptied
    assert not lock.with_name("nowhere").exists()
    path.unlink()
    assert not cache.compile(KEY, lambda: PROGRAM, OPTIONS).hit  # it goes without


@pytest.fixture
def objects(tmp_path: Path) -> tuple[ObjectCache, Path]:
    """A cache of machine code, and the file of `scaled(5.0)` in it."""
    cache = ObjectCache(tmp_path / "objects")
    compile_kernels([scaled(5.0)], cache=cache)
    (path,) = (tmp_path / "objects").glob("*.obj")
    return cache, path


def multiplies_by_five(cache: ObjectCache) -> bool:
    out = np.zeros(20, np.float32)
    compile_kernels([scaled(5.0)], cache=cache).run(0, [np.ones(20, np.float32), out])
    return bool((out == 5.0).all())


@every
def test_machine_code(
    objects: tuple[ObjectCache, Path],
    hostile: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache, path = objects
    hostile(path)
    with caplog.at_level(logging.WARNING):
        assert multiplies_by_five(cache)
    assert caplog.records
    if hostile is not folder:
        caplog.clear()
        assert multiplies_by_five(cache)
        assert not caplog.records


def test_machine_code_of_nothing_is_kept_too(tmp_path: Path) -> None:
    """Kernels without work have no items and no grain."""
    cache = ObjectCache(tmp_path / "objects")
    nothing = scaled(5.0, extent=0)
    first, second = (compile_kernels([nothing], cache=cache).functions[0] for _ in range(2))
    assert first.items == second.items == 0


def test_machine_code_of_another_key(
    objects: tuple[ObjectCache, Path], caplog: pytest.LogCaptureFixture
) -> None:
    cache, path = objects
    compile_kernels([scaled(6.0)], cache=cache)
    other = next(p for p in path.parent.glob("*.obj") if p != path)
    shutil.copy(other, path)
    assert multiplies_by_five(cache)
    assert "is damaged; compiled anew" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]\n",
        b"[[1, 1, 0]]\nno object",
        b"[[1, 1, 0], [1, 1, 0]]\n",
        b'[["a", 1, 0]]\n',
        b"[[1]]\n",
        b"[[-1, 0, 0]]\n",
        b"{}\n",
        b"[" * 100_000,
        b"\xff\xfe",
        b"[[20, 20, 0]]\n\x7fELF" + bytes(200),
    ],
)
def test_machine_code_that_is_none(
    objects: tuple[ObjectCache, Path], content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The hash is right for the name, but LLVM cannot link it, or it isn't what was asked for."""
    cache, path = objects
    good = path.read_bytes()
    path.write_bytes(_MAGIC + _digest(path.stem, content) + content)
    assert multiplies_by_five(cache)
    assert "compiled anew" in caplog.text
    assert path.read_bytes() == good


X = parameter(0, TensorType(DType.F32, (2, 3)), "x")


@every
@pytest.mark.parametrize(
    "name", [collected.REQUEST_NAME, FLAGS_NAME, collected.HLO_NAME, FAILED_NAME]
)
def test_collected_graphs(tmp_path: Path, name: str, hostile: Callable[[Path], None]) -> None:
    cache = CompileCache(LocalStore(tmp_path / "cache", VERSION_FOLDER))
    assert cache.local is not None
    graph = Graph("g", (X,), (ir_build.add(X, X),))
    strides: list[tuple[int, ...]] = [(3, 1)]
    key = make_key(graph, OPTIONS, layouts=layouts_of(strides, strides, None))
    request = collected.Request(graph, OPTIONS, key, "g", strides, strides, None)
    place = collected.collect(cache.local, request).parent
    (place / FAILED_NAME).write_text("no")
    hostile(place / name)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        command(place)
        reason = collected.failure(place)
    if name == FAILED_NAME:
        assert len(reason) < 300_000
        assert not collected.compile_entry(place, cache)
        return
    with pytest.raises((collected.CollectedError, OSError, RecursionError, ValueError)):
        collected.read(place)


def doubled(a: Any) -> Any:
    out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
    tile = nl.ndarray(a.shape, a.dtype)
    nisa.dma_copy(dst=tile, src=a)
    nisa.tensor_scalar(dst=tile, data=tile, op0="multiply", operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


@every
def test_recorded_kernels(
    tmp_path: Path, hostile: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_NEURONX_NKI_EXECUTOR", "native")
    value = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(nki.jit(doubled)(value), 2 * value)
    (path,) = (tmp_path / "cache").rglob("model.neff")
    hostile(path)
    with pytest.warns(CacheWarning, match="compiled again"):
        np.testing.assert_array_equal(nki.jit(doubled)(value), 2 * value)


@pytest.mark.parametrize("hostile", [fifo, endless, dangling, sparse, listening, folder, noise])
def test_files_that_the_user_names(tmp_path: Path, hostile: Callable[[Path], None]) -> None:
    path = tmp_path / "model.neff"
    path.write_bytes(b"")
    hostile(path)
    with pytest.raises(NrtError):
        NrtpyModel.load_from_neff(path)


# ---- the one function, and what is written -----------------------------------------------------


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = np.random.default_rng(1).bytes(3 << 20)
    path.write_bytes(content)
    assert read_regular(path, 3 << 20) == content
    with pytest.raises(UntrustedFileError, match="has 3145728 bytes; at most 3145727 are read"):
        read_regular(path, (3 << 20) - 1)
    (tmp_path / "link").symlink_to(path)
    assert read_regular(tmp_path / "link", 3 << 20, links=True) == content


@ROOT
def test_a_file_of_another_user(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    strangers(path)
    with pytest.raises(UntrustedFileError, match=f"belongs to user {STRANGER}"):
        read_regular(path, 1)
    assert read_regular(path, 1, anyone=True) == b"x"


def test_drafts_are_not_written_through_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    (tmp_path / "precious").write_text("kept")
    (tmp_path / f".file.{os.getpid()}-guessed").symlink_to(tmp_path / "precious")
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "precious").read_text() == "kept"


# ---- directories that are made again by somebody else ------------------------------------------


def made_again(directory: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(directory)
    directory.mkdir()
    directory.chmod(0o777)
    if os.geteuid() == 0:
        os.chown(directory, STRANGER, STRANGER)


def test_machine_code_is_not_put_into_a_directory_of_others(
    objects: tuple[ObjectCache, Path], caplog: pytest.LogCaptureFixture
) -> None:
    cache, path = objects
    content = path.read_bytes()
    made_again(path.parent)
    path.write_bytes(content)
    for _ in range(2):
        assert multiplies_by_five(cache)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]
    assert caplog.text.count("compiled kernels are not cached") == 1  # told once


def test_programs_are_not_put_into_a_directory_of_others(tmp_path: Path) -> None:
    root = tmp_path / "neff_cache"
    cache = CompileCache(LocalStore(root, VERSION_FOLDER, private=True))
    assert default_directory(root) == root
    cache.compile(KEY, lambda: PROGRAM, OPTIONS)
    assert cache.compile(KEY, pytest.fail, OPTIONS).hit
    made_again(root)
    with pytest.warns(CacheWarning, match=r"(belongs to|written to by)") as caught:
        cache.compile(OTHER, lambda: PROGRAM, OPTIONS)
    assert [re.findall("cannot be (used|kept)", str(w.message)) for w in caught] == [
        ["used"],
        ["kept"],
    ]
    assert not [p for p in root.rglob("*") if p.is_file()]
    assert default_directory(root) == root.with_name(f"neff_cache-{os.geteuid()}")


def test_an_entry_below_a_link(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "cache", VERSION_FOLDER)
    store.home.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (store.home / KEY.folder).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotPrivateError, match="is a link"):
        store.write(KEY, b"", "")
    assert not list((tmp_path / "elsewhere").iterdir())
