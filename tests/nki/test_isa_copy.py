"""tensor_copy, memset, tensor_copy_predicated, and the DMA copies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki.dtypes import NAMES, info
from nki.errors import NkiTypeError, NkiValidationError
from nki.isa import enums
from nki.isa.spec import Tile
from tests.nki.isa_tools import T, call, out, run, values


def test_tensor_copy_keeps_integers_that_float32_has_not() -> None:
    x = T([[2**24 + 1, -(2**31)]], "int32")
    result, _ = run("tensor_copy", out(1, 2, dtype="int32"), x)
    assert values(result) == [[2**24 + 1, -(2**31)]]


def test_tensor_copy_converts_through_float32() -> None:
    x = T([[2**24 + 1, 5]], "int32")
    result, _ = run("tensor_copy", out(1, 2, dtype="uint32"), x)
    assert values(result) == [[2**24, 5]]
    result, _ = run("tensor_copy", out(1, 2, dtype="int8"), T([[1.5, 300.0]]))
    assert values(result) == [[2, 127]]


@pytest.mark.parametrize("dtype", NAMES)
@settings(max_examples=10)
@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6))
def test_copies_of_one_type_keep_every_bit(dtype: str, bits: list[int]) -> None:
    kind = info(dtype)
    pattern = np.array(bits, np.uint32).astype(f"u{kind.itemsize}").reshape(2, 3)
    x = out(2, 3, dtype=dtype)
    x.data = pattern.view(kind.numpy)
    for name in ("tensor_copy", "dma_copy"):
        result, _ = run(name, out(2, 3, dtype=dtype), x)
        assert np.array_equal(result["dst"].view(pattern.dtype), pattern)


def test_tensor_copy_reshapes_free_dimensions() -> None:
    x = T(np.arange(12).reshape(2, 2, 3))
    result, _ = run("tensor_copy", out(2, 6), x)
    assert values(result) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]


def test_tensor_copy_engines() -> None:
    psum = out(2, 2, region="psum")
    with pytest.raises(
        NkiValidationError, match="cannot run on the scalar engine of NeuronCore-v2"
    ):
        call("tensor_copy", out(2, 2), psum, engine=enums.engine.scalar, generation=2)
    with pytest.raises(NkiValidationError, match="psum, which the gpsimd engine cannot access"):
        call("tensor_copy", out(2, 2), psum, engine=enums.engine.gpsimd)
    assert call("tensor_copy", out(2, 2), psum).engine == "vector"
    with pytest.raises(NkiValidationError, match="cannot convert float8_e5m2_x4 to float32"):
        call("tensor_copy", out(2, 2), out(2, 2, dtype="float8_e5m2_x4"))


def test_the_documented_text_for_too_many_partitions() -> None:
    with pytest.raises(
        AssertionError, match="tensor_tensor data1 partition dimension 256 exceeds maximum 128"
    ):
        call("tensor_tensor", out(256, 4), out(256, 4), out(256, 4), "add")


def test_memset() -> None:
    assert values(run("memset", out(2, 2), 1.5)[0]) == [[1.5, 1.5]] * 2
    assert values(run("memset", out(1, 2, dtype="int32"), 2**31 - 1)[0]) == [[2**31 - 1] * 2]
    assert values(run("memset", out(1, 2, dtype="float32"), 3)[0]) == [[3.0, 3.0]]
    for zero in (0, 0.0, -0.0):
        assert values(run("memset", out(1, 2, dtype="float4_e2m1fn_x4"), zero)[0]) == [[0, 0]]
    assert values(run("memset", out(1, 2, dtype="int8"), -3.0)[0]) == [[-3, -3]]
    assert values(run("memset", out(1, 1, dtype="bfloat16"), 1 + 2**-8)[0]) == [[1.0]]


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        ("int32", 2.5, "memset value 2.5 does not fit int32"),
        ("uint8", 256, "memset value 256 does not fit uint8"),
        ("float8_e5m2_x4", 1, "memset value of float8_e5m2_x4 must be 0, got 1"),
    ],
)
def test_memset_refuses(dtype: str, value: float, text: str) -> None:
    with pytest.raises(NkiValidationError, match=text) as caught:
        call("memset", out(2, 2, dtype=dtype), value)
    assert caught.value.code == "NKI140"


def test_memset_cost_halves_for_zero_halves() -> None:
    for value, dtype, want in ((0, "bfloat16", 256), (1, "bfloat16", 512), (0, "float32", 512)):
        made = call("memset", Tile((128, 512), dtype), value)
        cost = made.instruction.cost
        assert cost is not None
        assert cost.cycles(made) == want


def test_predicated_copy() -> None:
    dst = T([[1.0, 2.0, 3.0]])
    predicate = T([[0, 1, 7]], "uint8")
    assert values(run("tensor_copy_predicated", dst, T([[4.0, 5.0, 6.0]]), predicate)[0]) == [
        [1.0, 5.0, 6.0]
    ]
    assert values(run("tensor_copy_predicated", dst, 9.0, predicate, reverse_pred=True)[0]) == [
        [9.0, 5.0, 6.0]
    ]


def test_predicated_copy_matches_elements_across_ranks() -> None:
    dst, predicate = T(np.zeros((2, 2, 2))), T([[1, 0, 0, 1]] * 2, "uint16")
    result, _ = run("tensor_copy_predicated", dst, T([[1.0, 2.0, 3.0, 4.0]] * 2), predicate)
    assert values(result) == [[[1, 0], [0, 4]]] * 2


def test_predicated_copy_refuses() -> None:
    psum = {"region": "psum"}
    with pytest.raises(NkiValidationError, match="src and predicate are both in psum"):
        call(
            "tensor_copy_predicated", out(1, 2), out(1, 2, **psum),
            out(1, 2, dtype="uint8", **psum),
        )  # fmt: skip
    with pytest.raises(NkiValidationError, match="predicate has data type int32, allowed: uint16"):
        call("tensor_copy_predicated", out(1, 2), out(1, 2), out(1, 2, dtype="int32"))
    with pytest.raises(NkiValidationError, match="dst is float32 and src is bfloat16"):
        call(
            "tensor_copy_predicated", out(1, 2), out(1, 2, dtype="bfloat16"),
            out(1, 2, dtype="uint8"),
        )  # fmt: skip


# DMA


def hbm(*shape: int, dtype: str = "float32", **more: object) -> Tile:
    return Tile(shape, dtype, "hbm", **more)  # type: ignore[arg-type]


def test_dma_copy_converts_through_float32() -> None:
    result, _ = run("dma_copy", out(2, 2, dtype="bfloat16"), T([[1, 2], [3, 257]], "int32"))
    assert values(result) == [[1, 2], [3, 256]]
    result, _ = run("dma_copy", out(4), T([[1.0, 2.0], [3.0, math.inf]], region="hbm"))
    assert result["dst"].tolist() == [1, 2, 3, math.inf]


@pytest.mark.parametrize(
    ("kwargs", "generation", "text"),
    [
        ({"src": hbm(4, 5)}, 4, r"dst of shape \(4, 4\) and src of shape \(4, 5\) differ"),
        ({"src": Tile((4, 4), "float32", "psum")}, 4, "src is in psum, allowed: hbm, private_hbm"),
        ({"priority": 4}, 4, "priority must be between 0 and 3, got 4"),
        ({"priority": 1}, 3, "priority does not exist on NeuronCore-v3"),
        ({"dge_mode": enums.dge_mode.hwdge}, 2, "dge_mode.hwdge does not exist on NeuronCore-v2"),
        ({"engine": enums.engine.sync}, 3, "engine sync needs dge_mode.hwdge"),
        (
            {"dge_mode": enums.dge_mode.hwdge, "src": hbm(4, 4, dtype="bfloat16")}, 3,
            "moves bytes, but src is bfloat16 and dst is float32",
        ),
        (
            {"dge_mode": enums.dge_mode.hwdge, "src": hbm(4, 4, indirect=True)}, 3,
            "with vector_offset needs software descriptors, got dge_mode.hwdge",
        ),
        (
            {"dge_mode": enums.dge_mode.none, "src": hbm(4, 4, dynamic=True)}, 3,
            "with a dynamic address cannot use dge_mode.none",
        ),
    ],
)  # fmt: skip
def test_dma_copy_refuses(kwargs: dict[str, Any], generation: int, text: str) -> None:
    arguments: dict[str, Any] = {"dst": Tile((4, 4), "float32"), "src": hbm(4, 4), **kwargs}
    with pytest.raises(NkiValidationError, match=text):
        call("dma_copy", generation=generation, **arguments)


def test_dma_copy_takes_a_trigger_engine() -> None:
    made = call(
        "dma_copy", Tile((4, 4), "float32"), hbm(4, 4), dge_mode=enums.dge_mode.hwdge,
        engine=enums.engine.scalar,
    )  # fmt: skip
    assert made.engine == "dma"


def test_dma_copy_cost_is_the_start_and_the_bytes() -> None:
    made = call("dma_copy", Tile((128, 4096), "float32"), hbm(128, 4096), generation=3)
    cost = made.instruction.cost
    assert cost is not None
    assert cost.unit == "ns"
    assert cost.cycles(made) == pytest.approx(1300 + 128 * 4096 * 4 / 368)


@pytest.mark.parametrize(
    ("shape", "axes"), [((2, 3), (1, 0)), ((2, 3, 4), (2, 1, 0)), ((2, 3, 4, 5), (3, 1, 2, 0))]
)
def test_dma_transpose(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = T(np.arange(np.prod(shape)).reshape(shape), "int32", "hbm")
    want = x.data.transpose(axes)
    for given_axes in (None, axes):
        result, _ = run("dma_transpose", out(*want.shape, dtype="int32"), x, axes=given_axes)
        assert np.array_equal(result["dst"], want)


@pytest.mark.parametrize(
    ("dst", "src", "kwargs", "text"),
    [
        ((3, 2), (2, 3), {"axes": (0, 1)}, r"axes \(0, 1\) of a 2-dimensional src"),
        ((4, 3), (1, 3, 4), {}, r"dst has shape \(4, 3\), the transpose of src has \(4, 3, 1\)"),
        ((3, 2), (2, 3), {"dge_mode": enums.dge_mode.swdge}, "cannot use dge_mode.swdge without"),
        (
            (128, 8),
            (8, 128),
            {"dge_mode": enums.dge_mode.hwdge},
            "first dimension of 8: it must be 16",
        ),
        ((3, 2), (2, 3), {"oob_mode": enums.oob_mode.skip}, "skip needs an operand with a dynamic"),
    ],
)
def test_dma_transpose_refuses(
    dst: tuple[int, ...], src: tuple[int, ...], kwargs: dict[str, Any], text: str
) -> None:
    with pytest.raises(NkiValidationError, match=text):
        call("dma_transpose", Tile(dst, "bfloat16"), hbm(*src, dtype="bfloat16"), **kwargs)


@pytest.mark.parametrize(
    ("index", "rows", "text"),
    [
        (Tile((128, 1), "uint32"), 128, None),
        (Tile((128, 2), "uint32"), 256, None),
        (Tile((64, 2), "uint32"), 128, "several columns need 128 partitions"),
        (Tile((128, 1), "int32"), 128, "uint32, 2-D, in sbuf is needed"),
        (Tile((64, 1), "uint32"), 128, "64 indices for 128 rows"),
        (Tile((128, 1), "uint32"), 120, "120 gathered rows: they must be a multiple of 16"),
    ],
)
def test_gathering_dma_transpose(index: Tile, rows: int, text: str | None) -> None:
    src = hbm(rows, 64, dtype="bfloat16", indirect=True, index=index)
    dst = Tile((64, rows), "bfloat16")
    if text is None:
        call("dma_transpose", dst, src)
        with pytest.raises(NkiValidationError, match="does not exist on NeuronCore-v2"):
            call("dma_transpose", dst, src, generation=2)
        return
    with pytest.raises(NkiValidationError, match=text):
        call("dma_transpose", dst, src)


def test_dma_compute_adds_in_float32() -> None:
    parts = [T([[1.0, 256.0]], "bfloat16"), T([[2.0, 1.0]], "bfloat16"), T([[3, 1]], "int32")]
    result, _ = run("dma_compute", out(1, 2), parts, "add")
    assert values(result) == [[6.0, 258.0]]  # bfloat16 has no 257
    result, _ = run("dma_compute", out(1, 2), parts, np.add, scales=[1.0, 1, 1.0])
    assert values(result) == [[6.0, 258.0]]


def test_dma_compute_refuses() -> None:
    x = Tile((2, 2), "float32")
    with pytest.raises(NkiValidationError, match="scales must all be 1"):
        call("dma_compute", x, [x, x], "add", scales=[1.0, 2.0])
    with pytest.raises(NkiValidationError, match="17 sources, at most 16"):
        call("dma_compute", x, [x] * 17, "add")
    with pytest.raises(NkiValidationError, match=r"dst 4, srcs\[0\] 4, srcs\[1\] 6"):
        call("dma_compute", x, [x, Tile((2, 3), "float32")], "add")
    with pytest.raises(
        NkiValidationError, match=r"reduce_op cannot be multiply; .*use one of nl\.add"
    ):
        call("dma_compute", x, [x, x], "multiply")
    gather = hbm(2, 2, indirect=True)
    call("dma_compute", x, [x, gather], "add", oob_mode=enums.oob_mode.skip)
    with pytest.raises(NkiValidationError, match="needs exactly 2 sources and unique_indices=True"):
        call("dma_compute", x, [x, gather], "add", unique_indices=False)
    with pytest.raises(NkiTypeError, match="srcs must be a list of tensors, got list"):
        call("dma_compute", x, [], "add")
