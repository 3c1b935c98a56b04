"""All documented codes: a module that raises each through the command, or why none can."""

from __future__ import annotations

import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from neuronxcc.cli import main
from neuronxcc.error_codes import CODES, OWN, find_code, page
from neuronxcc.frontends.hlo import importer
from neuronxcc.frontends.hlo.schema import message
from neuronxcc.option_table import DOWNCASTS
from tests.frontends.hlo_text import CALLED, proto_of, text_of
from tests.frontends.modules import Computation, custom, module, shape, tuple_shape
from tests.frontends.test_hlo_microscale import REFUSED as MICROSCALE

DOCS = Path(__file__).parents[2] / "docs" / "error-codes.md"
F = np.zeros((4, 4), np.float32)
S = np.zeros((4, 4), np.int32)
L = np.zeros((4, 4), np.int64)
H = np.zeros((4, 4), np.int16)
IMAGE = np.zeros((1, 2, 8, 8), np.float32)
FILTER = np.zeros((2, 2, 2, 2), np.float32)
STRICT = "--target=trn2 --implicit-integer-downcast=none"
INTEGERS = (
    CALLED
    + """
isum { a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT c = s32[] add(a, b) }
imax { a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT c = s32[] maximum(a, b) }
two { a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = f32[] parameter(2)
  d = f32[] parameter(3)
  ROOT t = (f32[], f32[]) tuple(a, b) }
put { a = f32[] parameter(0)
  ROOT b = f32[] parameter(1) }
"""
)


def text(body: str, *args: np.ndarray) -> bytes:
    """A module from text, every instruction of which has a line."""
    proto = message("Module")()
    proto.ParseFromString(proto_of(text_of(body, args, INTEGERS)))
    for computation in proto.computations:
        for number, instruction in enumerate(computation.instructions):
            instruction.metadata.source_file = "model.py"
            instruction.metadata.source_line = 7 + number
    content: bytes = proto.SerializeToString()
    return content


def one(opcode: str, type_: object, operand: object, **fields: object) -> bytes:
    made = Computation("main", 1)
    made.add(opcode, type_, made.parameter(operand), **fields)
    return module(made)


def many() -> bytes:
    """2**30 instructions: every computation calls the one before twice."""
    computations = [Computation("first", 2)]
    first = computations[0]
    first.add("negate", "f32[]", first.parameter("f32[]"))
    for level in range(30):
        made = Computation(f"level{level}", 3 + level)
        value = made.parameter("f32[]")
        for _ in range(2):
            value = made.add("call", "f32[]", value, called_computation_ids=[2 + level])
        computations.append(made)
    top = Computation("main", 1)
    top.add("call", "f32[]", top.parameter("f32[]"), called_computation_ids=[32])
    return module(top, *computations)


def window(more: str, result: str = "f32[1,2,7,7]") -> bytes:
    body = f"""z = f32[] constant(-inf)
    r = {result} reduce-window(p0, z), window={{size=1x1x2x2 {more}}}, to_apply=max"""
    return text(body, IMAGE)


def convolution(more: str, result: str) -> bytes:
    return text(
        f"r = {result} convolution(p0, p1), window={{size=2x2 {more}}}, dim_labels=bf01_oi01->bf01",
        IMAGE, FILTER,
    )  # fmt: skip


def scattered(dtype: str, kind: str, indices: str, x: np.ndarray) -> bytes:
    body = f"""i = s32[{indices}] iota(), iota_dimension=0
    u = {dtype}[{indices},4] broadcast(c), dimensions={{}}
    r = {dtype}[4,4] scatter(p0, i, u), to_apply={kind}, update_window_dims={{1}}, \
inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1"""
    return text(f"c = {dtype}[] constant(1)\n{body}", x)


KERNEL = json.dumps({"func_name": "mine", "kernel_file": "/nowhere/71ad/mine"}).encode()
#: Code -> the module and the options of the command.
RAISED: dict[str, tuple[bytes, str]] = {
    "EARG001": (one("negate", "f32[4]", "f32[4]"), "--target=trn1 --lnc=2"),
    "EHCA005": (custom("UNRECOGNIZED_TARGET", ["f32[4]"], "f32[4]"), ""),
    "EMOD025": (one("negate", shape("f32[4]", (True,)), shape("f32[4]", (True,))), ""),
    "EOOM001": (one("negate", "f32[65536,65536]", "f32[65536,65536]"), "--target=trn2"),
    "ESFH002": (text("r = u64[] constant(8589934592)"), ""),
    "ESPP004": (one("negate", "f64[4]", "f64[4]"), ""),
    "ESPP047": (one("negate", "f8e3m4[4]", "f8e3m4[4]"), ""),
    "EUOC002": (one("triangular-solve", "f32[4,4]", "f32[4,4]"), ""),
    "EVRF004": (text(
        "z = c64[] constant((0, 0))\nr = c64[4] gather(p0, p1), offset_dims={}, "
        "collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1}",
        np.zeros(9, np.complex64), np.zeros(4, np.int32)), ""),
    "EVRF005": (one("negate", "f8e4m3fnuz[4]", "f8e4m3fnuz[4]"), ""),
    "EVRF006": (one(
        "rng-bit-generator", tuple_shape(shape("u64[2]"), shape("u32[3]")), "u64[2]",
        rng_algorithm=2), ""),
    "EVRF007": (many(), ""),
    "EVRF010": (convolution("lhs_dilate=2x2 rhs_dilate=2x2", "f32[1,2,13,13]"), ""),
    "EVRF011": (convolution("stride=2x2 lhs_dilate=2x2", "f32[1,2,7,7]"), ""),
    "EVRF013": (text("r = (s32[4,2], s32[4,2]) topk(p0), k=2, largest=true", S), ""),
    "EVRF016": (scattered("s32", "imax", "3", S), ""),
    "EVRF017": (window("lhs_dilate=1x1x2x2", "f32[1,2,14,14]"), ""),
    "EVRF018": (window("rhs_dilate=1x1x2x2", "f32[1,2,6,6]"), ""),
    "EVRF019": (text(
        """z = f32[] constant(0)
        r = (f32[3,4], f32[3,4]) reduce-window(p0, p0, z, z), window={size=2x1}, to_apply=two""",
        F), ""),
    "EVRF022": (text("r = s16[4,4] shift-right-arithmetic(p0, p0)", H), ""),
    "EVRF031": (scattered("f32", "put", "6", F), ""),
    "EVRF035": (text("r = s32[4,4] dot(p0, p0), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
                     S), STRICT),
    **{f"EVRF{number}": (content, "--target=trn3") for number, (content, _) in MICROSCALE.items()},
    "EVRF051": (text("r = f8e4m3fn[4] copy(p0)", np.zeros(4, ml_dtypes.float8_e4m3fn)), ""),
    "EVRF056": (text(
        "i = s32[6] iota(), iota_dimension=0\nr = f32[6,4] gather(p0, i), offset_dims={1}, "
        "collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}",
        F), ""),
    "EVRF059": (custom("AwsNeuronCustomNativeKernel", ["f32[4]"], "f32[4]", KERNEL), ""),
    "EVRF060": (scattered("s32", "isum", "3", S), STRICT),
    "EVRF061": (text("r = s32[4,4] all-reduce(p0), replica_groups={{0,1}}, to_apply=isum", S),
                STRICT),
    "EVRF062": (text("r = s64[4,4] power(p0, p0)", L), STRICT),
    "EVRF063": (text("r = s32[2,4] reduce-scatter(p0), replica_groups={{0,1}}, dimensions={0}, "
                     "to_apply=isum", S), STRICT),
    "EVRF064": (one("negate", "f32[5]", "f32[4]"), ""),
    "EVRF065": (custom("AwsNeuronCustomNativeKernel", ["f32[4]"], "f32[4]", b"{}"), ""),
}  # fmt: skip
#: About no instruction.
_WHOLE = frozenset({"EARG001", "EOOM001"})


def test_every_documented_code_is_raised_or_says_why_not() -> None:
    """60 in the index of the documentation, and a page that the index doesn't name."""
    assert len(CODES) == 61
    raised = {code.removeprefix("NCC_") for code, entry in CODES.items() if not entry.instead}
    assert raised == RAISED.keys()


@pytest.mark.parametrize("name", RAISED)
def test_the_command_raises_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importer, "MAX_INSTRUCTIONS", 10_000)
    content, flags = RAISED[name]
    (tmp_path / "model.pb").write_bytes(content)
    assert main(["compile", "model.pb", "--framework=XLA", *flags.split()]) == 1
    said = capsys.readouterr().err
    assert f"[ERROR] [NCC_{name}] " in said
    assert CODES[f"NCC_{name}"].message in said
    assert not (tmp_path / "file.neff").exists()
    if name == "EARG001":  # before there is a log
        assert "allowed: 1 on trn1" in said
        return
    assert "\n  remedy: " in said
    if name not in _WHOLE:
        assert "  at instruction '" in said
        assert " at model.py:" in said
    assert f"[NCC_{name}]" in (tmp_path / "log-neuron-cc.txt").read_text()


@pytest.mark.parametrize("name", ["EVRF035", "EVRF060", "EVRF061", "EVRF062", "EVRF063"])
def test_a_loss_that_is_allowed_is_a_warning(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.pb").write_bytes(RAISED[name][0])
    operator = {"EVRF035": "dot", "EVRF060": "scatter", "EVRF061": "all_reduce", "EVRF062": "pow",
                "EVRF063": "reduce_scatter"}[name]  # fmt: skip
    others = ",".join(sorted(set(DOWNCASTS) - {operator}))
    for allowed in ("", f"--implicit-integer-downcast={operator}"):
        assert main(["compile", "model.pb", "--target=trn2", *allowed.split()]) == 0
        assert f"[WARNING] [NCC_{name}]" in capsys.readouterr().err
    assert main(["compile", "model.pb", f"--implicit-integer-downcast={others}"]) == 1
    assert f"[ERROR] [NCC_{name}]" in capsys.readouterr().err


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "NCC_EVRF010", "evrf052"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("NCC_EVRF010\n  says:    ... simultaneous use of input and kernel")
    assert "does not arise: every target here has float8_e4m3" in said
    assert main(["explain", "EVRF011", "EVRF0111"]) == 1
    assert "'EVRF0111' is no error code. Did you mean NCC_EVRF011?" in capsys.readouterr().err
    assert main(["explain"]) == 1
    assert "no code was given" in capsys.readouterr().err
    assert find_code("[NCC_EHLO001]") is not None
    assert main(["explain", "nki110"]) == 0
    assert capsys.readouterr().out == (
        "NKI110\n  means:   two operands in PSUM\n  remedy:  copy one of them to SBUF first\n"
    )
    assert main(["explain", "NKI11"]) == 1
    assert "Did you mean NKI" in capsys.readouterr().err


def test_every_code_in_the_source_is_in_the_table() -> None:
    """And each of our own is in the source; the documented ones are shown above."""
    used = {
        code
        for package in ("neuronxcc", "torch_neuronx", "nki", "nrtpy", "neuron_tools")
        for path in (DOCS.parents[1] / package).rglob("*.py")
        if path.name != "error_codes.py"
        for code in re.findall(r"NCC_[EI][A-Z]{3}\d{3}", path.read_text(encoding="utf-8"))
    }
    assert used <= CODES.keys() | OWN.keys()
    assert used >= OWN.keys()


def test_the_page_is_that_of_the_table() -> None:
    """Write it again: python -c 'from neuronxcc.error_codes import page; print(page(), end="")'."""
    assert DOCS.read_text() == page()
