"""Starts and dones, as XLA's own passes make them, mean what the synchronous instruction means."""

from __future__ import annotations

import numpy as np
import pytest

from neuronxcc.frontends.hlo import HloError, import_hlo
from neuronxcc.ir.reference import evaluate, evaluate_ranks
from tests.frontends.hlo_text import natively, proto_of, text_of
from tests.frontends.modules import Computation, module, shape, tuple_shape

X, Y = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)
COLLECTIVES = """
s = f32[4] all-reduce-start(p0), replica_groups={{0,1}}, to_apply=add
d = f32[4] all-reduce-done(s)
gs = (f32[4], f32[8]) all-gather-start(d), replica_groups={{0,1}}, dimensions={0}
g = f32[8] all-gather-done(gs)
cs = (f32[4], f32[4], u32[], u32[]) collective-permute-start(p0), source_target_pairs={{0,1}}
c = f32[4] collective-permute-done(cs)
r = (f32[4], f32[8], f32[4]) tuple(d, g, c)
"""


def test_collectives() -> None:
    imported = import_hlo(proto_of(text_of(COLLECTIVES, [X])))
    found = evaluate_ranks(imported.graph, [[X], [Y]])
    total = X + Y
    for rank, results in enumerate(found):
        expected = [total, np.concatenate([total] * 2), X if rank else np.zeros_like(X)]
        for got, want in zip(results, expected, strict=True):
            np.testing.assert_array_equal(got, want)


def test_copies() -> None:
    body = """s = (f32[4], f32[4], u32[]) copy-start(p0)
    r = f32[4] copy-done(s)"""
    (got,) = evaluate(import_hlo(proto_of(text_of(body, [X]))).graph, [X])
    np.testing.assert_array_equal(got, X)


def test_anything_else_is_a_call() -> None:
    body = """s = ((f32[4], f32[4]), f32[4], u32[]) add-start(p0, p1)
    u = ((f32[4], f32[4]), f32[4], u32[]) add-update(s)
    r = f32[4] add-done(u)"""
    imported = import_hlo(proto_of(text_of(body, [X, Y])))
    np.testing.assert_array_equal(natively(imported, [X, Y])[0], X + Y)


@pytest.mark.parametrize(
    ("opcode", "text"),
    [
        ("async-done", "async-done takes what its start returns"),
        ("all-gather-done", "all-gather-done takes what its start returns"),
        ("copy-done", "copy-done takes what its start returns"),
        ("all-gather-start", "returns its operands and its results"),
    ],
)
def test_a_done_without_its_start(opcode: str, text: str) -> None:
    main = Computation("main", 1)
    main.add(opcode, "f32[4]", main.parameter("f32[4]"))
    with pytest.raises(HloError, match="NCC_EVRF064") as caught:
        import_hlo(module(main))
    assert text in str(caught.value)


def test_a_start_that_declares_too_little() -> None:
    main = Computation("main", 1)
    main.add("copy-start", tuple_shape(shape("f32[4]")), main.parameter("f32[4]"))
    with pytest.raises(HloError, match="copy-start returns a tuple of 2 or more"):
        import_hlo(module(main))
