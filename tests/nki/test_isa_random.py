"""Random numbers, registers, and the rows that need two cores."""

# ruff: noqa: E501 (tables of cases)
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki.errors import NkiValidationError
from nki.isa import enums
from nki.isa.spec import Tile
from nki.isa.state import CoreState
from nki.isa.xorwow import Xorwow, uniform
from tests.nki.isa_tools import T, call, out, run, values

GPSIMD, VECTOR = enums.engine.gpsimd, enums.engine.vector


def marsaglia(words: list[int], count: int) -> list[int]:
    """The published xorwow in Python integers."""
    x, y, z, w, v, d = words
    stream = []
    for _ in range(count):
        t = x ^ (x >> 2)
        x, y, z, w = y, z, w, v
        v = (v ^ (v << 4) & 0xFFFFFFFF) ^ (t ^ (t << 1) & 0xFFFFFFFF)
        d = (d + 362437) & 0xFFFFFFFF
        stream.append((d + v) & 0xFFFFFFFF)
    return stream


@settings(max_examples=20)
@given(
    words=st.lists(st.integers(0, 2**32 - 1), min_size=24, max_size=24), count=st.integers(1, 11)
)
def test_streams_are_xorwow(words: list[int], count: int) -> None:
    core = CoreState()
    run("rand_set_state", T([words[:6]], "uint32"), core=core)
    result, _ = run("rng", out(1, count, dtype="uint32"), GPSIMD, core=core)
    assert values(result) == [marsaglia(words[:6], count)]
    run("rand_set_state", T([words], "uint32"), VECTOR, core=core)
    result, _ = run("rng", out(1, count, dtype="uint32"), VECTOR, core=core)
    lanes = [marsaglia(words[6 * s : 6 * s + 6], 3) for s in range(4)]
    assert values(result) == [[lanes[j % 4][j // 4] for j in range(count)]]


def test_the_published_first_values() -> None:
    # Marsaglia's initial state; computed by hand from the recurrence above, once.
    generator = Xorwow(1)
    words = [123456789, 362436069, 521288629, 88675123, 5783321, 6615241]
    generator.load(np.array([words], np.uint32))
    assert generator.draw(1, 2).tolist() == [marsaglia(words, 2)]
    assert generator.draw(1, 1)[0, 0] == marsaglia(words, 3)[2]


def test_states_are_saved_and_restored() -> None:
    core, first = CoreState(), out(4, 24, dtype="uint32")
    run("rand_get_state", first, VECTOR, core=core)
    one, _ = run("rng", out(4, 9, dtype="int16"), core=core)
    two, _ = run("rng", out(4, 9, dtype="int16"), core=core)
    assert not np.array_equal(one["dst"], two["dst"])
    run("rand_set_state", first, VECTOR, core=core)
    again, _ = run("rng", out(4, 9, dtype="int16"), core=core)
    assert np.array_equal(one["dst"], again["dst"])


def test_narrow_types_take_the_low_bits() -> None:
    wide, _ = run("rng", out(2, 3, dtype="uint32"))
    narrow, _ = run("rng", out(2, 3, dtype="uint8"))
    assert np.array_equal(narrow["dst"], wide["dst"].astype(np.uint8))
    with pytest.raises(NkiValidationError, match="dst has data type float32"):
        call("rng", Tile((2, 3), "float32"))


def test_seeds_repeat_and_differ() -> None:
    streams = []
    for seed in (1, 1, 2):
        core = CoreState()
        run("set_rng_seed", T([[seed]], "int32"), core=core)
        streams.append(run("rng", out(3, 8, dtype="uint32"), core=core)[0]["dst"])
    assert np.array_equal(streams[0], streams[1])
    assert not (streams[0] == streams[2]).any()
    assert len(np.unique(streams[0])) == 24  # lanes and states differ


def test_rand2_is_uniform_in_its_range() -> None:
    result, _ = run("rand2", out(128, 64), -1.0, T(np.full((128, 1), 3.0)))
    x = result["dst"]
    assert x.min() >= -1
    assert x.max() <= 3
    # 8192 draws: the mean of a uniform variable of width 4 has deviation 4 / sqrt(12 * 8192).
    assert abs(float(x.mean()) - 1) < 5 * 4 / np.sqrt(12 * 8192)
    assert uniform(np.array([0xFFFFFFFF, 0], np.uint32)).tolist() == [1 - 2.0**-24, 0]
    with pytest.raises(NkiValidationError, match=r"rand2 needs min < max, got 1.0 and 1.0"):
        call("rand2", Tile((2, 2), "float32"), 1.0, 1.0)


def test_dropout_ends() -> None:
    x = T(np.arange(1.0, 9.0).reshape(2, 4), "bfloat16")
    assert values(run("dropout", out(2, 4, dtype="bfloat16"), x, 1.0)[0]) == [[0] * 4] * 2
    assert values(run("dropout", out(2, 4, dtype="bfloat16"), x, 0.0)[0]) == values({"dst": x.data})
    result, _ = run("dropout", out(2, 4, dtype="bfloat16"), x, T([[1.0], [0.0]]))
    assert values(result) == [[0] * 4, [5, 6, 7, 8]]


def test_dropout_drops_the_share_it_is_told() -> None:
    result, _ = run("dropout", out(128, 64, dtype="int32"), T(np.ones((128, 64)), "int32"), 0.25)
    share = 1 - float(result["dst"].mean())
    assert abs(share - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 8192)


@pytest.mark.parametrize(
    ("name", "args", "generation", "text"),
    [
        ("dropout", (Tile((2, 2), "int32"), Tile((2, 2), "int32"), Tile((2, 1), "bfloat16")), 3,
         "prob must be float32 because data is int32"),
        ("dropout", (Tile((2, 2), "int32"), Tile((2, 2), "int32"), 1.5), 3, "between 0 and 1, got 1.5"),
        ("dropout", (Tile((2, 2), "int32"), Tile((2, 2), "float32"), 0.5), 3, "dst is int32 and data is"),
        ("rng", (Tile((2, 2), "int32"), GPSIMD), 2, "cannot run on the gpsimd engine of NeuronCore-v2"),
        ("rng", (Tile((2, 2), "int32", "psum"), GPSIMD), 3, "psum, which the gpsimd engine cannot"),
        ("rand_set_state", (Tile((2, 24), "uint32"),), 3, "the gpsimd engine has 6 words a lane"),
        ("rand_set_state", (Tile((2, 24), "uint32"), VECTOR), 3, "cannot run on the vector engine"),
        ("rand_get_state", (Tile((2, 6), "int32"),), 3, "dst has data type int32, allowed: uint32"),
        ("set_rng_seed", (Tile((2, 1), "int32"),), 3, r"must have shape \(1, 1\), got \(2, 1\)"),
        ("rand2", (Tile((2, 2), "float32"), 0.0, 1.0), 3, "rand2 does not exist on NeuronCore-v3"),
    ],
)  # fmt: skip
def test_random_refuses(name: str, args: tuple[object, ...], generation: int, text: str) -> None:
    with pytest.raises(NkiValidationError, match=text):
        call(name, *args, generation=generation)


# Registers


def register(value: int) -> T:
    made = T([[0]], "int32")
    made.data = np.array([[value]], np.int32)
    made.tile = Tile((1, 1), "int32", "register")
    return made


def test_registers_hold_32_bits() -> None:
    reg = register(0)
    run("register_move", reg, -5)
    assert reg.data.tolist() == [[-5]]
    run("register_load", reg, T([[2**32 - 1]], "uint32"))
    assert reg.data.tolist() == [[-1]]
    run("register_load", reg, T([-7], "int8"))
    assert reg.data.tolist() == [[-7]]
    run("register_load", reg, T([1.0]))  # a float comes as its bits
    assert reg.data.tolist() == [[0x3F800000]]
    back = out(1, 1)
    run("register_store", back, reg)
    assert back.data.tolist() == [[1.0]]
    byte = out(1, dtype="uint8")
    run("register_store", byte, register(0x1FF))
    assert byte.data.tolist() == [0xFF]
    other = register(3)
    run("register_move", reg, other)
    assert reg.data.tolist() == [[3]]


def test_registers_refuse() -> None:
    with pytest.raises(NkiValidationError, match=r"src must have one element, got shape \(2, 1\)"):
        call("register_load", register(0), Tile((2, 1), "int32"))
    with pytest.raises(NkiValidationError, match="dst is in sbuf, allowed: register"):
        call("register_move", Tile((1, 1), "int32"), 1)
    with pytest.raises(NkiValidationError, match="x must be between -2147483648 and 4294967295"):
        call("register_alloc", 2**32)


# Two cores


def test_sendrecv_rules() -> None:
    a, b = Tile((4, 300), "float32"), Tile((4, 300), "float32")
    assert call("sendrecv", a, b, 1, 1, 0).engine == "dma"
    gpsimd = enums.dma_engine.gpsimd_dma
    small = Tile((4, 256), "float32")
    assert call("sendrecv", small, small, 1, 0, 0, gpsimd).engine == "gpsimd"
    for args, generation, text in (
        ((a, b, 1, 1, 0, gpsimd), 3, "moves 1200 bytes per partition, at most 1024 of float32"),
        ((a, small, 1, 1, 0), 3, r"src has shape \(4, 300\) and dst has \(4, 256\)"),
        ((a, b, 2, 1, 0), 3, "send_to_rank must be between 0 and 1, got 2"),
        ((a, Tile((4, 300), "int32"), 1, 1, 0), 3, "src is float32 and dst is int32"),
        ((a, b, 1, 1, 0), 2, "sendrecv does not exist on NeuronCore-v2"),
    ):
        with pytest.raises(NkiValidationError, match=text):
            call("sendrecv", *args, generation=generation)


def test_core_barrier_rules() -> None:
    shared = Tile((4, 4), "float32", "shared_hbm")
    assert call("core_barrier", shared, (0, 1)).engine == "gpsimd"
    with pytest.raises(NkiValidationError, match=r"cores must be \(0, 1\), got \(0, 1, 2\)"):
        call("core_barrier", shared, (0, 1, 2))
    with pytest.raises(NkiValidationError, match="data is in hbm, allowed: shared_hbm"):
        call("core_barrier", Tile((4, 4), "float32", "hbm"), (0, 1))
