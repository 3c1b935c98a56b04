"""The tar archive inside a NEFF: plain files with plain names, and nothing else.

What is written is an ordinary ustar archive that every `tar` unpacks. What is read must be exactly
what would have been written for the same files: no links, devices, absolute or climbing paths,
sparse files, extensions, odd padding. So there is nothing to be careful about when reading.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from neuronxcc.neff.packing import Blob
from neuronxcc.program.errors import NeffError

BLOCK = 512
MOST_FILE_BYTES = 8**11 - 1  # eleven octal digits

_NAME = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_OCTAL = re.compile(rb"[0-7]{11}\0")


def write_tar(files: Mapping[str, Blob]) -> list[Blob]:
    """Pack files by name, in the order of their names; equal files give equal bytes.

    Returns:
        The archive in parts, among them the contents.

    Raises:
        NeffError: A name that an archive of ours cannot have, or more than 8 GiB in a file.
    """
    parts: list[Blob] = []
    for name in sorted(files):
        content = files[name]
        parts += [_header(name.encode(), len(content)), content, bytes(-len(content) % BLOCK)]
    parts.append(bytes(2 * BLOCK))
    return parts


def read_tar(data: Blob) -> dict[str, memoryview]:
    """Unpack what `write_tar` wrote; the contents are windows onto `data`.

    Raises:
        NeffError: Anything else.
    """
    view = memoryview(data)
    files: dict[str, memoryview] = {}
    position, last = 0, b""
    while True:
        header = bytes(view[position : position + BLOCK])
        if len(header) < BLOCK:
            raise NeffError("the archive ends in the middle of a header")
        if header == bytes(BLOCK):
            break
        name = header[:100].rstrip(b"\0")
        digits = header[124:136]
        if not _OCTAL.fullmatch(digits):
            raise NeffError(f"the archive's member at byte {position} has no size")
        size = int(digits[:11], 8)
        if header != _header(name, size):
            raise NeffError(f"the archive's member at byte {position} is no plain file")
        if name <= last:
            raise NeffError(f"the archive's member {name.decode()!r} is out of order")
        start, last = position + BLOCK, name
        position = start + size + -size % BLOCK
        content = view[start : start + size]
        if len(content) < size or any(view[start + size : position]):
            raise NeffError(f"the archive's member {name.decode()!r} is incomplete")
        files[name.decode()] = content
    if bytes(view[position:]) != bytes(2 * BLOCK):
        raise NeffError("there is something behind the archive's end")
    return files


def _header(name: bytes, size: int) -> bytes:
    """The 512 bytes in front of a file."""
    if len(name) > 100 or not _NAME.fullmatch(name):
        shown = name.decode(errors="replace")
        raise NeffError(f"{shown!r} is no name for a file in a NEFF")
    if size > MOST_FILE_BYTES:
        raise NeffError(f"{name.decode()}: {size} bytes are more than the 8 GiB of a tar member")
    header = bytearray(BLOCK)
    header[0 : len(name)] = name
    header[100:108] = b"0000644\0"  # mode
    header[108:116] = header[116:124] = b"0000000\0"  # user and group
    header[124:136] = b"%011o\0" % size
    header[136:148] = b"00000000000\0"  # time
    header[148:156] = b" " * 8  # counts as blanks in the sum
    header[156:157] = b"0"  # a file
    header[257:265] = b"ustar\x0000"
    header[329:337] = header[337:345] = b"0000000\0"  # device
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)
