"""What kernels of the vendor's library rely on, and the letter of the documents does not say."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import neuron_dtypes
import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nki.dtypes import NAMES, info
from nki.errors import NkiError, NkiWarning

pytestmark = pytest.mark.usefixtures("reference_executor")
PACKED = [name for name in NAMES if info(name).is_packed]


# --- names ----------------------------------------------------------------------------------------


def test_import_nki_is_enough_to_name_its_parts() -> None:
    code = (
        "import nki\n"
        "assert nki.dtype.bfloat16 == nki.language.bfloat16\n"
        "assert nki.isa.dma_copy and nki.typing.tensor and nki.collectives.spmd\n"
        "assert {'dtype', 'jit'} <= set(dir(nki))\n"
        "try:\n    nki.nothing\nexcept AttributeError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "module 'nki' has no attribute 'nothing'"


# --- data classes ---------------------------------------------------------------------------------


def _plain(kind: type) -> type:
    return kind


@pytest.mark.parametrize("decorate", [_plain, dataclass], ids=["plain", "dataclass"])
def test_fields_without_annotation_and_without_a_value(decorate: Callable[[type], type]) -> None:
    class Config(nl.NKIObject):
        rows: int
        scale = 2.0
        columns: int = 4
        names = ["a"]  # noqa: RUF012 (what is tested)
        _private = 1
        LIMITS: ClassVar[int] = 8

        def area(self) -> Any:
            return self.rows * self.columns

        @property
        def twice(self) -> Any:
            return 2 * self.rows

    kind: Any = decorate(Config)
    made = kind(3)
    assert vars(made) == {"rows": 3, "scale": 2.0, "columns": 4, "names": ["a"]}
    assert (made.area(), made.twice, made.LIMITS, made._private) == (12, 6, 8, 1)
    assert kind().rows is None
    assert vars(kind(1, 2, 3, [])) == {"rows": 1, "scale": 2, "columns": 3, "names": []}
    assert kind(scale=5, rows=1).scale == 5
    made.names.append("b")
    assert kind().names == ["a"]
    for args, kwargs in (((1, 2, 3, 4, 5), {}), ((1,), {"rows": 2}), ((), {"other": 1})):
        with pytest.raises(TypeError, match=r"Config\(\)"):
            kind(*args, **kwargs)


def test_data_classes_keep_what_python_gives_them() -> None:
    @dataclass(frozen=True)
    class Base(nl.NKIObject):
        a: int
        items: list[int] = dataclasses.field(default_factory=list)

    @dataclass(frozen=True)
    class Derived(Base):
        b: int = 5
        given: dataclasses.InitVar[int] = 7

        def __post_init__(self, given: int) -> None:
            object.__setattr__(self, "kept", given)

    made = Derived(1)
    assert vars(made) == {"a": 1, "items": [], "b": 5, "kept": 7}
    assert vars(Derived(1, [2], 3, 4)) == {"a": 1, "items": [2], "b": 3, "kept": 4}
    assert made == Derived(1) != Derived(2)
    assert dataclasses.replace(made, a=4, given=1).a == 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.a = 2  # type: ignore[misc]

    class Own(nl.NKIObject):
        a: int

        def __init__(self, a: int) -> None:
            self.a = 2 * a

    class Heir(Own):
        pass

    assert Heir(2).a == 4


@pytest.mark.parametrize("decorate", [lambda kind: kind, dataclass])
def test_objects_are_equal_if_their_attributes_are(decorate: Any) -> None:
    @decorate
    class Config(nl.NKIObject):
        a: int
        b: Any = None

    class Other(nl.NKIObject):
        a: int
        b: Any = None

    kind: Any = Config
    other: Any = Other
    assert kind(1) == kind(1, None) != kind(1, 2)
    assert kind(1) != other(1)
    assert kind(1, kind(2)) == kind(1, kind(2))
    assert [kind(1), kind(3)].index(kind(3)) == 1

    @nki.jit
    def kernel(x: Any) -> Any:
        tile, same = nl.load(x), nl.load(x)
        assert tile == tile  # noqa: PLR0124
        assert tile != same  # another tensor, whatever it holds
        assert kind(1, tile) == kind(1, tile) != kind(1, same)
        assert len({tile, same}) == 2
        return x

    x = np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(kernel(x), x)
    assert len({other(1), other(1), other(2)}) == 2


def test_a_kernel_takes_a_slice() -> None:
    @nki.jit
    def kernel(x: Any, rows: slice) -> Any:
        out = nl.ndarray(x[rows].shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(out, x[rows])
        return out

    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    for rows in (slice(0, 2), slice(1, 4), slice(0, 4, 2), slice(None)):
        np.testing.assert_array_equal(kernel(x, rows), x[rows])


def test_a_kernel_takes_such_an_object() -> None:
    @dataclass
    class Given(nl.NKIObject):
        x: Any
        bias: Any
        scale = 2.0

    make: Any = Given

    @nki.jit
    def kernel(config: Any) -> Any:
        out = nl.ndarray(config.x.shape, config.x.dtype, nl.shared_hbm)
        tile = nl.ndarray(config.x.shape, config.x.dtype)
        nisa.dma_copy(tile, config.x)
        assert config.bias is None
        nisa.tensor_scalar(tile, tile, op0=nl.multiply, operand0=config.scale)
        nisa.dma_copy(out, tile)
        return out

    x = np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(kernel(make(x)), 2 * x)
    np.testing.assert_array_equal(kernel(make(x=x, scale=3.0)), 3 * x)


# --- instructions ---------------------------------------------------------------------------------

INTEGERS = [name for name in NAMES if info(name).is_int]


@given(st.sampled_from(INTEGERS), st.data())
def test_memset_of_integers_takes_whole_floats(dtype: str, data: Any) -> None:
    limits = np.iinfo(info(dtype).numpy)
    value = data.draw(
        st.integers(int(limits.min), int(limits.max)).map(float)
        | st.sampled_from([0.5, float("nan"), float("inf"), 2.0**32, -(2.0**31) - 1])
    )

    def kernel() -> Any:
        tile = nl.ndarray((2, 3), dtype)
        nisa.memset(tile, value)
        out = nl.ndarray((2, 3), dtype, nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    if value.is_integer() and limits.min <= value <= limits.max:
        assert (nki.jit(kernel)() == int(value)).all()
    else:
        with pytest.raises(NkiError, match=r"takes a whole number of its range \[NKI140\]"):
            nki.jit(kernel)()


def test_a_view_out_of_bounds_that_nothing_uses() -> None:
    @nki.jit
    def kernel(x: Any, use: str) -> Any:
        tile, out = (nl.ndarray(x.shape, x.dtype, b) for b in (nl.sbuf, nl.shared_hbm))
        nisa.dma_copy(tile, x)
        beyond = tile.ap([[6, 4], [1, 9]])
        far = out.ap([[6, 9], [1, 6]])
        nisa.dma_copy(out[:, 0:4], beyond[:, 0:4])
        nisa.dma_copy(out[:, 4:6], tile[:, 4:6])
        if use == "instruction":
            nisa.memset(beyond[:, 3:8], 1)
        elif use == "hbm":
            nisa.dma_copy(far[5:6], tile[0:1])
        elif use == "value":
            print(beyond)  # noqa: T201 (what is tested)
        return far if use == "result" else out

    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_array_equal(kernel(x, ""), x)
    for use in ("instruction", "hbm", "value", "result"):
        with pytest.raises(NkiError, match=r"leaves its tensor of 24 elements.*\[NKI022\]"):
            kernel(x, use)


@given(st.data())
def test_ap_of_a_part_of_each_partition_may_step_by_its_own_row(data: Any) -> None:
    columns = data.draw(st.integers(2, 12))
    first = data.draw(st.integers(0, columns - 1))
    last = data.draw(st.integers(first + 1, columns))
    with nki_core():
        whole = nl.ndarray((8, columns), nl.float32)
        part = whole[2:6, first:last]
        own = part.ap([[last - first, 4], [1, last - first]])
        assert own.pattern == part.ap([[columns, 4], [1, last - first]]).pattern
        if columns + 1 not in (columns, last - first):
            with pytest.raises(NkiError, match=r"write .* as the first stride.*NKI023"):
                part.ap([[columns + 1, 4], [1, 1]])


@pytest.mark.parametrize(
    ("view", "step"),
    [
        # Two elements, shown twice: as many as two partitions have, and the view's own row.
        (lambda t: t[0:4, 0:2][::2].expand_dim(1).broadcast(1, 2), 4),
        (lambda t: t[0:4].expand_dim(1).broadcast(1, 2), 4),
        # Every other partition, of which a part is shown.
        (lambda t: t[0:8:2, 0:1], 1),
    ],
)
def test_a_step_over_partitions_is_not_a_views_own_row(view: Any, step: int) -> None:
    with nki_core():
        part = view(nl.ndarray((8, 2), nl.float32))
        assert math.prod(part.shape[1:]) == step
        with pytest.raises(NkiError, match=rf"steps {step} elements .*write 2 as the first stride"):
            part.ap([[step, 2], [1, 1]])


def test_a_step_of_minus_one_is_no_row_of_a_view_without_whole_items() -> None:
    with nki_core():
        part = nl.ndarray((8, 6), nl.bfloat16)[:, 0:3]
        with pytest.raises(NkiError, match=r"steps -1 elements .*write 3 as the first stride"):
            part.ap([[-1, 2], [1, 1]], dtype=nl.float32)


def nki_core() -> Any:
    from nki.context import use  # noqa: PLC0415
    from nki.core import Core, default_target  # noqa: PLC0415

    return use(core=Core(default_target()))


def test_dma_transpose_without_descriptor_engine_is_a_finding() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        tile = nl.ndarray((3, 2), x.dtype)
        nisa.dma_transpose(tile, x, dge_mode=nisa.dge_mode.none)
        out = nl.ndarray((3, 2), x.dtype, nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with pytest.warns(NkiWarning, match=r"dge_mode.none is not documented.*NKI134"):
        np.testing.assert_array_equal(kernel(x), x.T)


@pytest.mark.parametrize("ranks", [9, 16, 33])
def test_more_ranks_than_a_device_has(ranks: int) -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        ncc.all_reduce([x], [out], ncc.ReplicaGroup([list(range(ranks))]), nl.add)
        return out

    xs = [np.full((2, 2), i, np.float32) for i in range(ranks)]
    for result in ncc.spmd(kernel, ranks)([(x,) for x in xs]):
        np.testing.assert_array_equal(result, sum(xs))


# --- packed types on the host ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", PACKED)
def test_packed_arrays_of_numpy(dtype: str) -> None:
    values = np.array([[0.5, -1, 6, 0, 2, 3, -4, 1.5]], np.float32)
    packed = neuron_dtypes.static_cast(values, dtype)
    assert packed.shape == (1, 2)
    assert packed.dtype == info(dtype).numpy
    np.testing.assert_array_equal(neuron_dtypes.static_cast(packed, np.float32), values)
    wide = neuron_dtypes.static_cast(packed, ml_dtypes.bfloat16)
    np.testing.assert_array_equal(wide, values.astype(ml_dtypes.bfloat16))
    for other in PACKED:
        again = neuron_dtypes.static_cast(neuron_dtypes.static_cast(packed, other), dtype)
        np.testing.assert_array_equal(again, packed)
    zeros = np.zeros((3, 2), dtype=getattr(nl, dtype))
    assert neuron_dtypes.sizeinbytes(zeros.dtype) == info(dtype).itemsize
    assert neuron_dtypes.is_float_type(zeros.dtype)
    unpacked = neuron_dtypes.static_cast(zeros, np.float32)
    np.testing.assert_array_equal(unpacked, np.zeros((3, 8), np.float32))


@pytest.mark.parametrize("dtype", [*PACKED, "tfloat32"])
def test_kernels_know_packed_arrays(dtype: str) -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        assert x.dtype == dtype
        out, tile = (nl.ndarray(x.shape, x.dtype, b) for b in (nl.shared_hbm, nl.sbuf))
        nisa.dma_copy(tile, x)
        nisa.dma_copy(out, tile)
        return out, out[1:2]

    x = np.arange(1, 7, dtype=info(dtype).numpy).reshape(2, 3).view(np.dtype(dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out, part = kernel(x)
        again, _ = kernel(out)
        kernel(np.concatenate([part.copy(), part.copy()]).view(np.dtype(dtype)))
    np.testing.assert_array_equal(again, x)
    np.testing.assert_array_equal(part, x[1:2])
