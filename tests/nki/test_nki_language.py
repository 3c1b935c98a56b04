"""``nl``: constants, tile sizes, and making tensors, of which the documentation gives examples."""

import copy
import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki.dtype
import nki.language as nl
import nki.typing as nt
from neuronxcc.targets import TARGETS, get_target
from nki.access import read, unwritten, write
from nki.context import use
from nki.core import Core
from nki.dtypes import NAMES
from nki.errors import NkiError
from nki.memory import Storage


def test_data_types_are_strings() -> None:
    assert [getattr(nl, name) for name in NAMES] == list(NAMES)
    assert nl.float32 == "float32"
    assert nl.bool == nl.bool_


def test_regions_and_questions_about_them() -> None:
    assert nl.is_hbm(nl.hbm)
    assert nl.is_hbm(nl.shared_hbm)
    assert nl.is_hbm(nl.hbm)
    assert not nl.is_hbm(nl.psum)
    assert nl.is_on_chip(nl.sbuf)
    assert not nl.is_on_chip(nl.hbm)
    assert nl.is_psum(nl.psum)
    assert not nl.is_psum(nl.sbuf)
    assert nl.is_sbuf(nl.sbuf)
    assert not nl.is_sbuf("shared_hbm")


def test_operators_without_a_function_have_names() -> None:
    for name in ("bypass", "average", "prelu"):
        op = getattr(nl, name)
        assert (op.__name__, repr(op)) == (name, f"nl.{name}")
        assert copy.deepcopy(op) is op
        assert pickle.loads(pickle.dumps(op)) is op  # noqa: S301


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_tile_sizes_are_the_targets(target: Any) -> None:
    core = target.core
    with use(core=Core(target)):
        sizes = nl.tile_size
        assert sizes.pmax == core.sbuf.partitions == core.psum.partitions
        assert sizes.psum_num_banks == core.psum.banks
        assert sizes.psum_bank_fmax_bytes * core.psum.banks == core.psum.bytes_per_partition
        assert sizes.psum_bank_fmax * 4 == sizes.psum_bank_fmax_bytes == sizes.psum_fmax * 4
        assert sizes.sbuf_size_bytes == sizes.pmax * sizes.sbuf_fmax_bytes
        assert sizes.sbuf_fmax_bytes == core.sbuf.bytes_per_partition == sizes.sbuf_fmax * 4
        assert sizes.total_available_sbuf_size == sizes.sbuf_fmax_bytes
        assert (sizes.gemm_stationary_fmax, sizes.gemm_moving_fmax) == (128, 512)
        assert sizes.bn_stats_fmax == 512
        assert repr(sizes) == f"nl.tile_size of {target.name}"


@pytest.mark.parametrize(("target", "banks"), [("trn1", 8), ("trn2", 7), ("trn3", 7)])
def test_transposes_may_reserve_a_bank(
    target: str, banks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "true")
    with use(core=Core(get_target(target))):
        assert nl.tile_size.psum_num_banks == banks


# --- statements of the public language guide, as cases -----------------------------------------


def test_the_anatomy_of_a_tensor() -> None:
    t = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, name="t")
    assert (t.shape, t.strides, t.offset) == ((128, 64), (64, 1), 0)
    assert (t.dtype, t.buffer, t.ndim, t.size) == (nl.float32, nl.sbuf, 2, 128 * 64)
    assert (t.name, t[3].name) == ("t", "t")
    assert unwritten(t) == (0, 0)
    write(t.reshape((128, 8, 8)), np.ones((128, 8, 8), np.float32))
    assert (read(t[:, 16:32]) == 1).all()


@pytest.mark.parametrize(
    ("buffer", "key", "shape"),
    [
        (nl.sbuf, (0, 0, 10), (1, 1)),
        (nl.sbuf, np.s_[:, 0], (64, 64)),
        (nl.sbuf, np.s_[:, 0, 10], (64, 1)),
        (nl.sbuf, np.s_[0:64, 0, 0:64], (64, 64)),
        (nl.sbuf, np.s_[:, :, ::2], (64, 64, 32)),
        (nl.sbuf, ..., (64, 64, 64)),
        (nl.sbuf, np.s_[:, ...], (64, 64, 64)),
        (nl.sbuf, np.s_[0, ..., :], (1, 64, 64)),
        (nl.psum, np.s_[0, :, :], (1, 64, 64)),
        (nl.psum, np.s_[:, :, 0], (64, 64)),
        (nl.hbm, np.s_[0, :, :], (64, 64)),
        (nl.hbm, (0, 0, 0), (1,)),
        (nl.hbm, (0, 0), (64,)),
        (nl.hbm, np.s_[nl.ds(8, 16), -1], (16, 64)),
        (nl.hbm, np.int64(3), (64, 64)),
        (nl.hbm, np.s_[np.int32(3) : np.int32(5)], (2, 64, 64)),
    ],
)
def test_indexing_keeps_partitions_and_drops_other_integers(
    buffer: Any, key: Any, shape: tuple[int, ...]
) -> None:
    assert nl.ndarray((64, 64, 64), nl.uint8, buffer)[key].shape == shape


def test_views_are_patterns() -> None:
    t = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    u = t.slice(dim=1, start=8, end=24)
    assert (u.get_pattern(), u.offset) == ([[64, 128], [1, 16]], 8)
    v = t.ap(pattern=[[64, 128], [1, 16]], offset=8)
    assert (v.get_pattern(), v.offset) == (u.get_pattern(), u.offset)
    assert u.ap(pattern=[(64, 128), (1, 16)]).offset == 8  # inherited
    assert u.ap(pattern=[(64, 128), (1, 16)], offset=4).offset == 12  # added
    pattern = t.get_pattern()
    pattern[0][1] = 64
    assert t.ap(pattern=pattern).shape == (64, 64)
    w = nl.ndarray((128, 256), nl.int32).ap([[512, 128], [1, 512]], offset=0, dtype=nl.bfloat16)
    assert (w.shape, w.dtype) == ((128, 512), nl.bfloat16)
    x = nl.ndarray((128, 4, 16), nl.float32)
    assert x[0:64, :, :].permute((0, 2, 1))[:, 0, :].shape == (64, 4)
    inner = t.ap(pattern=[[64, 128], [2, 32]])
    assert inner.ap(pattern=[[64, 128], [1, 64]]).get_pattern() == [[64, 128], [1, 64]]
    y = nl.ndarray((128, 24), nl.float32)
    z = y.rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4})
    assert (z.shape, z.strides) == ((128, 6, 4), (24, 1, 6))
    back = z.rearrange(("b", "w", "h"), ("b", ("h", "w")))
    assert back.get_pattern() == y.get_pattern()
    assert nl.expand_dims(y, -1).shape == (128, 24, 1)


# --- making tensors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "dtype", "value"),
    [
        (lambda: nl.zeros((3, 4), nl.bfloat16), "bfloat16", 0),
        (lambda: nl.ones((3, 4), nl.int8, nl.psum), "int8", 1),
        (lambda: nl.full((3, 4), 2.5, nl.float16, buffer=nl.hbm), "float16", 2.5),
        (lambda: nl.full((3, 4), np.float64(7), nl.uint8), "uint8", 7),
        (lambda: nl.full((3, 4), fill_value=True, dtype=nl.bool_), "bool_", 1),
        (lambda: nl.zeros((3, 4), nl.float4_e2m1fn_x4), "float4_e2m1fn_x4", 0),
        (lambda: nl.zeros_like(nl.ndarray((3, 4), nl.int16)), "int16", 0),
        (lambda: nl.zeros_like(nl.ndarray((3, 4), nl.int16), dtype=nl.uint32), "uint32", 0),
    ],
)
def test_filled_tensors(make: Any, dtype: str, value: float) -> None:
    t = make()
    assert t.dtype == dtype
    assert unwritten(t) is None
    assert (read(t) == value).all()
    assert t.shape == (3, 4)


def test_likes_take_over_what_is_documented() -> None:
    x = nl.ndarray((3, 4), nl.int16, nl.psum)
    assert nl.zeros_like(x).buffer is nl.sbuf
    assert nl.empty_like(x).buffer is nl.psum
    assert nl.empty_like(x, nl.int8, nl.hbm, "n").dtype == nl.int8
    assert unwritten(nl.empty_like(x)) == (0, 0)


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (256, nl.uint8, r"256 is no value of uint8; .*; use a number within the type's range"),
        (-1, nl.uint32, r"-1 is no value of uint32"),
        (1.5, nl.int32, r"1.5 is no value of int32; .* a whole one for integers"),
        (float("nan"), nl.int32, r"nan is no value of int32"),
        (2, nl.bool_, r"2 is no value of bool_"),
        (1, nl.float8_e5m2_x4, r"packed types are filled with 0 only"),
        ("1", nl.float32, r"'1' is no value of float32"),
    ],
)
def test_values_that_do_not_fit_are_refused(value: Any, dtype: str, text: str) -> None:
    with pytest.raises(NkiError, match=text) as caught:
        nl.full((2, 2), value, dtype)
    assert caught.value.code == "NKI008"


def test_constants(tmp_path: Path) -> None:
    data = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    t = nl.shared_constant(data)
    assert (t.shape, t.dtype, t.buffer) == ((2, 3), nl.bfloat16, nl.shared_hbm)
    data[...] = 0
    assert read(t).astype(int).tolist() == [[0, 1, 2], [3, 4, 5]]
    np.save(tmp_path / "c.npy", np.arange(4, dtype=np.int32))
    assert read(nl.shared_constant(tmp_path / "c.npy")).tolist() == [0, 1, 2, 3]
    assert read(nl.shared_constant(np.eye(3, dtype=np.int8).T)).tolist() == np.eye(3).tolist()
    with pytest.raises(NkiError, match=r"given as list; .*; give a NumPy array or the path"):
        nl.shared_constant([1, 2])  # type: ignore[arg-type]
    with pytest.raises(NkiError, match=r"a constant of shape \(\) has no elements"):
        nl.shared_constant(np.array(1.0, np.float32))


def test_identities() -> None:
    t = nl.shared_identity_matrix(16)
    assert (t.dtype, t.buffer) == (nl.uint8, nl.sbuf)
    assert read(t).tolist() == np.eye(16).tolist()
    dst = nl.ndarray((16, 16), nl.bfloat16)
    assert nl.shared_identity_matrix(16, nl.bfloat16, dst) is dst
    assert read(dst).astype(float).tolist() == np.eye(16).tolist()
    with pytest.raises(NkiError, match=r"an identity of uint8\[16, 16\] does not fit"):
        nl.shared_identity_matrix(16, dst=dst)
    with pytest.raises(NkiError, match=r"ends at partition 129"):
        nl.shared_identity_matrix(129)


def test_inside_a_kernel_filling_is_recorded() -> None:
    class Tape:
        def __init__(self) -> None:
            self.rows: list[tuple[str, Any, Any]] = []
            self.storages: list[Storage] = []
            self.made: dict[Any, nl.NkiTensor] = {}
            self.depth = 0

        def created(self, storage: Storage) -> None:
            self.storages.append(storage)

        def constant(self, storage: Storage) -> None:
            self.storages.append(storage)

        def stored(self, dtype: str) -> str:
            return dtype

        def peek(self, tensor: nl.NkiTensor) -> Any:
            return read(tensor)

        def decide(self, register: Any) -> bool | None:
            pytest.fail(f"{register} is asked for")

        def assign(self, dst: nl.NkiTensor, value: Any) -> bool:
            pytest.fail(f"{dst} is assigned {value}")

        def fill(self, tensor: nl.NkiTensor, value: float) -> None:
            self.rows.append(("fill", tensor, value))

        def copy(self, dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
            self.rows.append(("copy", dst, read(src)[0, 0]))

    tape = Tape()
    with use(run=tape):
        t = nl.full((2, 2), 3, nl.float32)
        nl.shared_identity_matrix(4, dst=nl.ndarray((4, 4), nl.uint8))
    assert [(row[0], row[2]) for row in tape.rows] == [("fill", 3.0), ("copy", 1)]
    assert tape.rows[0][1] is t
    assert unwritten(t) == (0, 0)
    nl.zeros((2, 2), nl.float32)
    assert len(tape.rows) == 2
    assert len(tape.storages) == 3  # two tensors and a constant


def test_loops_are_pythons() -> None:
    for loop in (nl.affine_range, nl.sequential_range, nl.static_range):
        assert list(loop(3)) == [0, 1, 2]
        assert list(loop(1, 7, 2)) == [1, 3, 5]


def test_kernel_objects_need_no_constructor() -> None:
    class Config(nl.NKIObject):
        tiles: int
        dtype: str = nl.float32
        limit: int

        def __post_init__(self) -> None:
            self.total = self.tiles * 2

    config = Config(3, limit=5)
    assert (config.tiles, config.dtype, config.limit, config.total) == (3, "float32", 5, 6)
    assert Config(1).limit is None
    for arguments, text in [((1, 2, 3, 4), "takes 3 arguments"), ((1,), "argument 'tiles' twice")]:
        with pytest.raises(TypeError, match=text):
            Config(*arguments, tiles=2)
    with pytest.raises(TypeError, match="has no attribute 'size'"):
        Config(size=2)


def test_data_types_have_a_second_home() -> None:
    assert sorted(nki.dtype.__all__) == sorted(NAMES)
    assert all(getattr(nki.dtype, name) == name for name in NAMES)


def test_annotations_of_tensors() -> None:
    annotation = nt.tensor[128, 512]
    assert (annotation.shape, annotation.mutable) == ((128, 512), False)
    assert annotation == nt.tensor[128, 512] != nt.mutable_tensor[128, 512]
    assert len({annotation, nt.tensor[128, 512], nt.tensor}) == 2
    assert nt.tensor[4].shape == (4,)
    assert repr(nt.mutable_tensor[2, 3]) == "nki.typing.mutable_tensor[2, 3]"
    assert repr(nt.tensor) == "nki.typing.tensor"
    assert nt.tensor != "tensor"
    with pytest.raises(NkiError, match=r"\(0, 4\) is no shape of a tensor; .* tensor\[128, 512\]"):
        nt.tensor[0, 4]
