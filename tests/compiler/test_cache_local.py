"""The compile cache on one machine: hits, misses, and everything that can go wrong with a file."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuronxcc.cache import cache as cache_module
from neuronxcc.cache import key as key_module
from neuronxcc.cache.cache import VERSION_FOLDER, CompileCache, default_directory, open_cache
from neuronxcc.cache.key import CacheKey, make_key
from neuronxcc.cache.local import LocalStore
from neuronxcc.cache.messages import CacheWarning
from neuronxcc.cache.private import NotPrivateError, private_directory
from neuronxcc.options import Options, Wrapper, parse
from neuronxcc.program.program import Program
from tests.compiler.neff_programs import large_program, same

OPTIONS = Options()
PROGRAM = large_program(layers=1)


class Builds:
    """Builds the program and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Program:
        self.count += 1
        return PROGRAM


@pytest.fixture
def builds() -> Builds:
    return Builds()


@pytest.fixture
def cache(tmp_path: Path) -> CompileCache:
    return CompileCache(LocalStore(tmp_path / "cache", VERSION_FOLDER))


def key(text: str = "graph") -> CacheKey:
    return make_key(text, OPTIONS)


def leftovers(cache: CompileCache) -> list[str]:
    assert cache.local is not None
    return [path.name for path in cache.local.root.rglob("*") if path.name.startswith(".tmp")]


def test_second_time_is_a_hit(cache: CompileCache, builds: Builds) -> None:
    first = cache.compile(key(), builds, OPTIONS)
    second = cache.compile(key(), builds, OPTIONS)
    assert (first.hit, second.hit, builds.count) == (False, True, 1)
    assert same(second.program, PROGRAM)
    assert first.path == second.path
    assert first.path is not None
    assert first.path.parent.name == key().folder
    assert first.path.parent.parent.name == VERSION_FOLDER
    assert not cache.compile(key("other"), builds, OPTIONS).hit
    assert not leftovers(cache)


def test_entries_are_private_and_named(cache: CompileCache, builds: Builds) -> None:
    path = cache.compile(key(), builds, OPTIONS, name="../pix art/é").path
    assert path is not None
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.parents[2].stat().st_mode & 0o777 == 0o700
    links = [entry for entry in path.parent.iterdir() if entry.is_symlink()]
    assert [link.name for link in links] == ["_pix_art_.neff"]
    assert links[0].read_bytes() == path.read_bytes()
    description = json.loads((path.parent / "key.json").read_bytes())
    assert (description["name"], description["key"]) == ("../pix art/é", key().digest)


def test_a_failed_compilation_is_not_kept(cache: CompileCache, builds: Builds) -> None:
    def fail() -> Program:
        raise ValueError("an operator was used that is not supported")

    for _ in range(2):
        with pytest.raises(ValueError, match="not supported"):
            cache.compile(key(), fail, OPTIONS)
    assert cache.lookup(key()) is None
    assert not cache.compile(key(), builds, OPTIONS).hit
    assert cache.compile(key(), fail, OPTIONS).hit


def test_no_cache(tmp_path: Path, builds: Builds) -> None:
    wrapper = Wrapper(cache_dir=str(tmp_path / "c"), no_cache=True)
    cache = open_cache(wrapper, {})
    for _ in range(2):
        compiled = cache.compile(key(), builds, OPTIONS)
        assert (compiled.hit, compiled.path) == (False, None)
    assert builds.count == 2
    assert not (tmp_path / "c").exists()


# Damage


def damaged_then_right(cache: CompileCache, builds: Builds, text: str) -> None:
    """The entry cannot be used: a warning, the right program, and a good entry afterwards."""
    with pytest.warns(CacheWarning, match=text) as caught:
        compiled = cache.compile(key(), builds, OPTIONS)
    assert len(caught) == 1
    assert not compiled.hit
    assert same(compiled.program, PROGRAM)
    assert cache.compile(key(), builds, OPTIONS).hit


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda _: b"", "cannot be used, so the program is compiled again: 0 bytes are too few"),
        (lambda data: data[: len(data) // 2], "the file is cut off or too long"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "does not have the hash in the header"),
        (lambda _: b"not a neff" * 500, "this is no NEFF"),
    ],
)
def test_damaged_entries(
    cache: CompileCache, builds: Builds, change: Callable[[bytes], bytes], text: str
) -> None:
    path = cache.compile(key(), builds, OPTIONS).path
    assert path is not None
    path.write_bytes(change(path.read_bytes()))
    damaged_then_right(cache, builds, text)


def test_the_entry_of_another_key(cache: CompileCache, builds: Builds) -> None:
    other = cache.compile(key("other"), builds, OPTIONS).path
    mine = cache.compile(key(), builds, OPTIONS).path
    assert mine is not None
    assert other is not None
    mine.write_bytes(other.read_bytes())
    damaged_then_right(cache, builds, "it is the program of another key")


def test_an_entry_that_is_a_directory(cache: CompileCache, builds: Builds) -> None:
    assert cache.local is not None
    cache.local.path(key()).mkdir(parents=True)
    with pytest.warns(CacheWarning) as caught:
        compiled = cache.compile(key(), builds, OPTIONS)
    assert [str(warning.message).partition(":")[0] for warning in caught] == [
        f"{cache.local.path(key())} cannot be used, so the program is compiled again",
        (
            f"the compiled program cannot be kept in {cache.local.root}, so it will be compiled "
            "again next time"
        ),
    ]
    assert same(compiled.program, PROGRAM)
    assert not leftovers(cache)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(place=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255))
def test_any_changed_byte_means_another_compilation(
    cache: CompileCache, builds: Builds, place: float, bits: int
) -> None:
    path = cache.compile(key(), builds, OPTIONS).path
    assert path is not None
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= bits
    path.write_bytes(data)
    damaged_then_right(cache, builds, "compiled again")


# Disks


def fake_write(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """Let `os.write` fail after half of a file."""

    def write(descriptor: int, data: memoryview) -> int:
        if len(data) < 2:
            raise OSError(error, os.strerror(error))
        return os.pwrite(descriptor, data[: len(data) // 2], 0)

    monkeypatch.setattr(os, "write", write)


def test_a_full_disk(cache: CompileCache, builds: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fake_write(patch, errno.ENOSPC)
        with pytest.warns(CacheWarning, match="cannot be kept in .*No space left on device"):
            compiled = cache.compile(key(), builds, OPTIONS)
    assert same(compiled.program, PROGRAM)
    assert compiled.path is None
    assert not leftovers(cache)
    assert cache.lookup(key()) is None
    assert not cache.compile(key(), builds, OPTIONS).hit
    assert cache.compile(key(), builds, OPTIONS).hit


def test_a_full_disk_does_not_harm_an_entry(
    cache: CompileCache, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.compile(key(), builds, OPTIONS)
    with monkeypatch.context() as patch:
        fake_write(patch, errno.ENOSPC)
        with pytest.warns(CacheWarning, match="No space left on device"):
            assert cache.store(key(), PROGRAM, OPTIONS) is None
    assert cache.compile(key(), builds, OPTIONS).hit


def test_a_path_below_a_file(tmp_path: Path, builds: Builds) -> None:
    (tmp_path / "file").write_text("")
    cache = CompileCache(LocalStore(tmp_path / "file" / "cache", VERSION_FOLDER))
    with pytest.warns(CacheWarning, match="cannot be kept in .*file/cache"):
        assert not cache.compile(key(), builds, OPTIONS).hit


def test_a_directory_that_cannot_be_written_to(
    cache: CompileCache, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.compile(key(), builds, OPTIONS)
    real = os.open

    def read_only(path: Any, flags: int, mode: int = 0o777, **place: Any) -> int:
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return real(path, flags, mode, **place)

    monkeypatch.setattr(os, "open", read_only)
    assert cache.compile(key(), builds, OPTIONS).hit
    with pytest.warns(CacheWarning, match="Read-only file system") as caught:
        compiled = cache.compile(key("other"), builds, OPTIONS)
    assert len(caught) == 1
    assert not compiled.hit


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_directory_without_permission(tmp_path: Path, builds: Builds) -> None:
    (tmp_path / "c").mkdir(mode=0o500)
    cache = CompileCache(LocalStore(tmp_path / "c", VERSION_FOLDER))
    with pytest.warns(CacheWarning, match="Permission denied"):
        assert not cache.compile(key(), builds, OPTIONS).hit


def test_a_program_that_cannot_be_stored(cache: CompileCache) -> None:
    program = Program("odd", (), (), (), meta={"x": object()})
    with pytest.warns(CacheWarning, match="'odd' is not kept: expected a value that a NEFF can"):
        compiled = cache.compile(key(), lambda: program, OPTIONS)
    assert compiled.program is program


def test_threads_build_once(cache: CompileCache, builds: Builds) -> None:
    started = threading.Barrier(4)
    programs = []

    def work() -> None:
        started.wait()
        programs.append(cache.compile(key(), builds, OPTIONS).program)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builds.count == 1
    assert all(same(program, PROGRAM) for program in programs)


# Explanations


def explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], missed: CacheKey, *known: CacheKey
) -> list[str]:
    cache = CompileCache(LocalStore(tmp_path, VERSION_FOLDER))
    for entry in known:
        cache.compile(entry, Builds(), OPTIONS, name="gpt2")
    cache.explain = True
    cache.compile(missed, Builds(), OPTIONS, name="new")
    return capsys.readouterr().err.splitlines()


def test_explain_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = explained(tmp_path, capsys, key())
    assert lines == [f"[neuron cache] miss: new ({key().folder}): {tmp_path} is empty"]


def test_explain_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missed = make_key("graph", parse("-O1 --auto-cast=all", environ={}), more="x")
    lines = explained(tmp_path, capsys, missed, key("something else"), key())
    assert lines == [
        (
            f"[neuron cache] miss: new ({missed.folder}): the nearest entry is {key().folder} of "
            "'gpt2'; what differs:"
        ),
        "  more: only here",
        "  option.auto_cast: 'none' there, 'all' here",
        "  option.auto_cast_type: only here",
        "  option.optlevel: '2' there, '1' here",
    ]


def test_explain_a_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = explained(tmp_path, capsys, key("b" * 1000), key("a" * 1000))
    assert lines[1:] == ["  graph"]


def test_explain_survives_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = CompileCache(LocalStore(tmp_path, VERSION_FOLDER))
    for number, content in enumerate((b"", b"[]", b'{"parts": 1}', b'{"parts": {"a": 1}}')):
        path = cache.compile(key(str(number)), Builds(), OPTIONS).path
        assert path is not None
        (path.parent / "key.json").write_bytes(content)
    lines = explained(tmp_path, capsys, key())
    assert lines == [f"[neuron cache] miss: new ({key().folder}): {tmp_path} is empty"]


def test_explain_a_missing_neff(
    tmp_path: Path, cache: CompileCache, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = CompileCache(LocalStore(tmp_path, VERSION_FOLDER))
    path = cache.compile(key(), Builds(), OPTIONS).path
    assert path is not None
    path.unlink()
    lines = explained(tmp_path, capsys, key())
    assert lines[1:] == ["  nothing: its NEFF is missing or cannot be used"]


# Keys


def test_key_labels() -> None:
    made = make_key("g", parse("--internal-x=1", environ={}), layouts="l", dynamo="d")
    assert set(made.parts) > {"graph", "layouts", "dynamo", "option.target", "option.recorded"}
    assert {"version.torch", "version.torchneuron", "version.llvmlite", "version.neuronxcc"} < set(
        made.parts
    )
    assert made.labels().keys() == made.parts.keys()
    assert made.folder.startswith("MODULE_")
    assert [len(part) for part in made.folder.removeprefix("MODULE_").split("+")] == [20, 8]


def test_folders_tell_graph_from_flags() -> None:
    one, other = key(), make_key("graph", parse("-O1", environ={}))
    graph, flags = one.folder.split("+")
    assert other.folder.split("+")[0] == graph
    assert other.folder.split("+")[1] != flags
    assert key("b").folder.split("+")[1] == flags
    assert one.digest != other.digest


@given(st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=4))
def test_keys_are_equal_exactly_if_the_parts_are(texts: dict[str, str]) -> None:
    assert CacheKey.of(texts).digest == CacheKey.of(dict(reversed(texts.items()))).digest
    for label, text in texts.items():
        assert CacheKey.of({**texts, label: text + "x"}).digest != CacheKey.of(texts).digest


def test_device_numbers_do_not_count() -> None:
    assert key("f32[2] neuron:3") == key("f32[2] neuron:0")
    assert (
        key("x = neuron:13, y = privateuseone:1").digest
        == key("x = neuron:1, y = privateuseone:0").digest
    )
    assert key("neurons:3").digest != key("neurons:0").digest


def test_a_change_of_the_compiler_is_a_change_of_the_key(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (0, 0))

    digests = []
    for name, text in (("a.py", "x = 1"), ("sub/b.py", ""), ("a.py", "x = 2"), ("c.txt", "x")):
        write(name, text)
        digests.append(key_module.source_digest(tmp_path))
    assert len(set(digests)) == 3
    assert digests[2] == digests[3]


def test_a_change_while_the_process_runs_keeps_it_to_itself(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    assert key_module.source_digest(tmp_path) != key_module.source_digest(tmp_path)


# Places


def test_precedence_of_places(tmp_path: Path) -> None:
    environ = {
        "TORCH_NEURONX_NEFF_CACHE_DIR": str(tmp_path / "env"),
        "NEURON_COMPILE_CACHE_URL": str(tmp_path / "url"),
    }

    def root(wrapper: Wrapper, environ: dict[str, str]) -> Path:
        local = open_cache(wrapper, environ).local
        assert local is not None
        return local.root

    assert root(Wrapper(cache_dir=str(tmp_path / "flag")), environ) == tmp_path / "flag"
    assert root(Wrapper(), environ) == tmp_path / "env"
    del environ["TORCH_NEURONX_NEFF_CACHE_DIR"]
    assert root(Wrapper(), environ) == tmp_path / "url"
    assert not list(tmp_path.iterdir())  # nothing is created before it is needed
    assert open_cache(Wrapper(), environ) is open_cache(Wrapper(), environ)
    assert open_cache(Wrapper(), {**environ, "NEURON_CACHE_EXPLAIN": "1"}).explain


def test_the_default_directory_is_private(tmp_path: Path) -> None:
    base = tmp_path / "neff_cache"
    assert default_directory(base) == base
    assert base.stat().st_mode & 0o777 == 0o700
    base.chmod(0o755)
    assert default_directory(base) == base
    assert base.stat().st_mode & 0o777 == 0o700


def taken(base: Path, how: str) -> None:
    if how == "link":
        (base.parent / "elsewhere").mkdir(exist_ok=True)
        base.symlink_to(base.parent / "elsewhere")
    elif how == "file":
        base.write_text("")
    elif how == "open to all":
        base.mkdir()
        base.chmod(0o777)
    else:
        if os.geteuid():
            pytest.skip("only root can give a directory away")
        base.mkdir(mode=0o700)
        os.chown(base, 12345, 12345)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("link", "is no directory"),
        ("file", "is no directory"),
        ("open to all", r"can be written to by others \(mode 777\)"),
        ("another user's", "belongs to user 12345"),
    ],
)
def test_a_default_directory_that_is_taken(
    tmp_path: Path, how: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    base = tmp_path / "neff_cache"
    sibling = tmp_path / f"neff_cache-{os.geteuid()}"
    taken(base, how)
    assert default_directory(base) == sibling
    assert sibling.stat().st_mode & 0o777 == 0o700
    (record,) = caplog.records
    assert record.getMessage().endswith(f"; using {sibling}")
    with pytest.raises(NotPrivateError, match=text):
        private_directory(base)
    caplog.clear()
    assert default_directory(base) == sibling
    assert not caplog.records  # told once
    sibling.rmdir()
    taken(sibling, "open to all")
    with pytest.warns(CacheWarning, match="compiled programs are not kept: .*set TORCH_NEURONX_"):
        assert default_directory(base) is None


def test_without_any_directory_it_still_compiles(
    monkeypatch: pytest.MonkeyPatch, builds: Builds
) -> None:
    monkeypatch.setattr(cache_module, "default_directory", lambda: None)
    cache = open_cache(None, {"NEURON_CACHE_EXPLAIN": "1"})
    compiled = cache.compile(key(), builds, OPTIONS)
    assert (compiled.hit, compiled.path) == (False, None)
