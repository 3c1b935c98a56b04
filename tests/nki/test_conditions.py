"""``while register:`` as a loop of the device, and what is refused around it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.errors import NkiError, NkiTypeError
from nki.recording import Loop

pytestmark = pytest.mark.usefixtures("reference_executor")


def register_of(value: Any) -> Any:
    made = nisa.register_alloc()
    nisa.register_load(made, nl.load(value))
    return made


def decremented(register: Any, held: Any) -> None:
    nisa.register_store(held, register)
    nisa.tensor_scalar(held, held, nl.add, -1)
    nisa.register_load(register, held)


@nki.jit
def nested(outer: Any, inner: Any) -> Any:
    """Count how often the innermost body runs, and how often the outer one does."""
    total = nl.zeros((1, 2), dtype=nl.int32, buffer=nl.sbuf)
    one = nl.full((1, 1), 1, dtype=nl.int32, buffer=nl.sbuf)
    held = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    registers = [register_of(outer)]
    while registers[0]:
        second = register_of(inner)
        while second:
            nisa.tensor_tensor(total[:, 0:1], total[:, 0:1], one, nl.add)
            decremented(second, held)
        nisa.tensor_tensor(total[:, 1:2], total[:, 1:2], one, nl.add)
        decremented(registers[0], held)
    out = nl.ndarray((1, 2), nl.int32, nl.shared_hbm)
    nl.store(out, total)
    return out


def number(value: int) -> Any:
    return np.array([[value]], np.int32)


@pytest.mark.parametrize(("outer", "inner"), [(0, 3), (3, 0), (1, 1), (3, 4)])
def test_loops_nest(outer: int, inner: int) -> None:
    got = nested(number(outer), number(inner))
    np.testing.assert_array_equal(got, [[outer * inner, outer]])
    loops = [i for i in nested.record(number(1), number(1)).items() if isinstance(i, Loop)]
    assert [loop.kind for loop in loops] == ["while"]
    assert len(loops[0].body.loops) == 1


def test_a_loop_is_entered_again() -> None:
    @nki.jit
    def kernel(count: Any) -> Any:
        held = nl.zeros((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        total = nl.zeros((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        one = nl.full((1, 1), 1, dtype=nl.int32, buffer=nl.sbuf)
        for _ in range(2):
            register = register_of(count)
            while register:
                nisa.tensor_tensor(total, total, one, nl.add)
                decremented(register, held)
        out = nl.ndarray((1, 1), nl.int32, nl.shared_hbm)
        nl.store(out, total)
        return out

    assert kernel(number(3)) == 6


def leave_by_break(register: Any) -> None:
    while register:
        break


def leave_by_return(register: Any) -> None:
    while register:
        return


def leave_the_inner_one(register: Any) -> None:
    held = nl.zeros((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    while register:
        second = nisa.register_alloc(1)
        while second:
            break
        decremented(register, held)


@pytest.mark.parametrize("body", [leave_by_break, leave_by_return, leave_the_inner_one])
def test_loops_are_not_left(body: Any) -> None:
    @nki.jit
    def kernel() -> None:
        body(nisa.register_alloc(1))

    text = r"a loop over a register is left by break or return; .*let the body set .*\[NKI245\]"
    with pytest.raises(NkiError, match=text) as caught:
        kernel()
    assert caught.value.where[0] == __file__


def in_an_if(register: Any) -> None:
    if register:
        raise AssertionError


def negated(register: Any) -> None:
    while not register:
        raise AssertionError


def in_a_conjunction(register: Any) -> None:
    while register and True:
        raise AssertionError


def called(register: Any) -> None:
    bool(register)


def without_source(register: Any) -> None:
    exec("while register:\n    pass", {"register": register})  # noqa: S102 (on purpose)


@pytest.mark.parametrize("body", [in_an_if, negated, in_a_conjunction, called, without_source])
def test_other_conditions_are_refused(body: Any) -> None:
    @nki.jit
    def kernel() -> None:
        body(nisa.register_alloc(1))

    with pytest.raises(NkiTypeError, match=r"used as a condition of Python.*\[NKI139\]"):
        kernel()
