"""Storages: what fits where, which bytes alias, and which were never written."""

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronxcc.targets import get_target
from nki.access import as_array, byte_starts, may_overlap, overlap, read, unwritten, write
from nki.context import Surroundings, current_core, surroundings, use
from nki.core import Core
from nki.dtypes import NAMES, info
from nki.errors import NkiError, NkiTypeError
from nki.memory import MemoryRegion, Storage, region_of
from nki.pattern import contiguous
from nki.shadow import Shadow
from nki.tensor import NkiTensor, create, tensor_of
from tests.nki.view_tools import Model, chains, step

SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum
HBM, SHARED = MemoryRegion.private_hbm, MemoryRegion.shared_hbm


def test_regions_are_the_documented_members() -> None:
    assert [member.value for member in MemoryRegion] == [
        "sbuf", "psum", "private_hbm", "shared_hbm",
    ]  # fmt: skip
    assert str(SBUF) == "MemoryRegion.sbuf"
    assert MemoryRegion.hbm is HBM
    assert [member.on_chip for member in MemoryRegion] == [True, True, False, False]
    assert region_of("psum") is region_of("nl.psum") is region_of(PSUM) is PSUM
    assert region_of("hbm") is HBM


def test_new_bytes_hold_what_the_simulator_fills() -> None:
    assert np.isnan(read(create((2, 3), "bfloat16")).astype(np.float32)).all()
    assert read(create((2, 3), "int16")).tolist() == [[4, 4, 4], [4, 4, 4]]
    assert np.isnan(read(create((2, 3), "float32", address=(0, 0)))).all()
    for name in NAMES:
        assert read(create((2, 3), name, HBM)).dtype == info(name).numpy


def test_nothing_is_allocated_before_it_is_asked_for() -> None:
    big = create((2**20, 2**20), "float32", HBM)
    assert big.storage.nbytes == 2**42
    assert may_overlap(big[0], big)
    assert overlap(big[5, 6:], big[:, 7])
    assert not overlap(big[5], big[6])


def test_arrays_are_storages_without_a_copy() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    storage = Storage.from_array(array, SHARED, name="x")
    tensor = tensor_of(storage, contiguous("float32", (2, 3), partition=False))
    assert read(tensor[1, 1:]).tolist() == [4, 5]
    assert unwritten(tensor) is None
    write(tensor[0], np.zeros(3, np.float32))
    assert array.tolist() == [[0, 0, 0], [3, 4, 5]]
    packed = Storage.from_array(np.zeros((2, 3), np.uint32), HBM, dtype="float8_e5m2_x4")
    assert packed.dtype == "float8_e5m2_x4"


def test_addresses_alias_and_others_do_not() -> None:
    with use(core=Core(get_target("trn2"))):
        a = create((4, 8), "float32", address=(2, 16))
        b = create((2, 64), "uint8", address=(3, 0), name="b")
        c = create((4, 8), "float32")
        write(a, np.arange(32, dtype=np.float32).reshape(4, 8))
        seen = read(b[:, 16:48].view("float32"))
        assert seen.tolist() == np.arange(8, 24, dtype=float).reshape(2, 8).tolist()
        assert overlap(a, b)
        assert not overlap(a, b[:, :16])
        assert not overlap(a, c)
        assert unwritten(b) == (0, 0)
        assert unwritten(b[:, 16:48]) is None
        assert unwritten(b[:, 16:49]) == (0, 32)
    with use(core=Core(get_target("trn2"), 1)):
        assert not overlap(create((4, 8), "float32", address=(2, 16)), a)


def test_cores_are_the_threads_own() -> None:
    seen = []
    thread = threading.Thread(target=lambda: seen.append(current_core()))
    thread.start()
    thread.join()
    assert seen[0] is not current_core()


@pytest.mark.parametrize(
    ("name", "core"), [("trn1", "trn1"), ("gen3", "trn2"), ("inf2", "inf2"), ("", "trn3")]
)
def test_the_target_comes_from_the_environment(
    name: str, core: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", name)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(current_core().target.name))
    thread.start()
    thread.join()
    assert seen == [core]


# --- which bytes were written ------------------------------------------------------------------


def test_threads_that_record_at_once_keep_their_surroundings_apart() -> None:
    both_inside = threading.Barrier(2, timeout=60)
    seen: dict[str, Surroundings] = {}

    def run(name: str) -> None:
        with use(core=Core(get_target(name)), state=name):
            both_inside.wait()
            seen[name] = surroundings()
            both_inside.wait()
        assert surroundings() == Surroundings()

    before = surroundings()
    threads = [threading.Thread(target=run, args=(name,)) for name in ("trn1", "trn2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: here.state for name, here in seen.items()} == {"trn1": "trn1", "trn2": "trn2"}
    assert [here.core.target.name for here in seen.values() if here.core] == list(seen)
    assert surroundings() is before


@settings(max_examples=60)
@given(st.data())
def test_the_shadow_knows_every_byte(data: st.DataObject) -> None:
    with use(core=Core(get_target("trn1"))):
        whole, model = data.draw(chains())
    view, _ = whole, model
    model_of = np.zeros(view.storage.bytes.size, np.bool_)
    for _ in range(data.draw(st.integers(1, 3))):
        target, numbers = view, model
        for _ in range(data.draw(st.integers(0, 2))):
            target, numbers = step(data.draw, target, numbers)
        item = info(target.dtype)
        write(target, np.zeros(target.shape, item.numpy))
        touched = byte_starts(target.storage, target.pattern)[..., None] + np.arange(item.itemsize)
        model_of[touched] = True
        if target.strides[-1] == 1:
            try:
                target = target.view(data.draw(st.sampled_from(["uint8", "int16", "int32"])))
            except NkiError:
                continue
        item = info(target.dtype)
        look = target.slice(target.ndim - 1, 0, target.shape[-1], 1)
        starts = byte_starts(look.storage, look.pattern)[..., None] + np.arange(item.itemsize)
        assert unwritten(look) == first_missing(model_of[starts].all(axis=-1))
    starts = byte_starts(view.storage, view.pattern)[..., None]
    starts = starts + np.arange(info(view.dtype).itemsize)
    assert unwritten(view) == first_missing(model_of[starts].all(axis=-1))


def first_missing(written: npt.NDArray[np.bool_]) -> tuple[int, ...] | None:
    for index in np.ndindex(written.shape):
        if not written[index]:
            return index
    return None


def test_flags_become_finer_when_an_access_is() -> None:
    shadow = Shadow(16, 4)
    shadow.mark(0, (2,), (4,), 4)
    assert shadow.missing(0, (4,), (4,), 4) == (2,)
    shadow.mark(8, (1,), (1,), 1)
    assert shadow.missing(0, (9,), (1,), 1) is None
    assert shadow.missing(0, (10,), (1,), 1) == (9,)
    assert shadow.missing_bytes(np.array([0, 4, 8]), 4) == (2,)
    shadow.mark_bytes(np.array([9, 12]), 3)
    assert shadow.missing(0, (16,), (1,), 1) == (15,)
    shadow.mark_all()
    assert shadow.missing(0, (4,), (4,), 4) is None
    assert shadow.missing_bytes(np.array([0]), 4) is None


# --- overlap -----------------------------------------------------------------------------------


@given(st.data())
def test_overlap_is_that_of_the_bytes(data: st.DataObject) -> None:
    with use(core=Core(get_target("trn1"))):
        a, model = data.draw(chains())
        if data.draw(st.booleans()) and a.storage.address is not None:
            b = create((3, 40), "int16", a.buffer, address=(a.storage.address[0] + 1, 2048))
            numbers: Model = np.arange(120).reshape(3, 40)
        else:
            b, numbers = a, model
        for _ in range(3):
            b, numbers = step(data.draw, b, numbers)
            a, model = step(data.draw, a, model)
    shared = set(all_bytes(a)) & set(all_bytes(b))
    assert overlap(a, b) == overlap(b, a) == bool(shared)
    if shared:
        assert may_overlap(a, b)


def all_bytes(tensor: NkiTensor) -> list[Any]:
    starts = byte_starts(tensor.storage, tensor.pattern)
    spread = starts[..., None] + np.arange(info(tensor.dtype).itemsize)
    return list(np.unique(spread))


def test_hard_overlaps_are_decided_by_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuronxcc.addresses._PATIENCE", 1)
    t = create((1, 4000), "int8")
    a = t.ap([[4000, 1], [7, 12], [11, 13], [97, 20]])
    assert overlap(a, t.ap([[4000, 1], [13, 9], [101, 11]], offset=1))
    assert not overlap(t[:, ::2], t[:, 1::2])


def test_indirect_views_count_as_the_whole() -> None:
    t = create((8, 4), "float32", HBM)
    rows = t.vector_select(0, create((2, 1), "int32"))
    assert overlap(rows, t[7])
    assert not overlap(rows, create((8, 4), "float32", HBM))


# --- refusals ----------------------------------------------------------------------------------

BAD = [
    (lambda: create((129, 4), "float32"), "NKI004", r"ends at partition 129, and sbuf has 128"),
    (
        lambda: create((64, 4), "float32", address=(96, 0)),
        "NKI004",
        r"ends at partition 160, and sbuf has 128; .*nl.tile_size.pmax",
    ),
    (
        lambda: create((128, 65537), "float32", name="w"),
        "NKI005",
        (
            r"tensor 'w' in SBUF of shape .* ends at byte 262148 of its partitions, and sbuf of "
            r"trn3 has 262144; .*; use smaller tiles"
        ),
    ),
    (lambda: create((8, 4097), "float32", PSUM), "NKI005", r"16388 .* psum of trn3 has 16384"),
    (lambda: create((8, 8), "int8", HBM, address=(0, 0)), "NKI006", r"leave `address` out"),
    (lambda: create((8, 8), "int8", address=(0, -1)), "NKI006", r"\(0, -1\) is no address"),
    (lambda: create((8, 8), "int8", address=(0,)), "NKI006", r"write \(partition, byte"),  # type: ignore[arg-type]
    (
        lambda: create((8, 8), "int8", PSUM, address=(0, 100)),
        "NKI036",
        r"starts at byte 100 of PSUM; .*; start at the beginning of a bank: a multiple of 2048",
    ),
    (lambda: create((0, 8), "int8"), "NKI003", r"\(0, 8\) is no shape of a tensor"),
    (lambda: create(8, "int8", HBM), "NKI003", r"8 is no shape of a tensor"),  # type: ignore[arg-type]
    (lambda: create((2.0, 8), "int8"), "NKI003", r"integers of at least 1"),  # type: ignore[arg-type]
    (lambda: create((128,), "int8"), "NKI029", r"in sbuf cannot have the shape \(128,\); .*, 1\)"),
    (
        lambda: Storage.from_array(np.zeros((4, 4), np.float32).T, HBM),
        "NKI007",
        r"not contiguous and writable cannot be a storage; .*; pass a copy",
    ),
    (
        lambda: Storage.from_array(np.zeros((4, 4), np.float32), HBM, dtype="int8"),
        "NKI007",
        r"an array of float32 cannot be read as int8",
    ),
    (
        lambda: NkiTensor((4, 8), "float32", create((8, 4), "float32").storage),
        "NKI007",
        r"is no storage of a tensor float32\[4, 8\] in sbuf",
    ),
]


@pytest.mark.parametrize(("make", "code", "text"), BAD, ids=lambda value: str(value)[:24])
def test_what_does_not_fit_is_refused(make: Any, code: str, text: str) -> None:
    with use(core=Core(get_target("trn3"))), pytest.raises(NkiError, match=text) as caught:
        make()
    assert caught.value.code == code
    assert caught.value.where[0] == __file__


def test_no_region_is_sbuf_as_in_early_versions() -> None:
    assert create((8, 8), "int8", None).buffer is SBUF


@pytest.mark.parametrize("buffer", ["dram", 3])
def test_unknown_regions_are_refused(buffer: object) -> None:
    with pytest.raises(NkiTypeError, match=r"is no memory region; .*; use nl.sbuf, nl.psum"):
        create((8, 8), "int8", buffer)


def test_the_documented_constructor_binds_a_storage() -> None:
    placeholder = NkiTensor((4, 8), "float32", None, SHARED, "out")
    assert (placeholder.name, placeholder.buffer, placeholder.shape) == ("out", SHARED, (4, 8))
    again = NkiTensor((8, 4), "int32", placeholder.storage, "shared_hbm")
    write(again, np.ones((8, 4), np.int32))
    assert as_array(placeholder.storage, again.pattern).sum() == 32
    assert unwritten(placeholder) is None
    assert repr(placeholder) == "<tensor 'out' in shared HBM: float32[4, 8]>"
    assert repr(again[1:, ::2]) == (
        "<tensor 'out' in shared HBM: int32[7, 2] strides [4, 2] offset 4>"
    )
    assert repr(again.storage) == "<tensor 'out' in shared HBM: float32[4, 8]>"
