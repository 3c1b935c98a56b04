# mypy: ignore-errors
"""Kernels with something that the NKI compiler refuses, one each; `bad` marks the line.

Nothing of it runs: `tests/nki/test_lint.py` lets the lint look at the functions.
"""

from dataclasses import dataclass

import numpy as np

import nki.isa as nisa
import nki.language as nl

COUNT = 0


def identity(a, flag=None):
    if flag is None:  # bad NKI251 sure 0.3
        return a
    return a


def not_identity(a, flag=None):
    x = 1 if a is not flag else 2  # bad NKI251 sure 0.3
    return x


def keys(a):
    d = {1: a}  # bad NKI251 sure
    return d


def complex_number(a):
    return a, 2j  # bad NKI251 inferred


def wide_integer(a):
    return a, 2**2, 4294967296  # bad NKI251 inferred


def a_set(a):
    for i in {1, 2}:  # bad NKI251 inferred
        print(i)


def set_comprehension(a):
    return {i for i in range(3)}  # bad NKI251 inferred


def generator(a):
    yield a  # bad NKI251 inferred


def generator_expression(a):
    return sum(i for i in range(3))  # bad NKI251 inferred


def walrus(a):
    while (n := 1) > 2:  # bad NKI251 inferred
        print(n)


def starred(a):
    shape = (1, 2)
    return max(*shape)  # bad NKI251 inferred


def starred_words(a):
    more = dict(name="x")
    return nl.ndarray((4, 4), nl.float32, **more)  # bad NKI251 inferred


def tried(a):
    try:  # bad NKI250 inferred
        return a
    finally:
        print(a)


def raised(a):
    raise ValueError  # bad NKI250 inferred


def imported(a):
    import math  # bad NKI250 inferred

    return math


def imported_from(a):
    from math import pi  # bad NKI250 inferred

    return pi


def deleted(a):
    del a  # bad NKI250 inferred


def matched(a):
    match a.shape:  # bad NKI250 inferred
        case _:
            return a


def classed(a):
    class C(nl.NKIObject):  # bad NKI250 inferred
        x: int = 1

    return C


def with_file(a):
    with open("x"):  # bad NKI250 inferred
        return a


def global_state(a):
    global COUNT  # bad NKI258 inferred
    COUNT = 1


def keyword_only(a, *, flag=True):  # bad NKI252 sure 0.3
    return a


def variadic(*tensors):  # bad NKI252 inferred
    return tensors


def variadic_words(a, **options):  # bad NKI252 inferred
    return a


def list_default(a, stride=[1, 1]):  # bad NKI252 sure 0.3
    return a


def closure(a):
    def inner():  # bad NKI251 inferred
        return a

    return inner()


def lambda_closure(a):
    return (lambda x: a)(1)  # bad NKI251 inferred


class Plain:
    x = 1


class Derived(nl.NKIObject):
    x: int = 1


class Twice(Derived):
    pass


def plain_class(a):
    return Plain()  # bad NKI253 sure


def class_of_a_class(a):
    return Twice()  # bad NKI253 sure


def loop_in_order(a):
    with nl.no_reorder():
        nl.fori_loop(0, 3, print)  # bad NKI255 sure


def body_returns(a):
    def body(i):
        return i  # bad NKI255 sure 0.6

    nl.fori_loop(0, 3, body)


def body_without_condition(a):
    def body(r):  # bad NKI255 sure 0.6
        nisa.register_load(r, a)

    nl.while_loop(nisa.register_alloc(1), body)


def counter_arithmetic(a):
    def body(i):
        nisa.memset(a[i + 1], 0)  # bad NKI255 sure 0.6

    nl.fori_loop(0, 3, body_fun=body)


def counter_compared(a):
    def body(i):
        if i == 0:  # bad NKI255 sure 0.6
            nisa.memset(a, 0)

    nl.fori_loop(0, 3, body)


def dynamic(a):
    for i in nl.dynamic_range(3):  # bad NKI257 inferred 0.6
        nisa.memset(a, 0)


def while_register(a):
    reg = nisa.register_alloc(1)
    while reg:  # bad NKI257 inferred 0.6
        nisa.register_load(reg, a)


def gone(a):
    return nl.arange(128)  # bad NKI256 sure


def masked(a):
    nisa.tensor_copy(a, a, mask=a)  # bad NKI256 sure


# --- reached from a kernel ---------------------------------------------------------------------


def helper(a):
    assert a is not None  # in a helper
    return a


def calls_helper(a):
    return helper(a)


class Options(nl.NKIObject):
    n: int = 1

    def wide(self):
        return self.n is None  # in a method


def uses_options(a):
    return Options(2).wide()


# --- nothing wrong -----------------------------------------------------------------------------


def scale(dst, src, factor=2.0):
    nisa.tensor_scalar(dst=dst, data=src, op0=nl.multiply, operand0=factor)


@dataclass
class Config(nl.NKIObject):
    rows: int = 128
    name: str = "x"


def fine(a, b, config: Config, shape=(1, 2), flag: bool = True):
    """What the language guide shows."""
    assert a.shape == b.shape, f"shapes {a.shape} and {b.shape}"
    print(f"adding {a.dtype}")
    values = [1, 2, 3]
    values.append(4.1)
    table = dict()
    table["a"] = 1
    table = {"b": 2, **table}
    apply = scale
    total = nl.zeros((128, 512), nl.float32)
    for i in range(len(values)):
        if i % 2 == 0 and flag:
            apply(dst=total, src=total)
        elif config == None:
            continue
        else:
            x = 0
            while x < 10:
                x += 1
    squares = [n * n for n in values]
    register = nisa.register_alloc(3)

    def body(i):
        nisa.dma_copy(dst=total[0:1, 0:1], src=a.ap([[1, 1], [1, 1]], scalar_offset=i))

    nl.fori_loop(0, register, body)

    def again(r):
        nisa.register_load(r, total)
        return r

    nl.while_loop(register, again)
    with nl.no_reorder():
        scale(total, total)
    np.arange(3)
    return a, squares
