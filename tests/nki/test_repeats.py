"""Calls that are only written down (`nki.repeats`) leave what calls leave that are all checked.

Random kernels of a small vocabulary are recorded twice: as they are, and with every call taking the
long way. Instructions, lines, findings, names and errors are the same.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import neuronxcc.nki as first
import neuronxcc.nki.language as first_nl
import nki.isa as nisa
import nki.language as nl
from neuronxcc.targets import get_target
from nki.context import Issuer, use
from nki.errors import NkiError
from nki.indexing import index_by_parts
from nki.recorder import Recorder
from nki.recording import Block, Recording
from nki.repeats import Repeats
from nki.tensor import tensor_of

Body = Callable[[Any], None]

# Numbers that are equal and not the same, or not even equal to themselves.
NUMBERS = (0.0, -0.0, 0, 1, 1.0, True, False, 2.5, math.nan, math.inf, np.float32(0.0),
           np.float32(-0.0), np.int64(1), None, "1")  # fmt: skip
OPERATORS = (nl.add, nl.multiply, nl.maximum, nl.subtract, np.add, "add", "power", None, 3)
DTYPES = (nl.float32, nl.bfloat16, nl.int32, np.float32)


def described(block: Block) -> Any:
    loops = [
        (x.kind, x.counters, x.lower, x.upper, x.step, x.location, described(x.body))
        for x in block.loops
    ]
    return array("q", block.code), loops


def said_by(recording: Recording) -> tuple[Any, ...]:
    """What a recording says of its instructions, memory and findings."""
    templates = [
        (t.row.name, t.operands, tuple(t.attributes.items()), t.engine, t.accumulate, t.hidden)
        for t in recording.templates
    ]
    storages = [
        (s.region, s.dtype, s.shape, s.address, s.name, s.depth) for s in recording.storages
    ]
    return (
        described(recording.body), repr(templates), storages, recording.locations,
        recording.findings,
    )  # fmt: skip


def left_by(body: Body, *, long_way: bool) -> Any:
    """Everything that a kernel leaves."""
    recorder = Recorder("kernel", get_target("trn2"))
    error = None
    try:
        with recorder.active():
            given = recorder.argument((256, 256), "float32", "a")
            if long_way:
                with use(issuer=Issuer(recorder.issue)):
                    body(given)
            else:
                body(given)
    except NkiError as caught:
        error = str(caught)
    return (*said_by(recorder.recording), recorder.names, error)


def check(body: Body) -> None:
    quick, slow = (left_by(body, long_way=long_way) for long_way in (False, True))
    assert quick == slow


def tried(step: Callable[[], Any], errors: list[str]) -> None:
    """Do something that may be refused, and go on."""
    try:
        step()
    except NkiError as caught:
        errors.append(str(caught))


@st.composite
def spans(draw: st.DrawFn, extent: int) -> slice:
    size = draw(st.sampled_from([1, 16, extent // 2, extent]))
    return slice(start := draw(st.sampled_from([0, extent - size])), start + size)


@st.composite
def programs(draw: st.DrawFn) -> list[Any]:
    """Steps: what to do, and with what; a few distinct ones, each several times."""
    kinds = ("new", "load", "store", "scalar", "tensor", "activation", "matmul", "set", "copy",
             "select", "loop")  # fmt: skip
    step = st.tuples(
        st.sampled_from(kinds),
        st.lists(st.integers(0, 5), min_size=3, max_size=3),
        spans(64),
        spans(64),
        st.sampled_from(NUMBERS),
        st.sampled_from(OPERATORS),
        st.sampled_from(DTYPES),
        st.sampled_from([nl.sbuf, nl.psum, "sbuf"]),
        st.booleans(),
    )
    distinct = draw(st.lists(step, min_size=1, max_size=5))
    return draw(st.lists(st.sampled_from(distinct), min_size=2, max_size=16))


def run(steps: list[Any], a: Any, errors: list[str]) -> None:
    """Do the steps; tiles are chosen among those that there are."""
    tiles = [nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2)]
    tiles.append(nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum))
    nisa.dma_copy(dst=tiles[0], src=a[:64, :64])
    for step in steps:
        tried(functools.partial(do, step, a, tiles), errors)


def do(step: Any, a: Any, tiles: list[Any]) -> None:  # noqa: C901, PLR0912 (a branch a kind)
    kind, chosen, rows, columns, number, op, dtype, buffer, flag = step
    x, y, z = (tiles[i % len(tiles)] for i in chosen)
    here = (rows, columns)
    if kind == "new":
        address = (0, 2048 * (len(tiles) % 3)) if flag else None
        tiles.append(nl.ndarray((64, 64), dtype=dtype, buffer=buffer, address=address))
    elif kind == "load":
        nisa.dma_copy(dst=x[here], src=a[rows, columns])
    elif kind == "store":
        nisa.dma_copy(a[here], x[here], name="store" if flag else None)
    elif kind == "scalar":
        nisa.tensor_scalar(dst=x[here], data=y[here], op0=op, operand0=number)
    elif kind == "tensor" and flag:
        nisa.tensor_tensor(x[here], y[here], z[here], op)
    elif kind == "tensor":
        nisa.tensor_tensor(dst=x, data1=x, data2=z, op=op)
    elif kind == "activation":
        nisa.activation(data=y[here], dst=x[here], op=nl.exp, scale=number)
    elif kind == "matmul":
        adds = {"accumulate": number} if flag else {}
        nisa.nc_matmul(dst=z[here], stationary=y[:, rows], moving=x[:, columns], **adds)
    elif kind == "set":
        nisa.memset(dst=x[here], value=number)
    elif kind == "copy":
        x[here] = y[here]
    elif kind == "select":
        nisa.affine_select(
            dst=x[here], pattern=[[1 if flag else -1, x[here].shape[1]]], channel_multiplier=1,
            on_true_tile=y[here], on_false_value=number, offset=0,
        )  # fmt: skip
    else:
        for _ in nl.dynamic_range(0, 3):
            nisa.tensor_copy(dst=x[here], src=y[here])
            tiles.append(nl.ndarray((64, 64), dtype=nl.float32, buffer=buffer))
            nisa.nc_matmul(dst=tiles[2], stationary=x, moving=y)


@given(programs())
def test_random_kernels_leave_the_same(steps: list[Any]) -> None:
    errors: list[list[str]] = []

    def body(a: Any) -> None:
        errors.append([])
        run(steps, a, errors[-1])

    check(body)
    assert errors[0] == errors[1]


def test_every_call_is_checked_that_differs_in_more_than_places() -> None:
    def body(a: Any) -> None:
        tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        for width in (64, 64, 32, 65):
            nisa.dma_copy(dst=tile, src=a[:128, :width])

    check(body)
    assert left_by(body, long_way=False)[-1] is not None


def test_a_repeated_call_is_written_down_with_its_own_line_name_and_places() -> None:
    recorder = Recorder("kernel", get_target("trn2"))
    with recorder.active():
        a = recorder.argument((256, 64), "float32", "a")
        handles = []
        for i in range(3):
            tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
            name = f"load {i}"
            handles.append(nisa.dma_copy(dst=tile, src=a[i * 64 : i * 64 + 128], name=name))
        nisa.dma_copy(dst=tile, src=a[0:128])
    events = list(recorder.recording.events())
    assert len(recorder.recording.templates) == 1
    assert [handle.handle for handle in handles] == [0, 1, 2]
    assert [event.places for event in events] == [
        ((1, 0), (0, 0)), ((2, 0), (0, 64 * 256)), ((3, 0), (0, 128 * 256)), ((3, 0), (0, 0))
    ]  # fmt: skip
    lines = [recorder.recording.locations[event.location][1] for event in events]
    assert lines[0] == lines[1] == lines[2] == lines[3] - 1
    assert [recorder.names[f"load {i}"] for i in range(3)] == [
        [recorder.recording.locations[events[0].location]]
    ] * 3


def test_reads_of_what_nothing_has_written_are_found_in_repeated_calls() -> None:
    recorder = Recorder("kernel", get_target("trn2"))
    with recorder.active():
        total = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        tiles = [nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf) for _ in range(4)]
        for tile in tiles[:3]:
            nisa.memset(dst=tile, value=1.0)
        for tile in tiles:
            nisa.tensor_copy(dst=total, src=tile)
    assert [finding.code for finding, _ in recorder.recording.findings] == ["NKI204"]


def test_names_are_told_wherever_they_stand() -> None:
    def body(a: Any) -> None:
        tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        for i in range(2):
            nisa.dma_copy(dst=tile, src=a[:128, i * 64 : i * 64 + 64], name="by name")
            nisa.tensor_copy(tile, tile, nisa.engine.vector, "in its place")

    check(body)
    *_, names, _ = left_by(body, long_way=False)
    assert {name: len(where) for name, where in names.items()} == {
        "by name": 2, "in its place": 2
    }  # fmt: skip


def test_numbers_that_are_equal_and_not_the_same_are_not_taken_for_each_other() -> None:
    def body(a: Any) -> None:
        tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=a[:128, :64])
        errors: list[str] = []
        for number in (*NUMBERS, *reversed(NUMBERS)):
            for step in (
                lambda n: nisa.memset(dst=tile, value=n),
                lambda n: nisa.activation(dst=tile, op=nl.exp, data=tile, scale=n),
                lambda n: nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=n),
            ):
                tried(functools.partial(step, number), errors)

    check(body)


# --- parts of tensors ----------------------------------------------------------------------------


@st.composite
def parts(draw: st.DrawFn, sizes: tuple[int, ...]) -> tuple[Any, ...]:
    """An index expression for some dimensions, mostly within them."""
    made: list[Any] = []
    for n in sizes[: draw(st.integers(0, len(sizes)))]:
        low = draw(st.integers(-1, n))
        high = draw(st.integers(low, n + 1))
        made.append(
            draw(
                st.sampled_from(
                    [
                        slice(None), slice(low, high), slice(low, None), slice(None, high), low,
                        slice(low, high, 2), nl.ds(low, high - low), np.int64(low), True,
                    ]
                )
            )
        )  # fmt: skip
    if draw(st.integers(0, 4)) == 0:
        made.insert(draw(st.integers(0, len(made))), ...)
    return tuple(made)


def shown(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except NkiError as error:
        return type(error), error.code, error.what, error.remedy


@pytest.mark.parametrize("key", [(0, 0, 0), (slice(None), 0, 0), (slice(2, 5), 3, -1)])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.shared_hbm])
def test_the_dimension_that_stays_keeps_its_own_stride(key: Any, buffer: Any) -> None:
    recorder = Recorder("kernel", get_target("trn2"))
    with recorder.active():
        tensor = nl.ndarray((6, 5, 4), nl.bfloat16, buffer=buffer)
        assert tensor[key].pattern == index_by_parts(tensor.pattern, key)


@given(data=st.data())
def test_parts_are_those_that_are_taken_dimension_by_dimension(data: st.DataObject) -> None:
    """Parts of parts, of tensors of every memory, the same sizes at other places among them."""
    recorder = Recorder("kernel", get_target("trn2"))
    with recorder.active():
        address = data.draw(st.sampled_from([(32, 256), (64, 0), None]))
        tensors = [
            recorder.argument((6, 5, 4), "float32", "a"),
            nl.ndarray((6, 5, 4), nl.bfloat16, buffer=nl.sbuf),
            nl.ndarray((6, 5, 4), nl.float32, buffer=nl.sbuf, address=address),
            nl.ndarray((6, 5, 4), nl.float32, buffer=nl.psum),
        ]
        for _ in range(data.draw(st.integers(1, 12))):
            tensor = data.draw(st.sampled_from(tensors))
            key = data.draw(parts(tensor.shape))
            wanted = shown(functools.partial(index_by_parts, tensor.pattern, key))
            got = shown(functools.partial(tensor.__getitem__, key))
            if isinstance(wanted, tuple) and not hasattr(wanted, "strides"):
                assert got == wanted
                continue
            assert got.pattern == wanted
            assert (got.shape, got.dtype, got.offset) == (wanted.shape, wanted.dtype, wanted.offset)
            fresh = tensor_of(tensor.storage, wanted)
            assert recorder.forms.layout(got) is recorder.forms.layout(fresh)
            tensors.append(got)


def views_of(draw: st.DrawFn, tensor: Any) -> tuple[str, tuple[Any, ...]]:
    """A method that shows a tensor otherwise, and its arguments, mostly right ones."""
    rank = len(tensor.shape)
    dim = st.integers(-1, rank)
    n = tensor.shape[-1]
    pairs = [[s, n] for s, n in zip(tensor.strides, tensor.shape, strict=True)]
    pairs[-1] = [1, draw(st.integers(0, n + 1))]
    forms: list[tuple[str, tuple[Any, ...]]] = [
        ("reshape", ((*tensor.shape[:-1], n // 2, 2),)),
        ("reshape", ([tensor.shape[0], -1],)),
        ("permute", (tuple(draw(st.permutations(range(rank)))),)),
        ("expand_dim", (draw(dim),)),
        ("squeeze_dim", (draw(dim),)),
        ("broadcast", (draw(dim), 3)),
        ("flatten_dims", (draw(dim), draw(dim))),
        ("reshape_dim", (draw(dim), (2, -1))),
        ("reshape_dim", (draw(dim), [True, n])),
        ("ap", (pairs,)),
        ("ap", (pairs, draw(st.integers(-3, 24)))),
        ("ap", ([tuple(pair) for pair in pairs], np.int64(2))),
        ("ap", ([[1, 2, 3]],)),
        ("ap", (3,)),
    ]
    chosen: tuple[str, tuple[Any, ...]] = draw(st.sampled_from(forms))
    return chosen


@given(data=st.data())
def test_views_are_those_of_tensors_that_nobody_has_used(data: st.DataObject) -> None:
    """What a layout remembers of its views is what is worked out without it."""
    recorder = Recorder("kernel", get_target("trn2"))
    with recorder.active():
        tensors = [
            recorder.argument((6, 5, 4), "float32", "a"),
            nl.ndarray((6, 5, 4), nl.bfloat16, buffer=nl.sbuf),
            nl.ndarray((6, 1, 4), nl.float32, buffer=nl.sbuf, address=(32, 256)),
        ]
        for _ in range(data.draw(st.integers(1, 12))):
            tensor = data.draw(st.sampled_from(tensors))
            name, given_ = views_of(data.draw, tensor)  # type: ignore[arg-type]
            plain = tensor_of(tensor.storage, tensor.pattern)  # no layout: the long way
            wanted = either(functools.partial(getattr(plain, name), *given_))
            got = either(functools.partial(getattr(tensor, name), *given_))
            if isinstance(wanted, str):
                assert got == wanted
                continue
            assert got.pattern == wanted.pattern
            if not tensor.storage.exceeded:
                assert recorder.forms.layout(got) is recorder.forms.layout(wanted)
                tensors.append(got)


def either(make: Callable[[], Any]) -> Any:
    """A view, or what is said instead of it; lines of this test aside."""
    try:
        return make()
    except NkiError as error:
        return f"{type(error)} {error.code} {error.what} {error.remedy}"
    except TypeError as error:
        return str(error)


def test_one_place_that_calls_many_instructions_knows_each(monkeypatch: pytest.MonkeyPatch) -> None:
    # All instructions of the first generation are called at one place of its package.
    by_key = Repeats._by_key
    looked_up = []

    def counted(self: Repeats, row: Any, *more: Any) -> Any:
        looked_up.append(row.name)
        return by_key(self, row, *more)

    monkeypatch.setattr(Repeats, "_by_key", counted)

    @first.jit
    def kernel(a: Any, b: Any) -> Any:
        out = first_nl.ndarray(a.shape, dtype=a.dtype, buffer=first_nl.shared_hbm)
        for i in range(32):
            at = slice(i * 8, i * 8 + 8)
            first_nl.store(out[at], first_nl.load(a[at]) * first_nl.load(b[at]) + 1.0)
        return out

    a, b = np.random.default_rng(0).normal(size=(2, 256, 16)).astype(np.float32)
    np.testing.assert_array_equal(kernel(a, b), a * b + 1)
    # The first call of each kind and the second one, of 160 calls.
    assert len(looked_up) < 16
