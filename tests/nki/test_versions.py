"""Spellings and meanings of older versions of NKI."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from neuronxcc.environment.kernels import TORCH_NEURONX_NKI_VERSION
from nki.context import Issuer, use
from nki.errors import NkiError, NkiValidationError, NkiWarning
from nki.isa.functions import FORMER, FUNCTIONS
from nki.isa.mx import ScaleRule, rule_in_use
from nki.isa.spellings import FUNCTIONS_BEFORE, OF_ALL, SPELLINGS, VERSIONED
from nki.isa.table import TABLE
from nki.versions import DIFFERENCES, NEWEST, VERSIONS, selected, since
from tests.nki.isa_samples import SAMPLES
from tests.nki.language_tools import inside, run


@pytest.fixture(autouse=True)
def _newest(reference_executor: None, monkeypatch: pytest.MonkeyPatch) -> None:
    del reference_executor
    monkeypatch.delenv(TORCH_NEURONX_NKI_VERSION.name, raising=False)


def issued(name: str, *args: Any, **kwargs: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return instruction, operands and attributes of a call."""
    calls: list[Any] = []
    issuer = Issuer(lambda *call: calls.append((call[0].name, *call[1:])))
    with use(issuer=issuer):
        getattr(nisa, name)(*args, **kwargs)
    (found,) = calls
    return found  # type: ignore[no-any-return]


# --- which version ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "0.4", "0.4.0", " 0.2 ", "0.6.1"])
def test_a_version_is_selected(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TORCH_NEURONX_NKI_VERSION.name, text)
    want = {"": NEWEST, "0.4": (0, 4), "0.4.0": (0, 4), "0.2": (0, 2), "0.6.1": (0, 6)}
    assert selected() == want[text.strip()]


@pytest.mark.parametrize("text", ["0.1", "0.7", "1", "new", "0"])
def test_versions_that_there_are_not(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TORCH_NEURONX_NKI_VERSION.name, text)
    with pytest.raises(
        NkiError,
        match=rf"_NKI_VERSION={text} names no version.*0.2, 0.3.*NKI247",
    ):
        selected()


def test_differences_name_versions_and_say_what_changed() -> None:
    for name, row in DIFFERENCES.items():
        assert row.since in VERSIONS[1:], name
        assert row.before
        assert row.after
        assert row.source in ("migration guide", "release notes")
        assert since(name)


def test_every_selectable_difference_is_asked_for_somewhere() -> None:
    package = Path(nl.__file__).parents[1]
    text = "".join(path.read_text("utf-8") for path in package.rglob("*.py"))
    asked = set(re.findall(r'since\("([^"]+)"\)', text)) | {row for row, _ in VERSIONED.values()}
    assert {name for name, row in DIFFERENCES.items() if row.selectable} == asked


# --- the same call, another meaning -------------------------------------------------------------


def test_scales_of_quantize_mx(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rule_in_use() is ScaleRule.DOUBLED
    monkeypatch.setenv(TORCH_NEURONX_NKI_VERSION.name, "0.4")
    assert rule_in_use() is ScaleRule.OCP


@pytest.mark.parametrize(("version", "byte"), [("0.4", 119), ("0.5", 120)])
def test_scales_in_a_kernel(version: str, byte: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TORCH_NEURONX_NKI_VERSION.name, version)

    def body(x: Any) -> Any:
        packed = nl.ndarray((32, 1), nl.float8_e4m3fn_x4)
        scale = nl.zeros((32, 1), nl.uint8)
        nisa.quantize_mx(packed, nl.copy(x, dtype=nl.bfloat16), scale[0:4])
        return scale[0:4]

    found = run(body, np.ones((32, 4), np.float32))
    np.testing.assert_array_equal(found, np.full((4, 1), byte))


def test_rsqrt_moved_to_gpsimd(monkeypatch: pytest.MonkeyPatch) -> None:
    def body() -> Any:
        return nl.rsqrt(nl.full((4, 4), 4.0, nl.float32, buffer=nl.psum)).shape

    with pytest.raises(NkiValidationError, match=r"in psum, which the gpsimd engine.*\[NKI111\]"):
        inside(body)
    monkeypatch.setenv(TORCH_NEURONX_NKI_VERSION.name, "0.4")
    assert inside(body) == (4, 4)


def test_copy_was_lossy(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.array([[2**24 + 1]], np.int32)
    assert run(nl.copy, x)[0, 0] == 2**24 + 1
    monkeypatch.setenv(TORCH_NEURONX_NKI_VERSION.name, "0.5")
    assert run(nl.copy, x)[0, 0] == 2**24
    assert inside(lambda: nl.copy(nl.zeros((2, 2), nl.float32, nl.psum)).buffer) is nl.psum


def test_memset_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    tile = nl.ndarray((4, 4), nl.int32)
    assert issued("memset", tile, 2.0)[2]["value"] == 2.0
    with pytest.raises(NkiValidationError, match=r"\[NKI140\]"):
        inside(lambda: nisa.memset(nl.ndarray((4, 4), nl.int32), 2.5))
    monkeypatch.setenv(TORCH_NEURONX_NKI_VERSION.name, "0.2")
    assert repr(issued("memset", tile, 2.5)[2]["value"]) == "2"
    assert repr(issued("memset", value=2.5, dst=tile)[2]["value"]) == "2"
    assert repr(issued("memset", nl.ndarray((4, 4), nl.float32), 2.5)[2]["value"]) == "2.5"


def test_range_select_ignored_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TORCH_NEURONX_NKI_VERSION.name, "0.2")
    dst, data, bound = (nl.ndarray((4, n), nl.float32) for n in (8, 8, 1))
    _, _, attributes = issued(
        "range_select", dst, data, nl.less, nl.less, bound, bound, nisa.reduce_cmd.idle,
        on_false_value=0.0,
    )  # fmt: skip
    assert attributes["reduce_cmd"] == "reset_reduce"
    assert attributes["on_false_value"] == float(np.finfo(np.float32).min)


def test_results_could_be_private(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, nl.hbm)
        nisa.dma_copy(out, x)
        return out

    x = np.ones((2, 3), np.float32)
    with pytest.warns(NkiWarning, match=r"in private HBM.*do not compile \[NKI208\]"):
        np.testing.assert_array_equal(nki.simulate(kernel)(x), x)
    monkeypatch.setenv("TORCH_NEURONX_NKI_CHECKS", "strict")
    with pytest.raises(NkiError, match=r"in private HBM.*\[NKI208\]"):
        nki.simulate(kernel)(x)
    monkeypatch.setenv(TORCH_NEURONX_NKI_VERSION.name, "0.2")
    np.testing.assert_array_equal(nki.simulate(kernel)(x), x)


def test_precision_of_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NKI_PRECISE_FP", raising=False)

    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, nl.float32, nl.shared_hbm)
        nl.store(out, nl.copy(nl.load(x), dtype=nl.bfloat16))
        return out

    x = np.full((1, 1), 1 / 3, np.float32)
    assert nki.simulate(kernel)(x) != x
    monkeypatch.setenv(TORCH_NEURONX_NKI_VERSION.name, "0.3")
    assert nki.simulate(kernel)(x) == x


# --- spellings ----------------------------------------------------------------------------------

DST, SRC, COLUMN = (nl.ndarray((4, n), nl.float32) for n in (8, 8, 1))
SCALES = [1.0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("register_move", (DST,), {"imm": 42}), ("register_move", (DST, 42), {})),
        (
            ("sendrecv", (SRC, DST, 0, 1, 2), {"use_gpsimd_dma": True}),
            ("sendrecv", (SRC, DST, 0, 1, 2, nisa.dma_engine.gpsimd_dma), {}),
        ),
        (
            ("sendrecv", (SRC, DST, 0, 1, 2), {"use_gpsimd_dma": False}),
            ("sendrecv", (SRC, DST, 0, 1, 2), {}),
        ),
        (
            ("nc_matmul", (DST, SRC, SRC), {"is_moving_zero": True}),
            ("nc_matmul", (DST, SRC, SRC), {"is_moving_onezero": True}),
        ),
        *(
            (
                (name, (DST, SRC, SRC, *more), {"psum_accumulate_flag": flag}),
                (name, (DST, SRC, SRC, *more), {"accumulate": accumulate}),
            )
            for name, more in (("nc_matmul", ()), ("nc_matmul_mx", (SRC, SRC)))
            for flag, accumulate in ((0, True), (1, False), (2, True), (3, False), (4, True))
        ),
        (
            ("nc_matmul", (DST, SRC, SRC), {"psumAccumulateFlag": 3}),
            ("nc_matmul", (DST, SRC, SRC), {}),
        ),
        (
            ("nc_matmul", (DST, SRC, SRC, False, False, False, (0, 0), (32, 32)), {}),
            ("nc_matmul", (DST, SRC, SRC), {"tile_position": (0, 0), "tile_size": (32, 32)}),
        ),
        (
            ("affine_select", (DST, [[1, 8]], 5, 1, SRC, 0.0, nl.equal), {}),
            ("affine_select", (DST, [[1, 8]], 1, SRC, 0.0, nl.equal), {"offset": 5}),
        ),
        (
            ("dma_compute", (DST, [SRC], SCALES, nl.add), {}),
            ("dma_compute", (DST, [SRC], nl.add, SCALES), {}),
        ),
        (
            ("dma_copy", (DST, SRC, nisa.oob_mode.skip), {}),
            ("dma_copy", (DST, SRC), {"oob_mode": nisa.oob_mode.skip}),
        ),
        (
            ("dma_copy", (DST, SRC), {"dst_rmw_op": nl.add, "unique_indices": False}),
            ("dma_compute", (DST, [SRC, DST], nl.add), {"unique_indices": False}),
        ),
        (("dma_copy", (), {"dst": DST, "src": SRC, "unique_indices": True}),
         ("dma_copy", (DST, SRC), {})),
        (("dma_copy", (), {"dst": DST, "src": SRC, "dst_rmw_op": nl.add}),
         ("dma_compute", (DST, [SRC, DST], nl.add), {})),
        (
            ("dma_transpose", (DST, SRC, None, nisa.dge_mode.none), {}),
            ("dma_transpose", (DST, SRC), {"dge_mode": nisa.dge_mode.none}),
        ),
        (("dma_copy", (DST, SRC), {"dge_mode": 2}),
         ("dma_copy", (DST, SRC), {"dge_mode": nisa.dge_mode.hwdge})),
        (("tensor_copy", (DST, SRC), {"engine": "vector"}),
         ("tensor_copy", (DST, SRC), {"engine": nisa.engine.vector})),
        (("tensor_copy_dynamic_src", (DST, SRC), {}), ("tensor_copy", (DST, SRC), {})),
    ],
)  # fmt: skip
@pytest.mark.parametrize("version", ["0.2", "0.6"])
def test_old_spellings_mean_the_new_ones(
    old: Any, new: Any, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TORCH_NEURONX_NKI_VERSION.name, version)
    assert issued(old[0], *old[1], **old[2]) == issued(new[0], *new[1], **new[2])


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if "dst" in row.names])
def test_a_type_beside_dst_has_no_effect(name: str) -> None:
    """Public kernels of 0.2 have ``dtype=`` from the first generation, also other than dst's."""
    written, rest = SAMPLES[name]()
    given = {**written, **rest, "dst": DST}
    want = issued(name, **given)
    for dtype in (nl.float32, np.float32, np.dtype("float32"), nl.bfloat16, None):
        assert issued(name, **given, dtype=dtype) == want
    for wrong in ("nothing", 3):
        with pytest.raises(NkiError, match=rf"{name} was given 'dtype'.*NKI101"):
            issued(name, **given, dtype=wrong)


def test_todays_spellings_are_left_alone() -> None:
    _, operands, attributes = issued("affine_select", DST, [[1, 8]], 1, SRC, 0.0, offset=3)
    assert (attributes["channel_multiplier"], operands["offset"]) == (1, 3)
    assert operands["on_true_tile"] is SRC
    assert issued("dma_copy", DST, SRC, 2)[2]["priority"] == 2
    assert issued("nc_matmul", DST, SRC, SRC, False, False, False, True)[2]["accumulate"] is True  # noqa: FBT003
    assert issued("dma_compute", DST, [SRC], nl.add)[2]["scales"] is None


def test_a_misspelt_argument_stays_an_error() -> None:
    with pytest.raises(NkiError, match=r"was given 'inn'.*\[NKI101\]"):
        issued("register_move", DST, inn=3)


def test_the_table_names_instructions() -> None:
    assert set(SPELLINGS) <= set(TABLE)
    assert set(VERSIONED) <= set(TABLE)
    assert set(FORMER) == set(FUNCTIONS_BEFORE)
    assert not set(FORMER) & set(FUNCTIONS)
    for rows in (OF_ALL, *SPELLINGS.values()):
        for row in rows:
            assert row.last in ("0.2", "0.3", "0.4", "0.5")
            assert row.what


def test_old_spellings_of_the_language() -> None:
    assert nl.ndarray((4, 4), nl.float32, buffer=None).buffer is nl.sbuf
    assert nl.zeros((4, 4), nl.float32, None).buffer is nl.sbuf
    assert nl.ndarray((4, 4), nl.float32, buffer="psum").buffer is nl.psum
    constant = nl.shared_constant(np.ones((2, 2), np.float64), dtype=nl.bfloat16)
    assert constant.dtype == nl.bfloat16
    assert list(nl.sequential_range(0, 6, 2)) == [0, 2, 4]
