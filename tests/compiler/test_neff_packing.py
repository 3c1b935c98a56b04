"""The gzip format of NEFFs: whatever is packed is unpacked by zlib, and noise is stored."""

from __future__ import annotations

import gzip
import zlib

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuronxcc.neff import packing
from neuronxcc.neff.packing import CHUNK_BYTES

_NOISE = np.random.default_rng(7).bytes(2 * CHUNK_BYTES)


def pack(*parts: bytes) -> bytes:
    return b"".join(packing.pack(parts))


# Runs of what compresses and what doesn't, cut anywhere.
runs = st.lists(
    st.tuples(st.booleans(), st.integers(0, CHUNK_BYTES + CHUNK_BYTES // 2)), max_size=4
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(runs)
def test_zlib_unpacks_it(parts: list[tuple[bool, int]]) -> None:
    contents = [_NOISE[:size] if noise else bytes(size) for noise, size in parts]
    content = b"".join(contents)
    packed = pack(*contents)
    unpacker = zlib.decompressobj(31)
    assert unpacker.decompress(packed) == content
    assert unpacker.eof
    assert not unpacker.unused_data
    assert pack(*contents) == packed


def test_noise_is_stored_and_the_rest_is_not() -> None:
    content = _NOISE + bytes(4 * CHUNK_BYTES) + _NOISE
    packed = pack(content)
    assert len(packed) < len(_NOISE) * 2 + CHUNK_BYTES // 16
    assert _NOISE[: packing._STORED_BYTES] in packed
    assert gzip.decompress(packed) == content


def test_weights_among_small_files_are_stored() -> None:
    """Each weight of 700 kB is less than a chunk and lies between headers."""
    weight, header = _NOISE[: 700 << 10], bytes(512)
    parts = packing.pack([header, weight] * 10)
    assert sum(map(len, parts)) < 10 * (len(weight) + 200)
    assert sum(len(part) == packing._STORED_BYTES for part in parts) == 10 * (
        len(weight) // packing._STORED_BYTES
    )
    assert gzip.decompress(b"".join(parts)) == (header + weight) * 10


def test_small_contents_are_compressed() -> None:
    text = b"a program in JSON " * 1000
    assert len(pack(text)) < len(text) // 20
    assert gzip.decompress(pack(b"")) == b""
