"""NEFF files: the documented layout, deterministic bytes, and a reader that nothing surprises."""

import hashlib
import io
import json
import re
import struct
import subprocess
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Literal
from neuronxcc.neff import container
from neuronxcc.neff.container import HEADER_BYTES, NeffInfo, read_header, read_neff, write_neff
from neuronxcc.neff.tar import read_tar, write_tar
from neuronxcc.program.errors import NeffError
from neuronxcc.program.memory import Buffer, View
from neuronxcc.program.program import Program
from neuronxcc.program.steps.copy import CopyStep
from tests.compiler.neff_programs import literal, programs, same

INFO = NeffInfo("model", "trn2", 2, ("--target=trn2", "-O1"), "k", {"graph": "0123"})


def small() -> Program:
    """A constant is copied out by way of the scratchpad."""
    shape, strides = (2, 3), (3, 1)
    views = [View(number, DType.F32, shape, strides) for number in range(3)]
    return Program(
        "small",
        (
            Buffer("constant", DType.F32, shape, strides, literal=literal(DType.F32, shape, 0)),
            Buffer("temp", DType.F32, shape, strides, offset=64),
            Buffer("output", DType.F32, shape, strides, 0),
        ),
        (CopyStep(views[0], views[1]), CopyStep(views[1], views[2])),
        (2,),
        64 + 24,
    )


def sealed(archive: bytes, body: bytes) -> bytes:
    """A body with the header that fits it, if it is the archive's."""
    digests = [hashlib.sha256(content).digest() for content in (archive, body)]
    header = container._header(digests[0], digests[1], len(body), INFO)
    return container._HEADER.pack(*header) + body


NEFF = write_neff(small(), INFO)
PLAIN = write_neff(small(), INFO, compress=False)


@given(programs(), st.booleans())
def test_round_trip(program: Program, compress: bool) -> None:
    info = NeffInfo(program.name, "trn1", 1, (), "key", {"a": 1.5, "b": ("x", None)})
    data = write_neff(program, info, compress=compress)
    neff = read_neff(data)
    assert same(neff.program, program)
    assert neff.info == info
    assert write_neff(neff.program, neff.info, compress=compress) == data


def test_large_files_are_hashed_to_the_same_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_LARGE_BYTES", 0)
    assert write_neff(small(), INFO) == NEFF
    assert write_neff(small(), INFO, compress=False) == PLAIN


def test_header_fields_are_where_the_documentation_puts_them() -> None:
    assert len(NEFF) > HEADER_BYTES
    assert struct.unpack_from("<5Q", NEFF, 0) == (1, 1024, len(NEFF) - 1024, 2, 0)
    assert NEFF[40:168].rstrip(b"\0") == container.PRODUCER.encode()
    assert struct.unpack_from("<I", NEFF, 168) == (2,)
    assert NEFF[172:204] == hashlib.sha256(NEFF[1024:]).digest()
    assert NEFF[204:220] != bytes(16)
    assert NEFF[220:476].rstrip(b"\0") == b"model"
    assert struct.unpack_from("<I", NEFF, 476) == (2,)
    assert NEFF[480:544] == b"\2" + bytes(63)
    assert struct.unpack_from("<Q", NEFF, 544) == (1 << 56,)
    assert struct.unpack_from("<I", NEFF, 552) == (2,)
    assert NEFF[556:1024] == bytes(468)
    # What is known of real runtimes: they refuse a file with any bit outside of this mask.
    assert read_header(NEFF).feature_bits & ~0x80000000000000FF


def test_identity_does_not_depend_on_compression() -> None:
    assert read_header(NEFF).uuid == read_header(PLAIN).uuid
    assert read_header(NEFF).hash != read_header(PLAIN).hash
    other = write_neff(small(), NeffInfo("other", "trn2", 2))
    assert read_header(other).uuid != read_header(NEFF).uuid


@pytest.mark.parametrize("data", [NEFF, PLAIN], ids=["compressed", "plain"])
def test_python_and_tar_unpack_it(data: bytes, tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    archive.write_bytes(data[HEADER_BYTES:])
    with tarfile.open(archive) as opened:
        members = opened.getmembers()
        assert [member.name for member in members] == [
            "neff.json",
            "sg00/constants/00000.bin",
            "sg00/def.json",
            "sg00/program.json",
        ]
        assert all(member.isreg() and not member.mtime and not member.uid for member in members)
        extracted = opened.extractfile("sg00/def.json")
        assert extracted is not None
        definition = json.load(extracted)
    subprocess.run(["tar", "xf", archive, "-C", tmp_path], check=True)  # noqa: S607
    assert (tmp_path / "sg00/constants/00000.bin").stat().st_size == 24
    assert definition["dma_queue"] == {}
    variables = definition["var"].values()
    assert [variable["type"] for variable in variables] == ["file", "output", "virtual"]
    assert definition["var"]["constant0"]["file_name"] == "constants/00000.bin"
    # The documented rule for the size of the scratchpad.
    needed = [v["backing_variable_off"] + v["size"] for v in variables if v["type"] == "virtual"]
    assert max(needed) == small().scratch_bytes


def patched(offset: int, content: bytes, data: bytes = NEFF) -> bytes:
    return data[:offset] + content + data[offset + len(content) :]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "0 bytes are too few for the header of a NEFF"),
        (NEFF[:1023], "1023 bytes are too few for the header of a NEFF"),
        (bytes(2000), "this is no NEFF"),
        (b"\x7fELF" + bytes(2000), "this is no NEFF"),
        (NEFF[:-1], f"the file is cut off or too long: {len(NEFF) - 1025} bytes of"),
        (NEFF + b"\0", "the file is cut off or too long"),
        (patched(2000 if len(NEFF) > 2001 else 1100, b"\xff\xfe\xfd"), "hash in the header"),
        (
            patched(172, b"\0"),
            "the content does not have the hash in the header: the file is",
        ),
        (patched(0, b"\2"), "header field pkg_version is 2, not 1"),
        (patched(220, b"M"), r"header field name is b'Model"),
        (patched(204, bytes(16)), "header field uuid is"),
        (patched(552, b"\1"), "header field lnc_size is 1, not 2"),
        (patched(1000, b"\1"), "header field pad is"),
    ],
)
def test_damage_is_named(data: bytes, text: str) -> None:
    with pytest.raises(NeffError, match=re.escape(text)) as caught:
        read_neff(data)
    assert caught.value.status == 2


@pytest.mark.parametrize("features", [0, 0x100, 0x80000000000000FF, 1 << 56 | 1])
def test_files_of_the_vendor_are_refused_as_a_runtime_would(features: int) -> None:
    with pytest.raises(NeffError) as caught:
        read_neff(patched(544, struct.pack("<Q", features)))
    assert caught.value.status == 10
    assert str(caught.value).startswith(
        "NRT_UNSUPPORTED_NEFF_VERSION (status 10): NEFF version: 2.0, features: "
        f"{features:#x} are not supported. Currently supporting: 0x100000000000000. "
    )
    with pytest.raises(NeffError, match=r"status 10.*NEFF version: 1\.0"):
        read_neff(patched(24, b"\1"))


def wrapped(files: dict[str, bytes]) -> bytes:
    """A file with a correct header around these members."""
    return b"".join(container._wrap(write_tar(files), INFO, compress=True))


def members() -> dict[str, bytes]:
    return {name: bytes(content) for name, content in read_tar(PLAIN[HEADER_BYTES:]).items()}


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        ({"neff.json": None}, "there is no neff.json in the archive"),
        ({"sg00/program.json": None}, "there is no sg00/program.json in the archive"),
        ({"sg00/def.json": None}, "there is no sg00/def.json in the archive"),
        ({"sg00/constants/00000.bin": None}, "literals[0]: its content has not the 24 bytes"),
        ({"sg00/constants/00000.bin": b"x"}, "literals[0]: its content has not the 24 bytes"),
        ({"sg00/constants/00002.bin": b"x"}, "unexpected file 'sg00/constants/00002.bin'"),
        ({"sg00/code.so": b"x"}, "unexpected file 'sg00/code.so'"),
        ({"neff.json": b"{"}, "neff.json is no JSON"),
        ({"neff.json": b"[" * 100_000}, "neff.json is no JSON"),
        ({"neff.json": b"[]"}, "status 10): neff.json: expected NeffInfo, a list of 7"),
        ({"sg00/program.json": b"{}"}, "program format None; this version reads 1"),
    ],
)
def test_wrong_members(edit: dict[str, bytes | None], text: str) -> None:
    files = {**members(), **edit}
    data = wrapped({name: content for name, content in files.items() if content is not None})
    with pytest.raises(NeffError, match=re.escape(text)):
        read_neff(data)


def archive_of(change: tarfile.TarInfo) -> bytes:
    """An archive with one more member, as Python writes it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(change)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../b", "a//b", ".hidden", "a b", "é"])
def test_names_that_lead_elsewhere(name: str) -> None:
    with pytest.raises(NeffError, match="no name for a file in a NEFF"):
        read_tar(archive_of(tarfile.TarInfo(name)))
    with pytest.raises(NeffError, match="no name for a file in a NEFF"):
        write_tar({name: b""})


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_members_that_are_no_files(kind: bytes) -> None:
    member = tarfile.TarInfo("a")
    member.type, member.linkname = kind, "b"
    with pytest.raises(NeffError, match=r"is no plain file|no name for a file"):
        read_tar(archive_of(member))


def test_archives_that_are_odd() -> None:
    good = b"".join(write_tar({"a": b"1", "b": b"2"}))
    assert {name: bytes(content) for name, content in read_tar(good).items()} == {
        "a": b"1",
        "b": b"2",
    }
    for data, text in (
        (b"", "ends in the middle of a header"),
        (good[:512], "member 'a' is incomplete"),
        (good[:600], "ends in the middle of a header"),
        (good[:-512], "something behind the archive's end"),
        (good + bytes(512), "something behind the archive's end"),
        (good[:1024] * 2 + bytes(1024), "member 'a' is out of order"),
        (good[1024:2048] + good[:1024] + bytes(1024), "member 'a' is out of order"),
        (good[:513] + b"x" + good[514:], "member 'a' is incomplete"),
        (good[:124] + b"99999999999\0" + good[136:], "member at byte 0 has no size"),
    ):
        with pytest.raises(NeffError, match=re.escape(text)):
            read_tar(data)


def test_compressed_contents_that_are_odd() -> None:
    body = NEFF[HEADER_BYTES:]
    archive = zlib.decompress(body, 31)

    def around(content: bytes) -> bytes:
        return sealed(archive, content)

    assert same(read_neff(around(body)).program, small())
    for content, text in (
        (body[:-4], "the compressed content is cut off or too long"),
        (body + body, "the compressed content is cut off or too long"),
        (b"\x1f\x8b" + bytes(50), "the content cannot be unpacked"),
    ):
        with pytest.raises(NeffError, match=text):
            read_neff(around(content))
    with pytest.raises(NeffError, match="unpacks to more than the 4096 bytes allowed"):
        read_neff(NEFF, most_bytes=4096)
    with pytest.raises(NeffError, match="are more than the 1024 allowed"):
        read_neff(PLAIN, most_bytes=1024)


def test_a_bomb_is_not_unpacked() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(1 << 20)
    body = b"".join(packer.compress(zeros) for _ in range(256)) + packer.flush()
    data = sealed(b"", body)
    assert len(data) < 1 << 19
    with pytest.raises(NeffError, match="unpacks to more than the 67108864 bytes allowed"):
        read_neff(data)


def test_what_would_be_a_bomb_is_not_compressed() -> None:
    literal = Literal(np.zeros(80 << 20, np.uint8))
    constant = Buffer("constant", DType.U8, (80 << 20,), (1,), literal=literal)
    output = Buffer("output", DType.U8, (), (), 0)
    program = Program("zeros", (constant, output), (), (1,))
    data = write_neff(program, INFO)
    assert len(data) > 80 << 20
    assert same(read_neff(data).program, program)


def test_long_names_are_cut_between_characters() -> None:
    info = NeffInfo("é" * 200, "trn2", 1)
    header = read_header(write_neff(small(), info))
    assert header.name.rstrip(b"\0").decode() == "é" * 127
    with pytest.raises(NeffError, match="0 physical cores cannot be a logical one"):
        write_neff(small(), NeffInfo("a", "trn2", 0))


def mutated(data: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    for kind, position, content in edits:
        place = position % (len(data) + 1)
        if kind == "replace":
            data = data[:place] + content + data[place + len(content) :]
        elif kind == "insert":
            data = data[:place] + content + data[place:]
        else:
            data = data[:place] + data[place + len(content) :]
    return data


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["replace", "insert", "delete"]),
        st.integers(0, 1 << 16),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=4,
)


@given(st.sampled_from([NEFF, PLAIN]), EDITS)
def test_any_change_of_a_file_is_an_error_or_no_change(data: bytes, edits: list) -> None:  # type: ignore[type-arg]
    changed = mutated(data, edits)
    if changed == data:
        return
    with pytest.raises(NeffError):
        read_neff(changed)


@given(EDITS)
def test_changed_archives_under_a_correct_hash(edits: list) -> None:  # type: ignore[type-arg]
    archive = mutated(PLAIN[HEADER_BYTES:], edits)
    data = sealed(archive, archive)
    try:
        neff = read_neff(data)
    except NeffError:
        return
    # Still well formed (a changed constant, say): then it is written as it was read.
    assert write_neff(neff.program, neff.info, compress=False)[:HEADER_BYTES] != b""


@given(st.binary(max_size=3000))
def test_random_bytes(data: bytes) -> None:
    with pytest.raises(NeffError):
        read_neff(data)
    with pytest.raises(NeffError):
        read_neff(PLAIN[:HEADER_BYTES] + data)
