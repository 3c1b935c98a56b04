"""Views show the elements that NumPy's indexing says, whatever is chained."""

import itertools
import math
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nki.access import as_array, byte_starts, read, write
from nki.addressing import canonical_dims, indices, resolve
from nki.dtypes import info
from nki.errors import NkiError
from nki.forms import Forms
from nki.indexing import DynamicSlice, index_by_parts
from nki.memory import MemoryRegion
from nki.objects import RuntimeScalar
from nki.pattern import contiguous, is_contiguous, reshape
from nki.tensor import NkiTensor, create
from tests.nki.view_tools import Model, apply_key, chains, keys

HBM, SBUF = MemoryRegion.private_hbm, MemoryRegion.sbuf


class Register(RuntimeScalar):
    """A register, of which views need only the identity."""


@given(chains())
def test_chained_views_show_what_numpy_says(case: tuple[NkiTensor, Model]) -> None:
    tensor, model = case
    assert tensor.shape == model.shape
    assert (tensor.ndim, tensor.size) == (model.ndim, model.size)
    np.testing.assert_array_equal(indices(tensor.pattern), model)
    assert tensor.get_pattern() == [list(p) for p in zip(tensor.strides, tensor.shape, strict=True)]


@given(chains())
def test_the_strided_array_shows_the_same_bytes(case: tuple[NkiTensor, Model]) -> None:
    tensor, _ = case
    storage = tensor.storage
    first = storage.base
    storage.bytes[first : first + 64_000] = np.resize(np.arange(251), 64_000)[
        : storage.bytes.size - first
    ]
    item = info(tensor.dtype)
    starts = byte_starts(storage, tensor.pattern)
    expected = storage.bytes[starts[..., None] + np.arange(item.itemsize)]
    shown = as_array(storage, tensor.pattern)
    np.testing.assert_array_equal(
        np.ascontiguousarray(shown)[..., None].view(np.uint8).reshape(expected.shape), expected
    )


@given(chains())
def test_fewest_dimensions_show_the_same_elements(case: tuple[NkiTensor, Model]) -> None:
    tensor, model = case
    dims = canonical_dims(tensor.pattern)
    again = tensor.pattern._replace(
        shape=tuple(n for _, n in dims), strides=tuple(s for s, _ in dims)
    )
    assert indices(again).ravel().tolist() == model.ravel().tolist()
    free = dims[1:] if tensor.buffer.on_chip else dims
    assert all(n > 1 for _, n in free) or free == ((1, 1),)
    assert all(a != n * b for (a, _), (b, n) in itertools.pairwise(free))


@given(st.data())
def test_the_fast_index_is_the_one_by_parts(data: st.DataObject) -> None:
    tensor, model = data.draw(chains())
    key = data.draw(keys(tensor.shape))
    view = tensor[key]
    slow = index_by_parts(tensor.pattern, key)
    assert view.pattern.shape == slow.shape
    assert indices(view.pattern).tolist() == indices(slow).tolist()
    np.testing.assert_array_equal(indices(slow), apply_key(model, key, tensor))


@given(chains())
def test_contiguous_means_dense(case: tuple[NkiTensor, Model]) -> None:
    tensor, model = case
    rows = model if tensor.buffer.on_chip else model[None]
    dense = all((np.diff(row.ravel()) == 1).all() for row in rows)
    assert tensor.is_contiguous() == dense


@given(st.data())
def test_reshape_refuses_only_what_needs_a_copy(data: st.DataObject) -> None:
    tensor, model = data.draw(chains(regions=(HBM,)))
    sizes = [data.draw(st.sampled_from([d for d in (1, 2, 3, 4, 6) if tensor.size % d == 0]))]
    sizes.append(tensor.size // sizes[0])
    strided = np.lib.stride_tricks.as_strided(
        np.zeros(1, np.int8), tensor.shape, tensor.strides, writeable=False
    )
    try:
        strided = strided.view()
        strided.shape = tuple(sizes)
        possible = True
    except AttributeError:
        possible = False
    if possible:
        view = reshape(tensor.pattern, sizes)
        np.testing.assert_array_equal(indices(view), model.reshape(sizes))
    else:
        with pytest.raises(NkiError, match=r"cannot be reshaped to .* without a copy"):
            reshape(tensor.pattern, sizes)


SIZES = {1: "uint8", 2: "bfloat16", 4: "float32"}


@given(chains(), st.sampled_from([1, 2, 4]))
def test_reinterpreting_is_numpys_view(case: tuple[NkiTensor, Model], new: int) -> None:
    tensor, _ = case
    shown = as_array(tensor.storage, tensor.pattern)
    kind = info(SIZES[new]).numpy
    old = shown.dtype.itemsize
    dense = shown.shape[-1] == 1 or tensor.strides[-1] == 1
    outer = [s for s, n in tensor.pattern.dims[:-1] if n > 1]
    whole = all(n * old % new == 0 for n in (tensor.offset, shown.shape[-1], *outer))
    if old != new and not (dense and whole):
        with pytest.raises(NkiError, match=r"NKI020" if dense else r"last dimension is not cont"):
            tensor.view(SIZES[new])
        return
    view = tensor.view(SIZES[new])
    if shown.shape[-1] == 1 or old == new:
        shown = np.ascontiguousarray(shown)
    np.testing.assert_array_equal(
        as_array(view.storage, view.pattern).tobytes(), shown.view(kind).tobytes()
    )
    assert view.shape == (*tensor.shape[:-1], tensor.shape[-1] * old // new)


def test_packed_types_scale_by_their_bytes() -> None:
    tensor = create((128, 64), "float8_e4m3fn_x4")
    assert tensor.view("float8_e4m3fn").shape == (128, 256)
    assert tensor.view("float4_e2m1fn_x4").shape == (128, 128)
    assert create((128, 64), "float4_e2m1fn_x4").view("uint8").shape == (128, 128)
    assert tensor.reinterpret_cast("float32").shape == (128, 64)


# --- explicit patterns -------------------------------------------------------------------------


@given(st.data())
def test_explicit_patterns_are_the_documented_loop(data: st.DataObject) -> None:
    region = data.draw(st.sampled_from([HBM, SBUF]))
    tensor = create((4, 5, 6), "float32", region)
    dtype = data.draw(st.sampled_from(["float32", "bfloat16"]))
    ratio = 4 // info(dtype).itemsize
    row, total = 30 * ratio, 120 * ratio
    counts = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    strides = [data.draw(st.integers(-3, 12)) for _ in counts]
    if region is SBUF:
        strides[0] = row
    offset = data.draw(st.integers(-2, total))
    base = tensor[data.draw(st.integers(0, 3)) :]
    start = base.offset * ratio + offset
    expected = np.array(
        [
            start + sum(s * i for s, i in zip(strides, index, strict=True))
            for index in itertools.product(*map(range, counts))
        ]
    )
    inside = bool((expected >= 0).all() and (expected < total).all())
    if region is SBUF and inside:
        lanes = np.repeat(start // row + np.arange(counts[0]), math.prod(counts[1:]))
        inside = bool((expected // row == lanes).all())
    pairs = [list(pair) for pair in zip(strides, counts, strict=True)]
    if not inside:
        beyond = base.ap(pairs, offset=offset, dtype=dtype)
        with pytest.raises(NkiError, match=r"leaves its tensor .* \[NKI022\]"):
            Forms().tile(beyond, array("q"))
        return
    view = base.ap(pairs, offset=offset, dtype=dtype)
    assert view.shape == tuple(counts)
    assert indices(view.pattern).ravel().tolist() == expected.tolist()
    assert view.dtype == dtype


@given(chains())
def test_a_view_is_its_own_explicit_pattern(case: tuple[NkiTensor, Model]) -> None:
    tensor, model = case
    strides = tensor.strides
    if tensor.buffer.on_chip and tensor.shape[0] > 1:
        row = math.prod(tensor.storage.shape[1:])
        if strides[0] != row:
            with pytest.raises(NkiError, match=r"steps \d+ elements from partition to partition"):
                tensor.ap(tensor.get_pattern())
            return
    view = tensor.ap(tensor.get_pattern())
    np.testing.assert_array_equal(indices(view.pattern), model)


# --- dynamic indices ---------------------------------------------------------------------------


@given(st.data())
def test_dynamic_select_and_slice(data: st.DataObject) -> None:
    tensor, model = data.draw(chains())
    first = 1 if tensor.buffer.on_chip else 0
    dim = data.draw(st.integers(first, tensor.ndim - 1))
    n = tensor.shape[dim]
    register = Register()
    whole = (slice(None),) * dim
    i = data.draw(st.integers(0, n - 1))
    for view in (tensor.select(dim, register), tensor[(*whole, register)]):
        assert view.is_indirect()
        assert view.pattern.indirect is not None
        assert view.pattern.indirect.bound == n
        np.testing.assert_array_equal(
            indices(view.pattern, i), apply_key(model, (*whole, i), tensor)
        )
        assert indices(resolve(view.pattern, i)).tolist() == indices(view.pattern, i).tolist()
    size = data.draw(st.integers(1, n))
    start = data.draw(st.integers(0, n - size))
    static = tensor[(*whole, DynamicSlice(start, size))]
    moving = tensor[(*whole, DynamicSlice(register, size))]
    expected = apply_key(model, (*whole, slice(start, start + size)), tensor)
    np.testing.assert_array_equal(indices(static.pattern), expected)
    np.testing.assert_array_equal(indices(moving.pattern, start), expected)
    assert moving.pattern.indirect is not None
    assert moving.pattern.indirect.bound == n - size + 1


@given(st.data())
def test_dimensions_of_an_indirect_view_keep_their_meaning(data: st.DataObject) -> None:
    """The moving dimension is found again after others are permuted, inserted and removed."""
    tensor = create((3, 4, 5, 6), "float32", HBM)
    model: Model = np.arange(360).reshape(3, 4, 5, 6)
    view = tensor[:, :, DynamicSlice(Register(), 2)]
    model = model[:, :, 3:5]
    names = ["a", "b", "moving", "d"]
    for _ in range(data.draw(st.integers(1, 5))):
        kind = data.draw(st.sampled_from(["permute", "expand", "select", "split"]))
        dim = data.draw(st.integers(0, view.ndim - 1))
        if kind == "permute":
            order = data.draw(st.permutations(range(view.ndim)))
            view, model = view.permute(order), model.transpose(order)
            names = [names[d] for d in order]
        elif kind == "expand" and view.ndim < 7:
            view, model = view.expand_dim(dim), np.expand_dims(model, dim)
            names.insert(dim, "new")
        elif kind == "select" and view.ndim > 1 and names[dim] != "moving":
            view, model = view.select(dim, 0), np.take(model, 0, axis=dim)
            del names[dim]
        elif kind == "split" and names[dim] != "moving" and view.ndim < 7:
            sizes = (view.shape[dim], 1)
            model = model.reshape(*model.shape[:dim], *sizes, *model.shape[dim + 1 :])
            view = view.reshape_dim(dim, sizes)
            names.insert(dim + 1, "part")
        np.testing.assert_array_equal(indices(view.pattern, 3), model)
    moving = names.index("moving")
    assert view.slice(moving, 0, 2).shape == view.shape  # takes nothing away
    with pytest.raises(NkiError, match=rf"cannot slice dimension {moving} of an indirect view"):
        view.slice(moving, 0, 1)


def vector(count: int) -> NkiTensor:
    return create((count, 1), "int32", SBUF)


def test_partitions_can_start_where_a_register_says() -> None:
    tensor = create((64, 5), "float32", SBUF)
    view = tensor[DynamicSlice(Register(), 8), 1:]
    rows = np.arange(320).reshape(64, 5)
    np.testing.assert_array_equal(indices(view.pattern, 32), rows[32:40, 1:])
    assert view.pattern.indirect is not None
    assert view.pattern.indirect.bound == 57


def test_index_vectors_gather_rows() -> None:
    tensor = create((8, 3, 4), "float32", HBM)
    chosen = np.array([[5], [0], [7], [5], [2]])
    view = tensor.vector_select(0, vector(5))
    assert view.shape == (5, 3, 4)
    rows = np.arange(96).reshape(8, 3, 4)[chosen[:, 0]]
    np.testing.assert_array_equal(indices(view.pattern, chosen), rows)
    turned = view.permute((0, 2, 1))[:, 1]
    np.testing.assert_array_equal(indices(turned.pattern, chosen), rows[:, :, 1])
    flat = view.reshape((5, 12))
    np.testing.assert_array_equal(indices(flat.pattern, chosen), rows.reshape(5, 12))
    explicit = tensor.ap([[12, 5], [1, 12]], vector_offset=vector(5))
    np.testing.assert_array_equal(indices(explicit.pattern, chosen), rows.reshape(5, 12))
    # The documented meaning ignores the first stride.
    ignored = tensor.ap([[999, 5], [1, 12]], vector_offset=vector(5))
    np.testing.assert_array_equal(indices(ignored.pattern, chosen), rows.reshape(5, 12))


def test_an_index_of_several_columns_is_read_by_columns() -> None:
    tensor = create((300, 4), "float32", HBM)
    index = create((128, 2), "uint32", SBUF)
    offsets = np.random.default_rng(0).integers(0, 300, (128, 2))
    view = tensor.ap([[4, 256], [1, 4]], vector_offset=index)
    rows = np.arange(1200).reshape(300, 4)[offsets.T.flatten()]
    np.testing.assert_array_equal(indices(view.pattern, offsets), rows)
    assert view.pattern.indirect is not None
    assert view.pattern.indirect.bound == 300


def test_scalar_offset_counts_in_the_dimension_of_the_base() -> None:
    tensor = create((512, 512), "float32", HBM)
    view = tensor.ap([[512, 128], [1, 256]], 0, scalar_offset=vector(1), indirect_dim=0)
    expected = np.arange(512 * 512).reshape(512, 512)[384:, :256]
    np.testing.assert_array_equal(indices(view.pattern, 384), expected)
    other = tensor.ap([[512, 4], [1, 8]], scalar_offset=Register(), indirect_dim=1)
    np.testing.assert_array_equal(indices(other.pattern, 7), expected[:4, :8] - 384 * 512 + 7)
    halves = tensor.ap([[1024, 4], [1, 8]], scalar_offset=Register(), dtype="bfloat16")
    assert halves.pattern.indirect is not None
    assert halves.pattern.indirect.stride == 1024


@pytest.mark.parametrize(("partitions", "group"), [(16, 16), (32, 16), (64, 32)])
def test_tensor_indirection_takes_offsets_in_snakes(partitions: int, group: int) -> None:
    tensor = create((partitions, 40), "float32", SBUF)
    index = create((partitions, 3), "uint32", SBUF)
    offsets = np.random.default_rng(0).integers(0, 40, (partitions, 3))
    count = 2 * group + 5
    view = tensor.indirect(index, count)
    assert view.shape == (partitions, count)
    assert view.pattern.indirect is not None
    assert view.pattern.indirect.bound == 40
    thirds = tensor[:, ::3].indirect(index).pattern.indirect
    assert thirds is not None
    assert thirds.bound == 40  # 0, 3, ... 39
    found = indices(view.pattern, offsets, group)
    for p, i in itertools.product(range(partitions), range(count)):
        own = p // group * group
        assert found[p, i] == p * 40 + offsets[own + i % group, i // group]
    if partitions > group:
        beyond = tensor.indirect(index, 3 * group + 1).pattern
        with pytest.raises(NkiError, match=r"need 4 columns, and the index has 3"):
            indices(beyond, offsets, group)


# --- reading and writing -----------------------------------------------------------------------


@given(chains(), st.integers(0, 2**32 - 1))
def test_what_is_written_is_read_again(case: tuple[NkiTensor, Model], seed: int) -> None:
    tensor, model = case
    kind = info(tensor.dtype).numpy
    raw = np.random.default_rng(seed).integers(0, 255, (*model.shape, kind.itemsize), np.uint8)
    raw[...] = raw.reshape(-1, kind.itemsize)[np.unique(model, return_inverse=True)[1]].reshape(
        raw.shape
    )  # repeated elements get equal values
    data = raw.view(kind)[..., 0]
    write(tensor, data)
    assert read(tensor).tobytes() == data.tobytes()


def test_gather_and_scatter_through_an_index_vector() -> None:
    tensor = create((8, 4), "int32", HBM)
    write(tensor, np.arange(32, dtype=np.int32).reshape(8, 4))
    view = tensor.vector_select(0, vector(3))
    np.testing.assert_array_equal(read(view, [6, 1, 6]), np.arange(32).reshape(8, 4)[[6, 1, 6]])
    write(view, np.full((3, 4), -1, np.int32), [0, 2, 4])
    assert read(tensor)[:, 0].tolist() == [-1, 4, -1, 12, -1, 20, 24, 28]


def test_a_pattern_of_a_whole_is_contiguous() -> None:
    assert is_contiguous(contiguous("int8", (3, 4, 5), partition=False))
    assert contiguous("int8", (3, 4, 5), partition=True).strides == (20, 5, 1)
