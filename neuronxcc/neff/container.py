"""NEFF files: a header of 1024 bytes and an archive, laid out as the Neuron SDK documents them.

The archive has `neff.json` (what the file was made from), and for the subgraph `sg00` its
`def.json` (the documented list of variables), `program.json` (ours, see `codec`) and the bytes of
its constants. A feature bit of our own makes a real runtime refuse the file with status 10 instead
of misreading it; the vendor's files are refused here in the same way.

A file holds no code and nothing that is executed by reading it. Equal content gives equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from neuronxcc import __version__
from neuronxcc.ir.node import Literal
from neuronxcc.neff import codec, features
from neuronxcc.neff.packing import Blob, pack
from neuronxcc.neff.schema import Schema, shown
from neuronxcc.neff.tar import read_tar, write_tar
from neuronxcc.program.errors import NeffError, unsupported
from neuronxcc.program.memory import Buffer
from neuronxcc.program.program import Program

HEADER_BYTES = 1024
# Of the documented fields in their documented order, little-endian, without gaps.
_HEADER = struct.Struct("<5Q128sI32s16s256sI64sQI468s")
assert _HEADER.size == HEADER_BYTES

VERSION = (2, 0)
PACKAGE_VERSION = 1
# Real runtimes that are known support 0x80000000000000ff; this bit is far from all of those.
FEATURE_TORCHNEURON = features.TORCHNEURON
# Bytes of an archive; more needs the argument of `read_neff`.
MOST_BYTES = 1 << 32
MOST_NEFF_BYTES = MOST_BYTES + HEADER_BYTES
PRODUCER = f"torchneuron {__version__}"

# Entries of a program's `meta` that were measured, so that they differ between equal compilations.
_MEASURED = frozenset({"seconds"})
# A compressed file may be this many times smaller than its content, however small it is. So a file
# of a few bytes cannot ask for all of the memory; what is more regular than that isn't compressed.
_MOST_RATIO, _ANY_RATIO_BYTES = 128, 1 << 26
_GZIP = 31  # zlib's window bits for the gzip format
_ALIGNMENT = 64
_LARGE_BYTES = 1 << 24  # a thread costs 0.2 ms, 16 MB of hashing ten


@dataclass(frozen=True, slots=True)
class NeffInfo:
    """The facts that a NEFF states about itself.

    Attributes:
        name: For people; at most 255 bytes of it stand in the header.
        target: Name of the target it was compiled for.
        lnc: Physical cores of a logical core.
        flags: The compiler's options as a command line.
        key: The cache's key, "" outside of a cache.
        labels: Hashes of the parts of the key.
        producer: Program and version that wrote it.
    """

    name: str = ""
    target: str = ""
    lnc: int = 1
    flags: tuple[str, ...] = ()
    key: str = ""
    labels: Mapping[str, Any] = field(default_factory=dict)
    producer: str = PRODUCER


class Neff(NamedTuple):
    """A NEFF that has been read."""

    program: Program
    info: NeffInfo


class Header(NamedTuple):
    """The documented fields of the header."""

    pkg_version: int
    header_size: int
    data_size: int
    neff_version_major: int
    neff_version_minor: int
    neff_build_version: bytes
    num_tpb: int
    hash: bytes
    uuid: bytes
    name: bytes
    requested_tpb_count: int
    tpb_per_node: bytes
    feature_bits: int
    lnc_size: int
    pad: bytes


_INFO = Schema({}).codec(NeffInfo)


def write_neff(program: Program, info: NeffInfo, *, compress: bool = True) -> bytes:
    """The bytes of a NEFF, see `neff_parts`."""
    return b"".join(neff_parts(program, info, compress=compress))


def neff_parts(program: Program, info: NeffInfo, *, compress: bool = True) -> list[Blob]:
    """The bytes of a NEFF in parts, to write them one after the other.

    Contents of large literals are not copied.

    Args:
        program: What it holds; measured times in its `meta` are left out.
        info: What it says about itself.
        compress: False for `--enable-fast-loading-neuron-binaries`. Contents that would shrink to
            less than a 128th (megabytes of zeros) are not compressed either.

    Raises:
        NeffError: The program or its name cannot be stored.
    """
    meta = {name: value for name, value in program.meta.items() if name not in _MEASURED}
    encoded = codec.encode(replace(program, meta=meta))
    files: dict[str, Blob] = {
        "neff.json": _json(_INFO[0](info)),
        "sg00/def.json": _json(definition(program, encoded.literals)),
        "sg00/program.json": encoded.document,
    }
    for number, content in enumerate(encoded.contents):
        files[_constant_name(number)] = content
    return _wrap(write_tar(files), info, compress=compress)


def read_neff(data: Blob, most_bytes: int = MOST_BYTES) -> Neff:
    """Read a NEFF of ours, everything checked.

    Args:
        data: The whole file.
        most_bytes: Refuse to unpack more than this.

    Raises:
        NeffError: The file is damaged, contradicts itself, or is none of ours (`status` 10).
    """
    header, body, archive = _open(data, most_bytes)
    files = read_tar(archive)
    try:
        described = files.pop("neff.json")
        files.pop("sg00/def.json")
        document = files.pop("sg00/program.json")
    except KeyError as error:
        raise NeffError(f"there is no {error.args[0]} in the archive") from None
    info = _read_info(described)
    constants: list[memoryview] = []
    while (content := files.pop(_constant_name(len(constants)), None)) is not None:
        constants.append(content)
    if files:
        raise NeffError(f"unexpected file {min(files)!r} in the archive")
    # The hash covers the content only, so the header must be the one that the content asks for.
    identity = header.hash if archive is body else _sha256([archive])
    expected = _header(identity, header.hash, len(body), info)
    for name, given, wanted in zip(Header._fields, header, expected, strict=True):
        if given != wanted:
            raise NeffError(f"header field {name} is {shown(given)}, not {shown(wanted)}")
    return Neff(codec.decode(document, constants), info)


def read_files(data: Blob, most_bytes: int = MOST_BYTES) -> dict[str, memoryview]:
    """The files in a NEFF of ours by name; the hash is checked, their content is not.

    Raises:
        NeffError: The file is damaged, or none of ours (`status` 10).
    """
    return read_tar(_open(data, most_bytes)[2])


def pack_files(files: Mapping[str, bytes], *, compress: bool = True) -> bytes:
    """The NEFF that holds these files, with the only header that fits them.

    Raises:
        NeffError: They are not those of a NEFF of ours, or their content is wrong.
    """
    if "neff.json" not in files:
        raise NeffError("there is no neff.json, so these are not the files of a NEFF of ours")
    info = _read_info(files["neff.json"])
    data = b"".join(_wrap(write_tar(files), info, compress=compress))
    read_neff(data)
    return data


def _open(data: Blob, most_bytes: int) -> tuple[Header, memoryview, Blob]:
    """Header, body and archive of a NEFF of ours whose hash is right."""
    header = read_header(data)
    body = memoryview(data)[HEADER_BYTES:]
    if _sha256([body]) != header.hash:
        raise NeffError("the content does not have the hash in the header: the file is damaged")
    return header, body, _unpack(body, most_bytes)


def _read_info(content: Blob) -> NeffInfo:
    try:
        found: NeffInfo = _INFO[1](json.loads(bytes(content)))
    except NeffError as error:
        raise unsupported(f"neff.json: {error}") from None
    except (ValueError, RecursionError) as error:
        raise NeffError(f"neff.json is no JSON: {error}") from None
    return found


def read_header(data: Blob) -> Header:
    """Read the header alone.

    Raises:
        NeffError: It is no NEFF, it is cut off, or (status 10) it isn't ours.
    """
    header = parse_header(data)
    version = (header.neff_version_major, header.neff_version_minor)
    if header.feature_bits != FEATURE_TORCHNEURON or version != VERSION:
        raise unsupported(
            f"NEFF version: {version[0]}.{version[1]}, features: {header.feature_bits:#x} are not "
            f"supported. Currently supporting: {features.SUPPORTED:#x}. The file has "
            f"{', '.join(features.feature_names(header.feature_bits)) or 'no feature bit'}. "
            "NEFFs for real Neuron devices hold machine code that the emulation cannot run; "
            "compile the model again here"
        )
    return header


def parse_header(data: Blob) -> Header:
    """Read the header of anybody's NEFF.

    Raises:
        NeffError: It is no NEFF, or it is cut off.
    """
    if len(data) < HEADER_BYTES:
        raise NeffError(f"{len(data)} bytes are too few for the header of a NEFF")
    header = Header(*_HEADER.unpack_from(data))
    if header.header_size != HEADER_BYTES:
        raise NeffError("this is no NEFF")
    size = len(data) - HEADER_BYTES
    if header.data_size != size:
        raise NeffError(f"the file is cut off or too long: {size} bytes of {header.data_size}")
    return header


def definition(program: Program, literals: Sequence[Literal]) -> dict[str, Any]:
    """The documented skeleton `def.json`: the program's variables; there are no DMA queues.

    The scratchpad that is needed is, as documented, the largest `backing_variable_off` + `size`.

    Args:
        program: The program.
        literals: All literals of the file in the order of their files.
    """
    places = {literal: number for number, literal in enumerate(literals)}
    variables = {}
    for number, buffer in enumerate(program.buffers):
        name = f"{buffer.kind}{number}"
        more: dict[str, Any] = {}
        if buffer.literal is not None:
            more = {"file_name": _constant_name(places[buffer.literal]).removeprefix("sg00/")}
        elif buffer.kind == "temp":
            more = {"backing_variable_off": buffer.offset}
        variables[name] = {
            "type": _VARIABLE_TYPES[buffer.kind],
            "var_id": number,
            "size": _nbytes(buffer),
            "alignment": _ALIGNMENT,
            **more,
        }
    return {"dma_queue": {}, "var": variables}


_VARIABLE_TYPES = {"input": "input", "output": "output", "temp": "virtual", "constant": "file"}


def _nbytes(buffer: Buffer) -> int:
    if 0 in buffer.shape:
        return 0
    last = sum(
        (extent - 1) * stride for extent, stride in zip(buffer.shape, buffer.strides, strict=True)
    )
    return (last + 1) * buffer.dtype.itemsize


def _constant_name(number: int) -> str:
    return f"sg00/constants/{number:05}.bin"


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _wrap(archive: Sequence[Blob], info: NeffInfo, *, compress: bool) -> list[Blob]:
    """Header and body of an archive."""
    packed = pack(archive) if compress else archive
    fits = _size(archive) <= _most_unpacked(_size(packed))
    body = packed if fits else archive
    identity, hashed = _digests(archive, body)
    return [_HEADER.pack(*_header(identity, hashed, _size(body), info)), *body]


def _digests(archive: Sequence[Blob], body: Sequence[Blob]) -> tuple[bytes, bytes]:
    """SHA-256 of both; of large ones at the same time, as hashing doesn't hold Python's lock."""
    if body is archive:
        only = _sha256(archive)
        return only, only
    if _size(archive) < _LARGE_BYTES:
        return _sha256(archive), _sha256(body)
    with ThreadPoolExecutor(1) as beside:
        identity = beside.submit(_sha256, archive)
        hashed = _sha256(body)
        return identity.result(), hashed


def _size(parts: Iterable[Blob]) -> int:
    return sum(map(len, parts))


def _sha256(parts: Iterable[Blob]) -> bytes:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.digest()


def _most_unpacked(size: int) -> int:
    """The largest content that a compressed one of this size may stand for."""
    return max(_ANY_RATIO_BYTES, _MOST_RATIO * size)


def _unpack(body: memoryview, most_bytes: int) -> Blob:
    """The archive of a body, which is compressed or not."""
    if bytes(body[:2]) != b"\x1f\x8b":
        if len(body) > most_bytes:
            raise NeffError(f"{len(body)} bytes are more than the {most_bytes} allowed")
        return body
    most_bytes = min(most_bytes, _most_unpacked(len(body)))
    unpacker = zlib.decompressobj(_GZIP)
    try:
        archive = unpacker.decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise NeffError(f"the content cannot be unpacked: {error}") from None
    if len(archive) > most_bytes:
        raise NeffError(f"the content unpacks to more than the {most_bytes} bytes allowed")
    if not unpacker.eof or unpacker.unused_data:
        raise NeffError("the compressed content is cut off or too long")
    return archive


def _header(identity: bytes, hashed: bytes, size: int, info: NeffInfo) -> Header:
    """The only header that fits a content.

    Args:
        identity: SHA-256 of the archive, so that a NEFF has the same one compressed and not.
        hashed: SHA-256 of the body.
        size: Bytes of the body.
        info: What the NEFF says about itself.
    """
    if not 0 < info.lnc < 64:
        raise NeffError(f"{info.lnc} physical cores cannot be a logical one")
    return Header(
        pkg_version=PACKAGE_VERSION,
        header_size=HEADER_BYTES,
        data_size=size,
        neff_version_major=VERSION[0],
        neff_version_minor=VERSION[1],
        neff_build_version=_text(info.producer, 128),
        num_tpb=info.lnc,
        hash=hashed,
        uuid=identity[:16],
        name=_text(info.name, 256),
        requested_tpb_count=info.lnc,
        tpb_per_node=bytes([info.lnc]).ljust(64, b"\0"),
        feature_bits=FEATURE_TORCHNEURON,
        lnc_size=info.lnc,
        pad=bytes(468),
    )


def _text(text: str, size: int) -> bytes:
    """Text for a field of a fixed size that ends with a zero byte, cut between characters."""
    data = text.encode(errors="replace")[: size - 1]
    return data.decode(errors="ignore").encode().ljust(size, b"\0")
