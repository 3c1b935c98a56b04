"""The public functions, registers, handles, and descriptions of real tensors."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import nki.language as nl
from nki import isa as nisa
from nki.context import Issuer, use
from nki.errors import NkiError, NkiTypeError, NkiValidationError
from nki.isa import constants
from nki.isa.bind import bind, make_call
from nki.isa.describe import describe, prepare
from nki.isa.spec import Tile
from nki.isa.table import TABLE


def test_functions_issue_bound_arguments() -> None:
    seen: list[Any] = []

    def issue(row: Any, operands: Any, attributes: Any) -> str:
        seen.append((row.name, operands, attributes))
        return "handle"

    with use(issuer=Issuer(issue)):
        assert nisa.memset("tile", value=2, engine=nisa.vector_engine) == "handle"
    attributes = {"value": 2, "engine": "vector", "name": None}
    assert seen == [("memset", {"dst": "tile"}, attributes)]


def test_outside_of_a_kernel() -> None:
    with pytest.raises(NkiError, match=r"nisa\.iota is called outside of a kernel") as caught:
        nisa.iota(None, [[1, 2]])
    assert caught.value.code == "NKI143"


def test_signatures_and_documents_come_from_the_table() -> None:
    signature = inspect.signature(nisa.tensor_copy)
    assert str(signature) == "(dst, src, engine='unknown', name=None)"
    assert nisa.tensor_copy.__module__ == "nki.isa"
    text = nisa.exponential.__doc__
    assert "NeuronCore-v4: vector" in text
    assert "reduce_cmd = idle" in text
    assert "trainium3_arch.rst" in text
    assert set(TABLE) <= set(dir(nisa))
    for row in TABLE:
        inspect.signature(getattr(nisa, row))
    with pytest.raises(AttributeError, match=r"'nki\.isa' has no attribute 'nothing'"):
        _ = nisa.nothing


def test_enumerations_have_the_documented_values() -> None:
    assert [(e.name, e.value) for e in nisa.engine] == [
        ("unknown", 0), ("tensor", 1), ("scalar", 2), ("gpsimd", 3), ("dma", 4), ("vector", 5),
        ("sync", 6),
    ]  # fmt: skip
    assert [e.value for e in nisa.reduce_cmd] == [0, 1, 2, 3, 4]
    assert nisa.matmul_perf_mode.double_row.value == "double_row"
    assert constants.oob_mode is nisa.oob_mode
    assert nisa.gpsimd_engine is nisa.engine.gpsimd
    x = Tile((2, 2), "float32")
    for spelling in (nisa.engine.vector, "vector", 5):
        with use(issuer=Issuer(lambda _row, _operands, attributes: attributes["engine"])):
            assert nisa.memset(x, 0.0, spelling) == "vector"
    with use(issuer=Issuer(lambda *_: None)), pytest.raises(NkiValidationError) as caught:
        nisa.memset(x, 0.0, nisa.reduce_cmd.idle)
    assert "memset engine cannot be reduce_cmd.idle" in str(caught.value)


def test_registers() -> None:
    register = nisa.VirtualRegister(2**32 - 1)
    assert register.read() == -1
    register.assign(2**31)
    assert (register.read(), repr(register)) == (-(2**31), "VirtualRegister(-2147483648)")
    for kind in (bool, int, range):
        with pytest.raises(NkiTypeError, match="a register was used as") as caught:
            kind(register)
        assert caught.value.code == "NKI139"
    with pytest.raises(NkiError, match="read before it was written"):
        nisa.VirtualRegister().read()
    with pytest.raises(NkiError, match="a loop's counter is written"):
        nisa.VirtualRegister(0, frozen=True).assign(1)


def test_handles_collect_their_producers() -> None:
    a, b, c = (nisa.NkiInstruction(letter) for letter in "abc")
    assert c.depends_on(b, a).depends_on(a) is c
    assert c.producers == [b, a, a]
    with pytest.raises(NkiTypeError, match="depends_on was given a str"):
        c.depends_on("b")  # type: ignore[arg-type]


def test_tensors_are_described() -> None:
    x = nl.ndarray((64, 8), dtype=nl.bfloat16, buffer=nl.sbuf, address=(64, 0))
    assert describe(x) == Tile((64, 8), "bfloat16", "sbuf", 64)
    assert describe(x[32:64, 0:4]) == Tile((32, 4), "bfloat16", "sbuf", 96)
    free = nl.ndarray((64, 8), dtype=nl.float32, buffer=nl.psum)
    assert describe(free) == Tile((64, 8), "float32", "psum")
    assert describe(nisa.VirtualRegister(1)) == Tile((1, 1), "int32", "register")
    assert describe(np.zeros(3)) is None
    index = nl.ndarray((64, 1), dtype=nl.uint32, buffer=nl.sbuf)
    table = nl.ndarray((100, 8), dtype=nl.float32, buffer=nl.shared_hbm)
    rows = describe(table.ap(pattern=[[8, 64], [1, 8]], vector_offset=index, indirect_dim=0))
    assert rows is not None
    assert (rows.indirect, rows.index) == (True, Tile((64, 1), "uint32", "sbuf"))
    row = TABLE["dma_copy"]
    operands, attributes = {"dst": free, "src": table}, {"engine": "unknown"}
    with pytest.raises(NkiValidationError, match="dst is in psum"):
        make_call(row, operands, attributes, 3, describe)


def test_prepare_checks_rules_and_addresses() -> None:
    x = nl.ndarray((64, 8), dtype=nl.float32, buffer=nl.sbuf)
    bound = bind(TABLE["tensor_copy"], (x, x[:, :]), {})
    assert prepare(TABLE["tensor_copy"], *bound, 3).engine == "vector"
    bound = bind(TABLE["tensor_copy"], (x[0:16], x[16:32]), {})
    with pytest.raises(
        NkiValidationError, match=r"tensor_copy src, .* starts at partition 16"
    ) as caught:
        prepare(TABLE["tensor_copy"], *bound, 3)
    assert caught.value.code == "NKI030"
    prepare(TABLE["dma_copy"], *bind(TABLE["dma_copy"], (x[0:16], x[16:32]), {}), 3)
    with pytest.raises(NkiValidationError, match="dst of shape"):
        prepare(TABLE["dma_copy"], *bind(TABLE["dma_copy"], (x[0:16], x), {}), 3)


def test_operators_of_the_language_are_understood() -> None:
    names: list[str] = []
    with use(issuer=Issuer(lambda _row, _operands, attributes: names.append(attributes["op0"]))):
        nisa.activate2(None, nl.prelu, None, 0, 0, nl.bypass, nl.bypass)
    assert names == ["bypass"]
