"""torch.compiler.save_cache_artifacts and load_cache_artifacts: programs as PyTorch's artifacts."""

import json
import os
import struct
import textwrap
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.compiler._cache import CacheArtifactFactory, CacheArtifactManager, CacheInfo

from neuronxcc.cache.local import LocalStore, key_of_description
from neuronxcc.cache.messages import CacheWarning
from tests import interpreter
from torch_neuronx.dynamo.portable_cache import ProgramArtifact

# A model that is trained and called with two sizes; prints which programs came from the cache.
MODEL = """
    import sys, torch
    from torch_neuronx.dynamo import backend

    found = []
    backend.OBSERVERS.append(lambda graph: found.append(graph.executable.report.hit))

    def run():
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).to("neuron")
        compiled = torch.compile(model, backend="neuron", dynamic=False)
        for rows in (2, 3):
            compiled(torch.ones(rows, 4, device="neuron")).sum().backward()
        print(found)
"""
SAVE = "run()\nopen(sys.argv[1], 'wb').write(torch.compiler.save_cache_artifacts()[0])"
LOAD = """
info = torch.compiler.load_cache_artifacts(open(sys.argv[1], "rb").read())
print(len(info.neuron_artifacts))
run()
"""


def python(code: str, file: Path, home: Path) -> list[str]:
    """Run code with empty caches of its own."""
    process = interpreter.run(
        ["-c", textwrap.dedent(MODEL) + code, str(file)],
        env={
            **os.environ,
            "TORCH_NEURONX_NEFF_CACHE_DIR": str(home / "programs"),
            "XDG_CACHE_HOME": str(home),
        },
        strict=True,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


@pytest.mark.slow
def test_another_process_compiles_nothing(tmp_path: Path) -> None:
    file = tmp_path / "artifacts"
    assert python(SAVE, file, tmp_path / "a") == ["[False, False, False, False]"]
    assert python(LOAD, file, tmp_path / "b") == ["4", "[True, True, True, True]"]
    # What was found in the cache is saved too.
    again = tmp_path / "again"
    assert python(SAVE, again, tmp_path / "b") == ["[True, True, True, True]"]
    assert python(LOAD, again, tmp_path / "c") == ["4", "[True, True, True, True]"]
    kept = sorted(tmp_path.glob("c/programs/*/MODULE_*/*"))
    assert len([path for path in kept if path.name == "model.neff"]) == 4
    assert all(path.lstat().st_mode & 0o077 == 0 for path in kept if not path.is_symlink())
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in tmp_path.glob("c/programs/*/*"))


@pytest.fixture
def artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProgramArtifact:
    """A program's; the cache is then an empty directory."""
    torch.compiler.reset()
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "first"))
    with CacheArtifactManager.with_fresh_cache():
        torch.compile(lambda x: x * 3 + 1, backend="neuron")(torch.ones(5, device="neuron"))
        saved = torch.compiler.save_cache_artifacts()
    assert saved is not None
    found = CacheArtifactManager.deserialize(saved[0])
    assert found is not None
    (made,) = found["neuron"]
    assert isinstance(made, ProgramArtifact)
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "second"))
    return made


def neffs(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "second").glob("**/model.neff"))


def test_an_artifact_is_an_entry_of_the_cache(artifact: ProgramArtifact, tmp_path: Path) -> None:
    artifact.populate_cache()
    (kept,) = neffs(tmp_path)
    (first,) = (tmp_path / "first").glob("**/model.neff")
    assert kept.read_bytes() == first.read_bytes()
    assert kept.parent.name == first.parent.name
    assert (kept.parent / "key.json").read_bytes() == (first.parent / "key.json").read_bytes()
    before = kept.stat()
    artifact.populate_cache()  # it is there
    assert kept.stat().st_mtime_ns == before.st_mtime_ns
    assert kept.stat().st_ino == before.st_ino


def test_a_damaged_entry_is_replaced(artifact: ProgramArtifact, tmp_path: Path) -> None:
    artifact.populate_cache()
    (kept,) = neffs(tmp_path)
    good = kept.read_bytes()
    kept.write_bytes(good[:100])
    artifact.populate_cache()
    assert kept.read_bytes() == good


def parts(content: bytes) -> tuple[bytes, bytes]:
    (length,) = struct.unpack_from("<Q", content)
    return content[8 : 8 + length], content[8 + length :]


def joined(description: bytes, neff: bytes) -> bytes:
    return struct.pack("<Q", len(description)) + description + neff


def with_part(content: bytes, change: dict[str, object]) -> bytes:
    description, neff = parts(content)
    return joined(json.dumps({**json.loads(description), **change}).encode(), neff)


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda c: c[:0],
    "a short length": lambda c: c[:7],
    "an enormous length": lambda c: b"\xff" * 8 + c[8:],
    "a length beyond the end": lambda c: struct.pack("<Q", len(c)) + c[8:],
    "no text": lambda c: joined(b"\xff\xfe", parts(c)[1]),
    "no object": lambda c: joined(b"[]", parts(c)[1]),
    "deep text": lambda c: joined(b"[" * 100_000, parts(c)[1]),
    "no parts": lambda c: with_part(c, {"parts": None}),
    "other parts": lambda c: with_part(c, {"parts": {}}),
    "a path as hash": lambda c: with_part(
        c, {"parts": {"graph": {"hash": "../" * 20, "text": None}}}
    ),
    "a number as text": lambda c: with_part(c, {"parts": {"graph": {"hash": "0" * 64, "text": 3}}}),
    "a number as name": lambda c: with_part(c, {"name": 3}),
    "no NEFF": lambda c: joined(parts(c)[0], b""),
    "half a NEFF": lambda c: c[: -len(parts(c)[1]) // 2],
    "machine code": lambda c: joined(parts(c)[0], b"TNOBJ\x00\x02\n" + b"\x90" * 4096),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_entry_is_not_kept(artifact: ProgramArtifact, tmp_path: Path, kind: str) -> None:
    bad = CacheArtifactFactory.create("neuron", artifact.key, HOSTILE[kind](artifact.content))
    with pytest.warns(
        CacheWarning,
        match=r"^a program among the artifacts of torch.compiler's cache is not used: ",
    ):
        bad.populate_cache()
    assert not neffs(tmp_path)


def test_the_program_of_another_key_is_not_kept(artifact: ProgramArtifact, tmp_path: Path) -> None:
    description, neff = parts(artifact.content)
    changed = json.loads(description)
    changed["parts"]["graph"]["hash"] = "0" * 64
    other = key_of_description(json.dumps(changed).encode())[0].digest
    for key, content in (
        ("0" * 64, artifact.content),  # PyTorch's key is not the entry's
        (other, joined(json.dumps(changed).encode(), neff)),  # the entry's is not the NEFF's
    ):
        with pytest.warns(CacheWarning, match="it is the program of another key"):
            CacheArtifactFactory.create("neuron", key, content).populate_cache()
    assert not neffs(tmp_path)


@given(data=st.data())
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@pytest.mark.filterwarnings("ignore::neuronxcc.cache.messages.CacheWarning")
def test_damage_anywhere(artifact: ProgramArtifact, tmp_path: Path, data: st.DataObject) -> None:
    """Whatever is kept is the entry as it was: nothing else has its hashes."""
    content = bytearray(artifact.content)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    CacheArtifactFactory.create("neuron", artifact.key, bytes(content)).populate_cache()
    for kept in neffs(tmp_path):
        assert kept.read_bytes() == parts(artifact.content)[1]
        kept.unlink()


def test_a_full_disk_costs_a_warning(
    artifact: ProgramArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LocalStore, "write", full)
    with pytest.warns(CacheWarning, match="No space left on device"):
        artifact.populate_cache()


def test_the_kind_is_listed() -> None:
    info = CacheInfo()
    info.add(CacheArtifactFactory.create("neuron", "0" * 64, b""))
    assert info.neuron_artifacts == ["0" * 64]  # type: ignore[attr-defined]
