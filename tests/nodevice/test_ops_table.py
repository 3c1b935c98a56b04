"""The operator table: complete, consistent, and the same for people and for the native core."""

import re
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neuronxcc.options import OptionError
from neuronxcc.targets import get_target
from torch_neuronx.ops import gaps
from torch_neuronx.ops.coverage import cpu_operators
from torch_neuronx.ops.entry import (
    ANY,
    DTYPE_NAMES,
    DTYPE_NUMBER,
    EVERY,
    FLOATS,
    WIDE_INTS,
    Basis,
    Engine,
    Gap,
    base_name,
    dtype_bits,
    dtype_list,
)
from torch_neuronx.ops.lookup import Status, entries, entry_or_unknown, executed_dtypes, verdict
from torch_neuronx.ops.table import ROWS, Policy, masks, policy_for

TARGETS = ("trn1", "trn1n", "inf2", "trn2", "trn3")


def test_dtype_numbers_are_those_of_this_torch() -> None:
    short = {"uint8": "uint8", "float16": "half", "float32": "float", "float64": "double"}
    for name, number in DTYPE_NUMBER.items():
        assert isinstance(getattr(torch, name), torch.dtype), name
        try:
            schema = torch._C.parse_schema(f"t::f(ScalarType d={short.get(name, name)}) -> ()")
        except RuntimeError:
            continue  # the schema language has names for the common dtypes only
        assert schema.arguments[0].default_value == number, name
    # All that there are, and a mask of 64 bits still holds them.
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    assert {getattr(torch, name) for name in DTYPE_NAMES} == every
    assert len(DTYPE_NAMES) == len(every) <= 64


def test_dtype_sets() -> None:
    assert dtype_bits("uint8 bool") == 1 | 1 << 11
    assert dtype_list(dtype_bits("bfloat16 int64")) == ["int64", "bfloat16"]
    assert ANY & dtype_bits("float64 complex64 qint8") == 0
    with pytest.raises(KeyError):
        dtype_bits("float31")


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("aten::add.Tensor", "add"),
        ("aten::add_.Tensor", "add"),
        ("add_", "add"),
        ("aten::_foreach_add_.List", "_foreach_add"),
        ("aten::__ilshift__.Scalar", "__ilshift__"),
        ("aten::_softmax", "_softmax"),
        ("quantized::mul.out", "quantized::mul"),
        ("my::op_", "my::op"),
    ],
)
def test_base_name(op: str, name: str) -> None:
    assert base_name(op) == name


def test_every_operator_of_this_torch_is_classified() -> None:
    operators = cpu_operators()
    assert len(operators) > 1000
    assert [name for name in operators if name not in entries()] == []


def test_no_row_names_an_operator_that_does_not_exist_or_twice() -> None:
    existing = {
        base_name(op) for op in torch._C._dispatch_get_all_op_names() if op.startswith("aten::")
    }
    names = [name for row in ROWS for name in row.names.split()]
    assert [name for name in names if name not in existing] == []
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_composite_means_that_no_backend_has_a_kernel() -> None:
    backend: set[str] = set()
    for op in torch._C._dispatch_get_all_op_names():
        for key in ("CPU", "CompositeExplicitAutograd", "SparseCPU", "SparseCsrCPU", "MkldnnCPU"):
            if torch._C._dispatch_has_kernel_for_dispatch_key(op, key):
                backend.add(base_name(op))
    operators = cpu_operators()
    wrong = [name for name in operators if entries()[name].composite and name in backend]
    assert wrong == []


def test_host_operators_say_why_and_rows_are_well_formed() -> None:
    for row in ROWS:
        assert row.note, row
        assert (row.engine is Engine.HOST) == any(_is_host_reason(gap) for gap in row.gaps), row
        if row.dtypes == EVERY:
            assert row.engine is Engine.VIEW, row
    for gap in {gap for row in ROWS for gap in row.gaps} | set(gaps.DTYPE_GAPS):
        assert re.fullmatch(r"(E[A-Z]{3}\d{3})?", gap.code), gap
        assert gap.reason, gap
        assert gap.remedy, gap


def _is_host_reason(gap: Gap) -> bool:
    return gap.dtypes == EVERY and not gap.when


def test_targets_agree_with_the_chips() -> None:
    for name in TARGETS:
        chip = get_target(name)
        assert gaps.FP8_E4M3FN.holds_on(name) == (chip.float8_e4m3_max < 448)
        assert gaps.DOT_INT32.holds_on(name) == (chip.core.generation > 2)


FLAG_SETS = ("", "--native-int64=enabled", "--implicit-integer-downcast=dot,scatter,pow")


@given(
    name=st.sampled_from(sorted(entries())),
    dtype=st.sampled_from(DTYPE_NAMES),
    target=st.sampled_from(TARGETS),
    flags=st.sampled_from(FLAG_SETS),
    carried=st.booleans(),
)
def test_masks_say_what_the_verdict_says(
    name: str, dtype: str, target: str, flags: str, carried: bool
) -> None:
    policy = policy_for(target, {"NEURON_CC_FLAGS": flags})
    bit = masks(policy, carried=carried)[name] >> DTYPE_NUMBER[dtype] & 1
    found = verdict(name, dtype, policy)
    wide = dtype_bits(dtype) & WIDE_INTS and not policy.native_int64
    if not carried and wide and found.status is not Status.NATIVE:
        # Left out on purpose, so that warn mode hears of it.
        assert bit == 0
    else:
        assert bool(bit) == found.on_neuron_core
    assert (found.gap is None) == found.on_neuron_core


@pytest.mark.parametrize(
    ("name", "dtype", "target", "status", "code"),
    [
        ("add", "float32", "trn2", Status.NATIVE, ""),
        ("add", "int64", "trn2", Status.CARRIED, ""),
        ("add", "float64", "trn2", Status.GAP, "ESPP004"),
        ("add", "complex64", "trn3", Status.GAP, "EVRF004"),
        ("add", "qint8", "trn2", Status.GAP, "ESPP004"),
        ("view", "float64", "trn2", Status.NATIVE, ""),
        ("empty", "float64", "trn2", Status.GAP, "ESPP004"),
        ("mm", "bfloat16", "trn2", Status.NATIVE, ""),
        ("mm", "int32", "trn2", Status.GAP, "EVRF035"),
        ("mm", "int32", "trn1", Status.NATIVE, ""),
        ("mm", "int64", "trn1", Status.GAP, "EVRF035"),
        ("mm", "int8", "trn2", Status.NATIVE, ""),
        ("copy", "float8_e4m3fn", "trn2", Status.GAP, "EVRF051"),
        ("copy", "float8_e4m3fn", "trn3", Status.NATIVE, ""),
        ("copy", "float8_e5m2fnuz", "trn3", Status.GAP, "EVRF005"),
        ("topk", "int64", "trn2", Status.GAP, "EVRF013"),
        ("topk", "float32", "trn2", Status.NATIVE, ""),
        ("scatter_reduce", "int32", "trn2", Status.GAP, "EVRF016"),
        ("scatter_add", "int64", "trn2", Status.GAP, "EVRF060"),
        ("scatter_add", "float32", "trn2", Status.NATIVE, ""),
        ("scatter", "int64", "trn2", Status.CARRIED, ""),
        ("pow", "int64", "trn2", Status.GAP, "EVRF062"),
        ("pow", "int32", "trn2", Status.NATIVE, ""),
        ("bitwise_right_shift", "int16", "trn2", Status.GAP, "EVRF022"),
        ("bitwise_right_shift", "int64", "trn2", Status.GAP, "EVRF022"),
        ("bitwise_right_shift", "int32", "trn2", Status.NATIVE, ""),
        ("max_pool2d_with_indices", "float32", "trn2", Status.NATIVE, ""),
        ("linalg_svd", "float32", "trn2", Status.HOST, "EUOC002"),
        ("triangular_solve", "float32", "trn2", Status.HOST, "EUOC002"),
        ("_fft_r2c", "float32", "trn2", Status.HOST, "EUOC002"),
        ("nonzero", "bool", "trn2", Status.HOST, "EMOD025"),
        ("complex", "float32", "trn2", Status.HOST, "EVRF004"),
        ("gelu", "int64", "trn2", Status.UNDEFINED, ""),
        ("quantized::mul", "float32", "trn2", Status.HOST, "EUOC002"),
        ("add", "", "trn2", Status.NATIVE, ""),
    ],
)
def test_documented_facts(name: str, dtype: str, target: str, status: Status, code: str) -> None:
    found = verdict(name, dtype, Policy(target))
    assert found.status is status
    assert (found.gap.code if found.gap else "") == code


def test_ordinary_models_need_nothing_outside_the_masks() -> None:
    table = masks(Policy("trn2"))
    names = (
        "embedding embedding_dense_backward arange add mul mm addmm bmm convolution "
        "convolution_backward native_layer_norm native_layer_norm_backward _softmax _log_softmax "
        "nll_loss_forward nll_loss_backward argmax eq sum mean cumsum gather index_select copy "
        "_to_copy empty empty_strided fill zero masked_fill cat _local_scalar_dense native_dropout "
        "_foreach_addcdiv _foreach_norm _fused_adamw scatter"
    )
    for name in names.split():
        dtypes = "float32 bfloat16" if entries()[name].dtypes == FLOATS else "float32 int64"
        if name in {"mm", "addmm", "bmm", "convolution", "convolution_backward"}:
            dtypes = "float32 bfloat16"
        assert table[name] & dtype_bits(dtypes) == dtype_bits(dtypes), name


def test_policy_reads_the_documented_integer_options() -> None:
    assert policy_for("trn2", {}) == Policy("trn2")
    flags = {"NEURON_CC_FLAGS": "--native-int64=enabled -O1 --implicit-integer-downcast=dot,pow"}
    assert policy_for("trn2", flags) == Policy(
        "trn2", native_int64=True, accepted=frozenset({"dot", "pow"})
    )
    # trn1 has no 64-bit integers to enable, and the right-most option wins.
    assert not policy_for("trn1", flags).native_int64
    flags["NEURON_CC_FLAGS"] += " --implicit-integer-downcast none"
    assert policy_for("trn2", flags).accepted == frozenset()
    everything = {"NEURON_CC_FLAGS": "--implicit-integer-downcast=all"}
    assert "scatter" in policy_for("trn3", everything).accepted


def test_accepted_losses_run() -> None:
    policy = policy_for("trn2", {"NEURON_CC_FLAGS": "--implicit-integer-downcast=dot"})
    assert verdict("mm", "int32", policy).status is Status.NATIVE
    assert verdict("mm", "int64", policy).status is Status.CARRIED
    assert verdict("scatter_add", "int32", policy).status is Status.GAP


def test_wrong_integer_options_are_refused() -> None:
    with pytest.raises(ValueError) as error:
        policy_for("trn2", {"NEURON_CC_FLAGS": "--implicit-integer-downcast=dot,mul"})
    assert str(error.value) == (
        "--implicit-integer-downcast=dot,mul is not valid; allowed: default, all, none, or a list "
        "of dot, scatter, all_reduce, reduce_scatter, pow. Choose one of these."
    )
    with pytest.raises(ValueError, match="--native-int64=yes is not valid; allowed: default, en"):
        policy_for("trn2", {"NEURON_CC_FLAGS": "--native-int64=yes"})


def test_other_wrong_options_are_left_to_the_compiler() -> None:
    flags = "--no-such-option some-value --lnc=7 --native-int64 enabled --target=trn9"
    assert policy_for("trn2", {"NEURON_CC_FLAGS": flags}) == Policy("trn2", native_int64=True)
    with pytest.raises(OptionError, match="No closing quotation"):
        policy_for("trn2", {"NEURON_CC_FLAGS": "'"})


def test_unknown_operators_are_host() -> None:
    entry = entry_or_unknown("mylib::mine")
    assert entry.engine is Engine.HOST
    assert entry.basis is Basis.DERIVED
    assert executed_dtypes("mylib::mine", Policy("trn2")) == 0


def test_float_only_rows_are_float_only_in_torch() -> None:
    """A dtype outside a row counts as PyTorch's own error; so PyTorch must refuse it."""
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415

    integers = {torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16}
    wrong = []
    for info in op_db:
        entry = entries().get(info.aten_name or "")
        if entry is not None and entry.dtypes == FLOATS and not entry.composite:
            taken = set(info.dtypes) & integers
            if taken:
                wrong.append(entry.name)
    assert wrong == []
