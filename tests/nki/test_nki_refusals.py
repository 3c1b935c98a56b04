"""What views refuse: the code, the text, and what to do."""

from array import array
from typing import Any

import numpy as np
import pytest

from neuronxcc.targets import get_target
from nki.access_rules import LONGEST, RULES, WIDEST, broken_rule, check_access
from nki.context import use
from nki.core import Core
from nki.errors import CODES, NkiError, NkiIndexError, NkiValidationError
from nki.forms import Forms
from nki.indexing import DynamicSlice
from nki.memory import MemoryRegion
from nki.objects import RuntimeScalar
from nki.tensor import NkiTensor, create

HBM, PSUM = MemoryRegion.private_hbm, MemoryRegion.psum
S = create((128, 4, 8), "float32", name="s")
H = create((4, 6, 8), "float32", HBM)
REGISTER = RuntimeScalar()
INDEX = create((1, 1), "int32")
ROWS = create((3, 1), "int32")
MOVING = H.select(0, REGISTER)
GATHER = H.vector_select(0, ROWS)


def used(tensor: NkiTensor) -> None:
    """Do what every instruction does with its operands first."""
    Forms().tile(tensor, array("q"))


# Lines here are as long as a case needs.
# ruff: noqa: E501
REFUSALS: list[tuple[str, Any, str]] = [
    # indices
    ("NKI010", lambda: S[0, 4], r"index 4 is out of bounds for dimension 1 of size 4"),
    ("NKI010", lambda: S[-129], r"index -1 is out of bounds for dimension 0 of size 128"),
    ("NKI010", lambda: H[:, 2:7], r"slice 2:7 is out of bounds .* size 6 .*; .* min\(end, size\)"),
    ("NKI010", lambda: S.slice(2, -1, 8), r"the slice -1:8 is out of bounds for dimension 2"),
    ("NKI010", lambda: S.select(1, -1), r"index -1 is out of bounds"),
    ("NKI010", lambda: S.slice(3, 0, 1), r"no dimension 3 in a view .*; use a dimension from 0 to"),
    ("NKI010", lambda: H[DynamicSlice(REGISTER, 5)], r"the slice 0:5 is out of bounds"),
    ("NKI010", lambda: S.indirect(create((128, 2), "int32"), 257), r"use 1 to 256"),
    ("NKI011", lambda: S[None], r"with None of type NoneType; .*; use integers, slices"),
    ("NKI011", lambda: S[True], r"indexed with True of type bool"),
    ("NKI011", lambda: S[0, 1.5], r"indexed with 1.5 of type float"),
    ("NKI011", lambda: S[np.arange(3)], r"of type ndarray"),
    ("NKI011", lambda: S.select(1, "a"), r"indexed with 'a' of type str"),
    ("NKI012", lambda: H[2:2], r"the slice 2:2 of dimension 0 .* is empty; .*; .* skip"),
    ("NKI010", lambda: H[3:1], r"the slice 3:1 is out of bounds"),
    ("NKI012", lambda: H[::-1], r"a slice with step -1 runs backwards"),
    ("NKI012", lambda: S.slice(1, 0, 4, 0), r"step 0 runs backwards or nowhere; .*; use a step"),
    ("NKI012", lambda: S.flatten_dims(2, 1), r"dimensions 2 to 1 are none"),
    ("NKI013", lambda: S[0, 0, 0, 0], r"4 indices for a view of shape \(128, 4, 8\); .* most 3"),
    ("NKI013", lambda: S[..., 0, ...], r"and \.\.\. once"),
    # shapes
    ("NKI014", lambda: S.permute((0, 1)), r"\(0, 1\) is no permutation of the 3 dimensions"),
    ("NKI014", lambda: S.permute((0, 1, 1)), r"name each of 0 to 2 once"),
    ("NKI015", lambda: S.permute((1, 0, 2)), r"cannot move dimension 0 .* partition of an on-chip"),
    ("NKI015", lambda: GATHER.permute((1, 0, 2)), r"chosen by an index vector; .*; keep dimension"),
    ("NKI015", lambda: S[0:1].broadcast(0, 8), r"cannot broadcast dimension 0"),
    ("NKI015", lambda: S.expand_dim(0), r"cannot insert a dimension before dimension 0"),
    ("NKI015", lambda: GATHER.expand_dim(0), r"cannot insert a dimension before dimension 0"),
    ("NKI015", lambda: S[0:1].squeeze_dim(0), r"cannot remove dimension 0"),
    ("NKI015", lambda: S.reshape_dim(0, (64, 2)), r"cannot split into \(64, 2\) dimension 0"),
    ("NKI015", lambda: S.flatten_dims(0, 1), r"cannot merge others into dimension 0"),
    ("NKI015", lambda: GATHER.flatten_dims(0, 1), r"cannot merge others into dimension 0"),
    ("NKI015", lambda: S.reshape((64, 64)), r"reshape to \(64, 64\), which changes dimension 0"),
    ("NKI015", lambda: S.select(0, REGISTER), r"cannot apply a dynamic index to dimension 0"),
    ("NKI016", lambda: S.broadcast(1, 8), r"dimension 1 .* has size 4, not 1; .*; .*expand_dim"),
    ("NKI016", lambda: S.squeeze_dim(1), r"has size 4, not 1; .*; select one index"),
    ("NKI017", lambda: S.reshape((128, 31)), r"\(128, 31\) does not have the 4096 elements"),
    ("NKI017", lambda: S.reshape_dim(2, (3, -1)), r"does not have the 8 elements of \(8,\)"),
    ("NKI003", lambda: S.reshape((128, -1, -1)), r"\(128, -1, -1\) is no shape"),
    ("NKI003", lambda: S.reshape((128, 0)), r"integers of at least 1"),
    ("NKI003", lambda: S[:, :1].broadcast(1, 0), r"\(0,\) is no shape"),
    ("NKI018", lambda: S.permute((0, 2, 1)).reshape((128, 32)), r"cannot be reshaped to \(128, 32"),
    ("NKI018", lambda: S[:, :, ::2].flatten_dims(1, 2).view("int8"), r"last dimension is not cont"),
    ("NKI018", lambda: S[:, :, :4].flatten_dims(1, 2), r"cannot merge dimensions 1 to 2 without"),
    ("NKI029", lambda: S[:, 0:1, 0].squeeze_dim(1), r"cannot become one of 1 dimensions"),
    ("NKI029", lambda: S[:, 0:1, 0].reshape((128,)), r"keep at least two dimensions in SBUF"),
    ("NKI029", lambda: H[0, 0, 0].squeeze_dim(0), r"and one in HBM"),
    # rearrange
    ("NKI019", lambda: S.rearrange("pab", "pa"), r"'pab' -> 'pa' does not .*; name every dimension"),
    ("NKI019", lambda: S.rearrange("pa", "pa"), r"does not rearrange a view of shape \(128, 4, 8\)"),
    (
        "NKI019",
        lambda: S.rearrange(("p", "a", ("b", "c")), ("p", "a", "b", "c")),
        r"fix the sizes of all but one of \('b', 'c'\)",
    ),
    (
        "NKI019",
        lambda: S.rearrange(("p", "a", ("b", "c")), ("p", "a", "b", "c"), {"b": 3, "c": 2}),
        r"the sizes of \('b', 'c'\) must multiply to 8",
    ),
    ("NKI019", lambda: S.rearrange("pab", "pba", {"z": 2}), r"the sizes name \['z'\]"),
    ("NKI019", lambda: S.rearrange(("p", (), "b"), "pb"), r"\(\) names no dimension"),
    ("NKI019", lambda: S.rearrange("pab", "pba", {"a": 3}), r"must multiply to 4"),
    # bytes
    ("NKI001", lambda: S.view("float64"), r"convert to nl.float32 before the kernel"),
    ("NKI020", lambda: create((4, 6), "uint8").view("float32"), r"no whole items of float32 \(4 by"),
    ("NKI020", lambda: create((4, 8), "uint8")[:, 2:6].view("float32"), r"multiples of 4"),
    ("NKI026", lambda: MOVING.view("int8"), r"an indirect view .* cannot be read as int8"),
    # explicit patterns
    ("NKI021", lambda: S.ap([[32, 128]]), r"\[\[32, 128\]\] is no access pattern; .*; write"),
    ("NKI021", lambda: S.ap([[32, 128], [1, 0]]), r"counts of at least 1"),
    ("NKI021", lambda: S.ap([32, 128]), r"\[32, 128\] is no access pattern"),  # type: ignore[list-item]
    ("NKI022", lambda: used(S.ap([[32, 128], [1, 33]])), r"at offset 0 leaves its tensor of 4096 .*, 32 in"),
    ("NKI022", lambda: used(S.ap([[32, 128], [1, 32]], offset=32)), r"at offset 32 leaves its tensor"),
    ("NKI022", lambda: used(S.ap([[32, 1], [-1, 4]], offset=2)), r"shorten the counts or lower the offset"),
    ("NKI022", lambda: used(H.ap([[1, 193]])), r"leaves its tensor of 192 elements of float32; "),
    ("NKI023", lambda: S.ap([[64, 8], [1, 32]]), r"steps 64 elements .* has 32; .*; write 32"),
    ("NKI020", lambda: create((4, 3), "uint8").ap([[1, 4], [1, 1]], dtype="int16"), r"row of 3 bytes"),
    # dynamic indices
    ("NKI024", lambda: MOVING.select(0, REGISTER), r"has a dynamic index already; .*; use one per"),
    ("NKI024", lambda: GATHER.select(1, INDEX), r"has a dynamic index already"),
    ("NKI024", lambda: MOVING.vector_select(0, ROWS), r"is_indirect\(\) tells"),
    ("NKI024", lambda: GATHER[0], r"cannot select from dimension 0 of an indirect view"),
    ("NKI024", lambda: GATHER[0:2], r"cannot slice dimension 0 of an indirect view"),
    ("NKI024", lambda: H[DynamicSlice(REGISTER, 2)].reshape((16, 6)), r"cannot reshape dimension 0"),
    ("NKI024", lambda: H[DynamicSlice(REGISTER, 2)].flatten_dims(0, 1), r"cannot merge dimension 0"),
    ("NKI024", lambda: H[DynamicSlice(REGISTER, 2)].reshape_dim(0, (2, 1)), r"cannot split"),
    ("NKI024", lambda: H[DynamicSlice(REGISTER, 1)].squeeze_dim(0), r"cannot remove"),
    (
        "NKI024",
        lambda: H.ap([[1, 4]], scalar_offset=REGISTER, vector_offset=ROWS),
        r"both scalar_offset and vector_offset",
    ),
    ("NKI025", lambda: H.select(0, ROWS), r"no index tensor of shape \(1, 1\); .*; give integers"),
    ("NKI025", lambda: H.select(0, create((1, 1), "float32")), r"is no index tensor"),
    ("NKI025", lambda: H.select(0, create((1, 1), "int32", PSUM)), r"in SBUF"),
    ("NKI025", lambda: H.ap([[1, 4]], scalar_offset=3), r"3 is no index tensor"),
    ("NKI025", lambda: H.vector_select(0, create((3, 2), "int32")), r"of shape \(P, 1\)"),
    ("NKI025", lambda: H.ap([[8, 4], [1, 8]], vector_offset=create((3, 2), "int32")), r"of shape \(P, 1\) or \(128, N\)"),
    ("NKI025", lambda: H.vector_select(0, [1, 2]), r"\[1, 2\] is no index tensor"),  # type: ignore[arg-type]
    ("NKI025", lambda: H.ap([[8, 4], [1, 8]], vector_offset=ROWS), r"needs 4 offsets, .* has 3"),
    ("NKI025", lambda: S.indirect(create((64, 2), "int32")), r"of shape \(128, K\)"),
    ("NKI026", lambda: H.vector_select(1, ROWS), r"tensor in HBM, not to dimension 1 of"),
    ("NKI026", lambda: S.vector_select(0, ROWS), r"\(128, 4, 8\) on a chip; .*; gather while"),
    (
        "NKI026",
        lambda: S.ap([[32, 3], [1, 32]], vector_offset=ROWS),
        r"vector_offset applies to dimension 0 of a tensor in HBM",
    ),
    ("NKI026", lambda: H.indirect(ROWS), r"tensor indirection on a tensor in private HBM of Neuron"),
    ("NKI027", lambda: S.__setitem__(0, 1), r"cannot be assigned a int; .*; in a kernel "),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "make", "text"), REFUSALS, ids=[f"{i}-{row[0]}" for i, row in enumerate(REFUSALS)]
)
def test_refusals(code: str, make: Any, text: str) -> None:
    with pytest.raises(NkiError, match=text) as caught:
        make()
    assert caught.value.code == code
    assert caught.value.where[0] == __file__


def test_out_of_bounds_ends_a_loop_over_a_tensor() -> None:
    """Python asks for index after index until an IndexError."""
    rows: Any = H
    assert [row.offset for row in rows] == [0, 48, 96, 144]
    with pytest.raises(NkiIndexError):
        H[4]


def test_tensor_indirection_needs_the_fourth_core() -> None:
    with use(core=Core(get_target("trn2"))):
        tensor = create((16, 8), "float32", name="t")
        with pytest.raises(NkiError, match=r"indirection on tensor 't' in SBUF of NeuronCore-v3"):
            tensor.indirect(create((16, 1), "int32"))


# --- rules of the engines ----------------------------------------------------------------------

LONG = create((128, 4, 65536), "uint8")
WIDE = create((1, 3, 40000), "uint8")
DEEP = create((128, 3, 3, 3, 3, 3), "uint8")

BROKEN = [
    ("NKI023", S[::2], r"reads every 2th partition; .*; copy the rows together with a DMA"),
    ("NKI030", S[1:4], r"starts at partition 1, and 3 partitions start at 0/32/64/96; "),
    ("NKI030", S[32:65], r"starts at partition 32, and 33 partitions start at 0/64; "),
    ("NKI030", S[32:97], r"starts at partition 32, and 65 partitions start at 0; "),
    ("NKI030", create((8, 8), "int8", address=(8, 0)), r"starts at partition 8, and 8 part"),
    ("NKI031", DEEP[:, ::2, ::2, ::2, ::2, ::2], r"has 5 free dimensions that do not merge"),
    ("NKI032", LONG[:, 0], r"has a dimension of 65536 elements; .*; split the dimension"),
    ("NKI033", WIDE[:, :, :8], r"has a stride of 40000 elements; .*; read it as a larger type"),
]


@pytest.mark.parametrize(("code", "view", "text"), BROKEN, ids=[row[0] for row in BROKEN])
def test_engines_cannot_address_some_views(code: str, view: Any, text: str) -> None:
    with pytest.raises(NkiValidationError, match=rf"dst, a view of .*{text}") as caught:
        check_access(view.storage, view.pattern, "dst")
    assert caught.value.code == code
    assert isinstance(caught.value, AssertionError)


@pytest.mark.parametrize(
    "view",
    [
        S, S[32:64], S[64:], S[96:97, 1, ::2], H[:, 1], S.permute((0, 2, 1)), DEEP,
        create((8, 8), "int8", address=(32, 0)), WIDE[:, :, :8].view("int8")[:, 1],
        LONG.reshape((128, 512, 512)), S[:, :1].broadcast(1, 4),
    ],
    ids=repr,
)  # fmt: skip
def test_engines_address_the_others(view: Any) -> None:
    for _ in range(2):  # the second time from the table of fine views
        check_access(view.storage, view.pattern)
    if view.buffer.on_chip:
        assert broken_rule(view.storage, view.pattern) is None


def test_every_code_of_this_layer_is_tested() -> None:
    tested = {row[0] for row in REFUSALS + BROKEN} | {
        "NKI002", "NKI004", "NKI005", "NKI006", "NKI007", "NKI036",  # test_nki_memory
        "NKI008",  # test_nki_language
    }  # fmt: skip
    assert {code for code in CODES if code < "NKI100"} == tested
    assert {rule.code for rule in RULES} <= tested
    assert (LONGEST, WIDEST) == (65535, 32767)
