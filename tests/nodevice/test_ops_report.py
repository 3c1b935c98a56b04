"""The coverage report and the report of a run, as text, as data and as a command."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_neuronx.ops import coverage, explain
from torch_neuronx.ops.__main__ import main
from torch_neuronx.ops.entry import Engine
from torch_neuronx.ops.lookup import Status
from torch_neuronx.ops.run_report import format_uses, summarize
from torch_neuronx.ops.table import Policy
from torch_neuronx.ops.text import table

POLICY = Policy("trn2")
COUNTS = [
    ("aten::add.Tensor", "float32", 7, True),
    ("aten::add_.Tensor", "float32", 2, True),
    ("aten::mul.Tensor", "int64", 3, True),
    ("aten::sort.values_stable", "float32", 1, False),
    ("aten::mm", "int64", 4, False),
    ("aten::mkldnn_linear", "float32", 1, False),
]


def test_uses_are_summed_by_base_name_and_sorted() -> None:
    uses = summarize(COUNTS, POLICY)
    assert [(use.op, use.dtype, use.calls, use.status) for use in uses] == [
        ("mm", "int64", 4, Status.GAP),
        ("mkldnn_linear", "float32", 1, Status.HOST),
        ("sort", "float32", 1, Status.HOST),
        ("mul", "int64", 3, Status.CARRIED),
        ("add", "float32", 9, Status.NATIVE),
    ]
    assert (uses[0].engine, uses[0].code) == (Engine.HOST, "EVRF035")
    assert (uses[3].engine, uses[3].reason) == (Engine.VECTOR, "int64 is carried in 32 bits")
    assert (uses[4].code, uses[4].reason, uses[4].remedy) == ("", "", "")


def test_run_report_text() -> None:
    text = format_uses(summarize(COUNTS, POLICY), POLICY, width=96)
    assert (
        text
        == """\
Portability report: trn2, mode permissive
18 operator calls: 9 (50.0 %) as they are on a NeuronCore,
3 (16.7 %) with 64-bit integers in 32 bits, 6 (33.3 %) on the host

operator       dtype    calls  runs on  code         reason and remedy
-------------  -------  -----  -------  -----------  -------------------------------------------
mm             int64        4  host     NCC_EVRF035  a matrix product has no 64-bit integer
                                                     datapath: cast to a floating-point type
                                                     (float32 is exact to 2^24), or accept the
                                                     loss: --implicit-integer-downcast=dot (in
                                                     NEURON_CC_FLAGS)
mkldnn_linear  float32      1  host     -            it belongs to a library for CPUs (oneDNN,
                                                     FBGEMM, NNPACK) or uses its packed weights:
                                                     use the operator without the library's
                                                     prefix
sort           float32      1  host     NCC_EUOC002  sort is not an operator of the compiler;
                                                     AWS' own examples leave aten::sort to the
                                                     CPU: use torch.topk with k = the length, on
                                                     a floating-point tensor
mul            int64        3  vector   -            32 bits
32 bits: use int32, or --native-int64=enabled on trn2 and newer; exact below 2^31"""
    )


def test_run_reports_without_findings() -> None:
    assert format_uses([], POLICY).endswith("No operator ran on the device.")
    clean = format_uses(summarize(COUNTS[:2], POLICY), POLICY)
    assert clean.endswith(
        "9 operator calls: 9 (100.0 %) as they are on a NeuronCore,\n"
        "0 (0.0 %) with 64-bit integers in 32 bits, 0 (0.0 %) on the host"
    )


def test_coverage_counts_add_up() -> None:
    text = coverage.report("trn2")
    chosen = coverage.select(None)
    assert f"{len(chosen)} ATen operators have a CPU" in text
    lines = text.splitlines()
    engines = [
        line.split() for line in lines if line.split()[:1] and line.split()[0] in set(Engine)
    ]
    totals = [int(cells[1]) for cells in engines if len(cells) == 5 and cells[1].isdigit()]
    assert sum(totals[:7]) == len(chosen)
    assert "Host only" in text
    row = next(line.split() for line in lines if line.startswith("float64"))
    # Nothing computes with float64: only work without elements is native.
    views = sum(entry.engine is Engine.VIEW for entry in chosen)
    assert int(row[1]) <= views
    assert sum(map(int, row[1:])) == len(chosen)


@pytest.mark.parametrize("target", ["trn1", "trn1n", "inf2", "trn2", "trn3"])
def test_every_choice_of_report_works(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--target", target, "--family", "matmul"]) == 0
    assert "operators of the family matmul" in capsys.readouterr().out
    assert main(["--target", target, "--dtype", "torch.int64", "--family", "sorting"]) == 0
    assert "int64" in capsys.readouterr().out
    assert main(["--target", target, "--host-only"]) == 0
    assert "linalg_lu" in capsys.readouterr().out
    assert main(["--target", target, "--host-only", "--family", "foreach"]) == 0
    assert capsys.readouterr().out == "No operator of this choice is left to the host.\n"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--target", "trn2"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["target"] == "trn2"
    by_name = {record["name"]: record for record in data["operators"]}
    assert "float32" in by_name["add"]["native"]
    assert by_name["add"]["carried"] == ["int64", "uint64"]
    assert by_name["topk"]["limits"][0]["code"] == "EVRF013"
    assert main(["--json", "--host-only", "--target", "trn2"]) == 0
    hosts = json.loads(capsys.readouterr().out)["operators"]
    assert {record["engine"] for record in hosts} == {"host"}
    assert main(["--json", "--dtype", "int64", "mm"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["operators"]
    assert (record["name"], record["native"], record["carried"]) == ("mm", [], [])


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--target", "trn2", "aten::topk.values"]) == 0
    assert capsys.readouterr().out == (
        "topk: family sorting, engine gpsimd, documented "
        "(custom call AwsNeuronTopK, native GpSimd TopK)\n"
        "  trn2 runs with: uint8, int8, int16, float16, float32, bool, bfloat16, float8_e5m2, "
        "uint16\n"
        "  limit [NCC_EVRF013, documented] for int32, int64, uint32, uint64: "
        "TopK does not support int32 or\n"
        "      int64 input tensors\n"
        "    remedy: cast to float\n"
    )
    assert "every dtype, no element is read" in explain("view", "trn1")
    assert "PyTorch takes it apart" in explain("conv2d", "trn1")
    assert "limit [no documented code, derived]" in explain("mkldnn_linear", "trn2")


def test_unknown_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sofmax"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("no ATen operator is called 'sofmax'; did you mean ")
    assert "softmax" in error
    assert main(["--family", "nothing"]) == 2
    assert "no family is called 'nothing'; allowed: attention, " in capsys.readouterr().err
    assert main(["--dtype", "float31"]) == 2
    assert "no dtype is called 'float31'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--target", "trn9"])


@given(
    rows=st.lists(
        st.tuples(
            st.text("abc_", max_size=30),
            st.text("0123456789,", max_size=9),
            st.text("xy z", max_size=200),
        ),
        max_size=6,
    ),
    width=st.integers(60, 140),
)
def test_tables_are_aligned(rows: list[tuple[str, str, str]], width: int) -> None:
    lines = table(["name", "n", "text"], rows, width=width, numbers="n").splitlines()
    rule = lines[1]
    assert set(rule) <= {"-", " "}
    assert all(len(line) <= len(rule) for line in lines)
    assert len(rule) <= max(width, max((len(a) + len(b) for a, b, _ in rows), default=0) + 40)
    gaps = [i for i, char in enumerate(rule) if char == " "]
    assert all(line[i] == " " for line in lines for i in gaps if i < len(line))
