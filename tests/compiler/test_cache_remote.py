"""The shared tier of the compile cache, on file systems of fsspec and on a local S3 server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import fsspec
import pytest
from moto.server import ThreadedMotoServer

from neuronxcc.cache import cache as cache_module
from neuronxcc.cache.cache import VERSION_FOLDER, CompileCache, open_cache
from neuronxcc.cache.key import CacheKey
from neuronxcc.cache.local import LocalStore
from neuronxcc.cache.messages import CacheWarning
from neuronxcc.cache.remote import RemoteStore
from neuronxcc.options import Options, Wrapper
from neuronxcc.program.program import Program
from tests.compiler.neff_programs import large_program, same

OPTIONS = Options()
KEY, OTHER = CacheKey.of({"graph": "g"}), CacheKey.of({"graph": "o"})
PROGRAM = large_program(layers=1)
BUCKET = "models"


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """A bucket on a server of this process, and the environment that leads to it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL_S3", url)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("NO_PROXY", "127.0.0.1")
        client = boto3.client("s3", endpoint_url=url)
        client.create_bucket(Bucket=BUCKET)
        yield client
        client.close()
    server.stop()


def urls(tmp_path: Path, request: pytest.FixtureRequest, protocol: str) -> str:
    if protocol == "s3":
        request.getfixturevalue("s3")
        return f"s3://{BUCKET}/{tmp_path.name}"
    return f"memory://{tmp_path.name}" if protocol == "memory" else f"file://{tmp_path}/shared"


@pytest.fixture(params=["memory", "file", "s3"])
def url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A place of every kind, empty."""
    return urls(tmp_path, request, request.param)


def machine(tmp_path: Path, name: str, url: str) -> CompileCache:
    """The cache of one of several machines that share a place."""
    return CompileCache(
        LocalStore(tmp_path / name, VERSION_FOLDER), RemoteStore(url, VERSION_FOLDER)
    )


def build() -> Program:
    return PROGRAM


def test_what_one_machine_compiles_another_loads(tmp_path: Path, url: str) -> None:
    assert not machine(tmp_path, "a", url).compile(KEY, build, OPTIONS, name="gpt2").hit
    second = machine(tmp_path, "b", url)
    compiled = second.compile(KEY, pytest.fail, OPTIONS)
    assert compiled.hit
    assert same(compiled.program, PROGRAM)
    # It is in the local tier now: the shared one is not asked again.
    second.remote = None
    assert second.compile(KEY, pytest.fail, OPTIONS).hit
    assert not second.compile(OTHER, build, OPTIONS).hit


def test_nothing_but_the_entry_is_left_there(tmp_path: Path, url: str) -> None:
    machine(tmp_path, "a", url).compile(KEY, build, OPTIONS)
    files, root = fsspec.core.url_to_fs(url)
    names = [name.removeprefix(root).strip("/") for name in files.find(root)]
    assert names == [f"{VERSION_FOLDER}/{KEY.folder}/model.neff"]


def test_a_damaged_entry(tmp_path: Path, url: str) -> None:
    cache = machine(tmp_path, "a", url)
    cache.compile(KEY, build, OPTIONS)
    assert cache.remote is not None
    files, _ = fsspec.core.url_to_fs(url)
    place = cache.remote.place(KEY)
    data = files.cat_file(place)
    files.pipe_file(place, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.warns(CacheWarning, match="cannot be used, so the program is compiled again: the "):
        compiled = machine(tmp_path, "b", url).compile(KEY, build, OPTIONS)
    assert not compiled.hit
    # The good one has taken its place.
    assert machine(tmp_path, "c", url).compile(KEY, pytest.fail, OPTIONS).hit


def test_the_entry_of_another_key(tmp_path: Path, url: str) -> None:
    cache = machine(tmp_path, "a", url)
    cache.compile(OTHER, build, OPTIONS)
    assert cache.remote is not None
    files, _ = fsspec.core.url_to_fs(url)
    files.makedirs(cache.remote.place(KEY).rpartition("/")[0], exist_ok=True)
    files.pipe_file(cache.remote.place(KEY), files.cat_file(cache.remote.place(OTHER)))
    with pytest.warns(CacheWarning, match="it is the program of another key"):
        assert not machine(tmp_path, "b", url).compile(KEY, build, OPTIONS).hit


class Broken:
    """A file system on which nothing works."""

    protocol = "s3"

    def __getattr__(self, name: str) -> Any:
        def fail(*_: Any, **__: Any) -> None:
            raise TimeoutError(f"{name}: no answer")

        return fail


def test_a_place_that_does_not_answer(tmp_path: Path) -> None:
    cache = machine(tmp_path, "a", "memory://x")
    assert cache.remote is not None
    cache.remote._files = Broken()
    with pytest.warns(CacheWarning) as caught:
        assert not cache.compile(KEY, build, OPTIONS).hit
    assert [str(warning.message) for warning in caught] == [
        (
            "the shared cache memory://x cannot be read; programs are compiled here: TimeoutError: "
            "cat_file: no answer"
        )
    ]
    # It isn't asked again by this process, and the local tier works.
    assert not cache.compile(OTHER, build, OPTIONS).hit
    assert cache.compile(KEY, pytest.fail, OPTIONS).hit


class Full(Broken):
    """One that can only be read."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.removed: list[str] = []

    def cat_file(self, path: str, **_: int) -> bytes:
        raise FileNotFoundError(path)

    def pipe_file(self, path: str, _: bytes) -> None:
        raise OSError(28, "No space left on device", path)

    def makedirs(self, *_: Any, **__: Any) -> None: ...

    def exists(self, _: str) -> bool:
        return True

    def rm_file(self, path: str) -> None:
        self.removed.append(path)


@pytest.mark.parametrize("protocol", ["s3", "file"])
def test_a_place_that_is_full(tmp_path: Path, protocol: str) -> None:
    cache = machine(tmp_path, "a", "memory://y")
    full = Full(protocol)
    assert cache.remote is not None
    cache.remote._files = full
    with pytest.warns(CacheWarning, match="cannot be written to; 'large' is not shared: OSError"):
        compiled = cache.compile(KEY, build, OPTIONS)
    assert compiled.path is not None
    assert len(full.removed) == (protocol == "file")  # the half that was written
    assert cache.compile(KEY, pytest.fail, OPTIONS).hit


def test_a_bucket_that_is_not_there(tmp_path: Path, s3: Any) -> None:
    del s3
    cache = machine(tmp_path, "a", "s3://nowhere/x")
    with pytest.warns(CacheWarning, match="the shared cache s3://nowhere/x cannot be written to"):
        assert not cache.compile(KEY, build, OPTIONS).hit
    assert cache.compile(KEY, pytest.fail, OPTIONS).hit


def test_urls_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "default_directory", lambda: tmp_path / "default")
    url = f"memory://{tmp_path.name}"
    cache = open_cache(None, {"TORCH_NEURONX_NEFF_CACHE_DIR": url})
    assert cache.remote is not None
    assert cache.remote.url == url
    assert cache.local is not None
    assert cache.local.root == tmp_path / "default"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("nosuch://x", "the shared cache nosuch://x is not used: Protocol not known: nosuch"),
        ("gs://x", "the shared cache gs://x is not used: Please install gcsfs"),
    ],
)
def test_urls_that_lead_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, text: str
) -> None:
    with contextlib.suppress(ImportError):
        import gcsfs  # type: ignore[import-not-found]  # noqa: F401, PLC0415

        if url.startswith("gs"):
            pytest.skip("gcsfs is installed")
    monkeypatch.setattr(cache_module, "default_directory", lambda: tmp_path / "default")
    with pytest.warns(CacheWarning, match=text):
        cache = open_cache(Wrapper(cache_dir=url), {})
    assert not cache.compile(KEY, build, OPTIONS).hit
    assert cache.compile(KEY, pytest.fail, OPTIONS).hit
