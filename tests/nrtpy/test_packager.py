"""neuron-packager: info, unpack, pack, validate; the vendor's files; hostile ones."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from neuron_tools.packager import main
from neuron_tools.packager_files import foreign_files
from neuronxcc.neff import NeffError, read_neff
from neuronxcc.neff.container import HEADER_BYTES, parse_header
from neuronxcc.neff.features import describe, feature_names


@pytest.fixture
def folder(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.neff").write_bytes(small.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def foreign(
    members: dict[str, bytes] | Callable[[tarfile.TarFile], None], mode: str = "w:gz"
) -> bytes:
    """A NEFF as the vendor's compiler might have written it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode, format=tarfile.GNU_FORMAT) as archive:  # type: ignore[call-overload]
        if callable(members):
            members(archive)
        else:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    body = stream.getvalue()
    header = struct.pack(
        "<5Q128sI32s16s256sI64sQI468s", 1, 1024, len(body), 2, 0, b"2.27.5334.0", 2,
        hashlib.sha256(body).digest(), b"u" * 16, b"graph", 2, b"\2", 0x8000000000000081, 2, b"",
    )  # fmt: skip
    return header + body


@pytest.mark.usefixtures("folder")
def test_info_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "model.neff"]) == 0
    said = capsys.readouterr().out
    for line in (
        "  header_size            1024\n", "  neff_build_version     torchneuron 0.1.0\n",
        "  feature_bits           0x100000000000000\n", "  hash matches           yes\n",
        "  features               torchneuron-program\n", "  target                 trn2\n",
        "  lnc                    2\n",
        "  a.1                    float32[4, 3]                           48 B\n",
        "  output_1               bfloat16[4, 4]                          32 B\n",
        "  inputs                 96 B\n", "  tensor                      1 steps",
    ):  # fmt: skip
        assert line in said
    assert main(["inspect", "model.neff"]) == 0
    assert capsys.readouterr().out == said


def test_info_for_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "model.neff", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    data = (folder / "model.neff").read_bytes()
    header = parse_header(data)
    assert set(found["header"]) == set(header._fields)
    assert found["header"]["hash"] == header.hash.hex()
    assert found["header"]["data_size"] == len(data) - 1024
    assert found["features"] == ["torchneuron-program"]
    assert found["inputs"][0] == {"name": "a.1", "dtype": "float32", "shape": [4, 3], "bytes": 48}
    assert found["memory"]["outputs"] == 48 + 32
    assert found["supplied"] == {}
    assert sum(engine["steps"] for engine in found["engines"].values()) == 2


def test_unpack_and_pack(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["unpack", "model.neff"]) == 0
    names = sorted(
        p.relative_to("model").as_posix() for p in Path("model").rglob("*") if p.is_file()
    )
    assert names == ["neff.json", "sg00/def.json", "sg00/program.json"]
    assert capsys.readouterr().out == "3 files unpacked to model\n"
    assert main(["pack", "model", "-o", "again.neff"]) == 0
    assert (folder / "again.neff").read_bytes() == (folder / "model.neff").read_bytes()
    assert main(["pack", "model", "-o", "plain.neff", "--uncompressed"]) == 0
    assert (
        parse_header((folder / "plain.neff").read_bytes()).uuid
        == parse_header((folder / "again.neff").read_bytes()).uuid
    )
    capsys.readouterr()
    # Nothing is overwritten unasked.
    (folder / "model" / "mine").write_text("x")
    for words in (["unpack", "model.neff"], ["pack", "model"]):
        assert main(words) == 1
        assert "is there already: name another by -o, or replace it by --force" in (
            capsys.readouterr().err
        )
    assert (folder / "model" / "mine").exists()
    assert main(["unpack", "model.neff", "--force"]) == 0
    assert not (folder / "model" / "mine").exists()
    assert main(["unpack", "model.neff", "-o", "plain.neff", "-f"]) == 1
    assert "is there already: name another by -o\n" in capsys.readouterr().err
    assert sorted(p.name for p in folder.iterdir()) == [
        "again.neff", "model", "model.neff", "plain.neff",
    ]  # fmt: skip


def test_a_changed_program_is_packed_or_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["unpack", "model.neff", "-o", "out"])
    description = json.loads((folder / "out/neff.json").read_text())
    text = (folder / "out/neff.json").read_text().replace("jit__lambda", "renamed")
    assert description
    (folder / "out/neff.json").write_text(text)
    assert main(["pack", "out"]) == 0
    assert read_neff((folder / "out.neff").read_bytes()).info.name == "renamed"
    (folder / "out/sg00/program.json").write_text("{}")
    (folder / "out/extra").write_text("")
    capsys.readouterr()
    assert main(["pack", "out", "-f"]) == 1
    assert "unexpected file 'extra' in the archive" in capsys.readouterr().err
    (folder / "out/extra").unlink()
    assert main(["pack", "out", "-f"]) == 1
    assert read_neff((folder / "out.neff").read_bytes()).info.name == "renamed"
    assert main(["pack", "sg00"]) == 1
    assert "sg00 is no folder" in capsys.readouterr().err


def test_validate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray((folder / "model.neff").read_bytes())
    data[-1] ^= 1
    (folder / "damaged.neff").write_bytes(data)
    (folder / "short.neff").write_bytes(data[:-3])
    assert main(["validate", "model.neff"]) == 0
    assert capsys.readouterr().out == "model.neff: valid: header, hash, archive and 2 steps\n"
    assert main(["validate", "damaged.neff", "model.neff", "short.neff", "none.neff"]) == 1
    said = capsys.readouterr()
    assert said.out == "model.neff: valid: header, hash, archive and 2 steps\n"
    first, second, third = said.err.splitlines()
    assert first == (
        "neuron-packager: damaged.neff: the content does not have the hash in the header: the file "
        "is damaged"
    )
    assert "short.neff: the file is cut off or too long" in second
    assert third == "neuron-packager: none.neff: No such file or directory: none.neff"
    # The header of a damaged file can be read all the same.
    assert main(["info", "damaged.neff"]) == 1
    said = capsys.readouterr()
    assert "hash matches           NO" in said.out
    assert "the file is damaged" in said.err


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_files_of_the_vendor(mode: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"kelf-a.json": b"{}", "./sg00/def.json": b"[]", "sg00/pe.bin": b"\0" * 9}
    (folder / "vendor.neff").write_bytes(foreign(files, mode))
    assert main(["info", "vendor.neff"]) == 0
    said = capsys.readouterr().out
    assert "features               bit 0, of the vendor's, bit 7, of the vendor's, bit 63," in said
    assert "neff_build_version     2.27.5334.0" in said
    assert "  sg00/pe.bin            9 B" in said
    assert main(["unpack", "vendor.neff"]) == 0
    assert (folder / "vendor/sg00/def.json").read_bytes() == b"[]"
    assert main(["validate", "vendor.neff"]) == 0
    assert "not ours: header, hash and archive of 3 files are right" in capsys.readouterr().out


def _link(archive: tarfile.TarFile) -> None:
    info = tarfile.TarInfo("link")
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    archive.addfile(info)


HOSTILE: dict[str, tuple[dict[str, bytes] | Callable[[tarfile.TarFile], None], str]] = {
    "climbing": ({"../out": b""}, "'../out' would lie outside the folder"),
    "climbing inside": ({"a/../../b": b""}, "would lie outside the folder"),
    "absolute": ({"/tmp/x": b""}, "'/tmp/x' would lie outside the folder"),  # noqa: S108
    "backslash": ({"a\\b": b""}, "would lie outside the folder"),
    "link": (_link, "'link' is no plain file"),
    "a file in a file": ({"a": b"", "a/b": b""}, "Not a directory"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members, text = HOSTILE[name]
    (folder / "bad.neff").write_bytes(foreign(members))
    assert main(["unpack", "bad.neff"]) == 1
    said = capsys.readouterr().err
    assert text in said or (name == "a file in a file" and "File exists" in said)
    assert sorted(p.name for p in folder.iterdir()) == ["bad.neff", "model.neff"]


def test_archives_that_grow() -> None:
    data = foreign({"zeros": bytes(1 << 20)})
    assert len(data) < 1 << 13
    with pytest.raises(NeffError, match="unpacks to more than 65536 bytes"):
        foreign_files(data, 1 << 16)
    with pytest.raises(NeffError, match="no archive that can be unpacked"):
        foreign_files(data[:HEADER_BYTES] + b"nonsense")
    with pytest.raises(NeffError, match="no archive that can be unpacked"):
        foreign_files(data[:-20])


def test_names_cannot_move_the_cursor(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.neff").write_bytes(foreign({"\x1b[2Jx": b""}))
    assert main(["info", "bad.neff"]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.usefixtures("folder")
def test_wrong_words(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["frobnicate"], ["unpack"], ["validate"], ["info", "model.neff", "--yaml"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        assert "usage: neuron-packager" in capsys.readouterr().err
    assert main(["unpack", "model"]) == 1
    assert (
        capsys.readouterr().err
        == "neuron-packager: error: model: No such file or directory: model\n"
    )
    Path("model").symlink_to("model.neff")
    assert main(["unpack", "model.neff"]) == 1
    assert "is there already" in capsys.readouterr().err
    assert main(["unpack", "model", "-o", "model"]) == 1


def test_the_command_needs_no_torch(folder: Path) -> None:
    program = (
        "import sys; from neuron_tools.packager import main; code = main(['info', 'model.neff'])\n"
        "assert not {'torch', 'jax', 'llvmlite'} & set(sys.modules); sys.exit(code)"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True,
        text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_features() -> None:
    assert feature_names(0) == []
    assert describe(0) == "0x0"
    assert describe(1 << 56) == "0x100000000000000 (torchneuron-program)"
    assert describe(1 << 9 | 1) == "0x201 (bit 0, of the vendor's, bit 9, unknown)"
