"""Archives in the gzip format: compressed where that helps, stored where it doesn't.

Weights are mostly noise: deflate takes thirty seconds for those of GPT-2 and saves 7 %. So an
archive is cut into chunks, a sample of each is tried, and chunks that would hardly shrink are put
into blocks of the kind "stored" (RFC 1951, 3.2.4). The result is one ordinary gzip member.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

Blob = bytes | memoryview

CHUNK_BYTES = 1 << 20
#: A chunk of less is compressed in any case.
SMALL_BYTES = 1 << 16
SAMPLE_BYTES = 1 << 12
#: A sample that keeps more than this part of its size is noise.
WORTH_IT = 0.85
_LEVEL = 1  # a warm start should not wait for less disk space
_RAW = -15  # zlib's window bits for deflate without a header
_STORED_BYTES = (1 << 16) - 1  # of a stored block
# Magic, deflate, no flags, no time, "fastest", Unix: what zlib writes at level 1.
_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\x03"
_LAST_BLOCK = b"\x03\x00"  # an empty block of fixed codes that says it is the last


def pack(parts: Sequence[Blob]) -> list[Blob]:
    """A gzip member of the parts together, in parts; equal parts give equal bytes."""
    check = size = 0
    for part in parts:
        check, size = zlib.crc32(part, check), size + len(part)
    packed: list[Blob] = [_HEADER]
    for is_noise, run in groupby(_chunks(parts), _is_noise):
        write = _stored if is_noise else _deflated
        packed.extend(write(run))
    return [*packed, _LAST_BLOCK, struct.pack("<2I", check, size & 0xFFFFFFFF)]


def _chunks(parts: Iterable[Blob]) -> Iterator[memoryview]:
    for part in parts:
        view = memoryview(part)
        yield from (view[at : at + CHUNK_BYTES] for at in range(0, len(view), CHUNK_BYTES))


def _is_noise(chunk: memoryview) -> bool:
    """Judged by a sample from its middle."""
    if len(chunk) < SMALL_BYTES:
        return False
    middle = (len(chunk) - SAMPLE_BYTES) // 2
    sample = chunk[middle : middle + SAMPLE_BYTES]
    return len(zlib.compress(sample, _LEVEL, _RAW)) > WORTH_IT * SAMPLE_BYTES


def _deflated(chunks: Iterator[memoryview]) -> Iterator[Blob]:
    """Blocks that end at a byte, so that any other may follow."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
    for chunk in chunks:
        yield packer.compress(chunk)
    yield packer.flush(zlib.Z_FULL_FLUSH)


def _stored(chunks: Iterator[memoryview]) -> Iterator[Blob]:
    for chunk in chunks:
        for at in range(0, len(chunk), _STORED_BYTES):
            block = chunk[at : at + _STORED_BYTES]
            yield struct.pack("<BHH", 0, len(block), len(block) ^ 0xFFFF)
            yield block
