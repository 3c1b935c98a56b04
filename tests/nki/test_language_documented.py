"""The cases of the docstrings of the public `nki.language` stubs, stated anew as assertions.

A row is (function, tiles or numbers, what it gives everywhere), as the documentation asserts with
``nl.equal``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from tests.nki.language_tools import inside, run

pytestmark = pytest.mark.usefixtures("reference_executor")


WIDE, COLUMN = (128, 512), (128, 1)


class Tile:
    """A tile of one value."""

    def __init__(self, value: float, shape: tuple[int, int] = WIDE) -> None:
        self.value = value
        self.shape = shape

    def make(self) -> Any:
        return nl.full(self.shape, self.value, dtype=nl.float32, buffer=nl.sbuf)


CASES: list[tuple[str, tuple[Any, ...], dict[str, Any], float]] = [
    ("add", (Tile(3), Tile(2)), {}, 5),
    ("add", (Tile(3), 2.0), {}, 5),
    ("subtract", (Tile(10), Tile(3)), {}, 7),
    ("subtract", (Tile(10), 3.0), {}, 7),
    ("multiply", (Tile(3), Tile(4)), {}, 12),
    ("multiply", (Tile(3), 4.0), {}, 12),
    ("maximum", (Tile(3), Tile(5)), {}, 5),
    ("maximum", (Tile(3), 5.0), {}, 5),
    ("minimum", (Tile(3), Tile(5)), {}, 3),
    ("minimum", (Tile(3), 5.0), {}, 3),
    ("abs_max", (Tile(-5), Tile(3, COLUMN)), {}, -5),
    ("abs_max", (Tile(1), Tile(-1, COLUMN)), {}, -1),
    ("abs_min", (Tile(5), Tile(-3, COLUMN)), {}, -3),
    ("abs_min", (Tile(1), Tile(-1, COLUMN)), {}, -1),
    ("abs", (Tile(-1),), {}, 1),
    ("abs", (Tile(-1),), {"dtype": nl.float16}, 1),
    ("square", (Tile(3),), {}, 9),
    ("power", (Tile(3), Tile(2)), {}, 9),
    ("exp", (Tile(0),), {}, 1),
    ("log", (Tile(1),), {}, 0),
    ("sqrt", (Tile(4),), {}, 2),
    ("rsqrt", (Tile(4),), {}, 0.5),
    ("reciprocal", (Tile(4),), {}, 0.25),
    ("sin", (Tile(0),), {}, 0),
    ("cos", (Tile(0),), {}, 1),
    ("tan", (Tile(0),), {}, 0),
    ("arctan", (Tile(0),), {}, 0),
    ("ceil", (Tile(3.2),), {}, 4),
    ("ceil", (Tile(-3.7),), {}, -3),
    ("floor", (Tile(3.7),), {}, 3),
    ("floor", (Tile(-3.2),), {}, -4),
    ("trunc", (Tile(3.7),), {}, 3),
    ("trunc", (Tile(-3.7),), {}, -3),
    ("negative", (Tile(5),), {}, -5),
    ("negative", (Tile(-3),), {}, 3),
    ("sign", (Tile(-5),), {}, -1),
    ("where", (Tile(1), Tile(10), Tile(0)), {}, 10),
    ("where", (Tile(0), Tile(10), Tile(5)), {}, 5),
]


@pytest.mark.parametrize(
    ("name", "arguments", "more", "value"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_one_value(
    name: str, arguments: tuple[Any, ...], more: dict[str, Any], value: float
) -> None:
    def body() -> Any:
        made = [a.make() if isinstance(a, Tile) else a for a in arguments]
        result = getattr(nl, name)(*made, **more)
        return result.shape, bool(nl.equal(result, Tile(value).make()))

    assert inside(body) == (WIDE, True)


def test_softmax_of_equal_elements() -> None:
    result = run(lambda t: nl.softmax(t, axis=1), np.ones(WIDE, np.float32))
    np.testing.assert_array_equal(result, np.float32(1 / 512))


def test_rms_norm_with_unit_weights() -> None:
    x, w = np.full(WIDE, 2, np.float32), np.ones(WIDE, np.float32)
    result = run(lambda a, b: nl.rms_norm(a, b, axis=1, n=512), x, w)
    np.testing.assert_allclose(result, 1, rtol=3e-7)


def test_products_and_transposes_of_the_identity() -> None:
    def body() -> Any:
        x = nl.shared_identity_matrix(n=128, dtype=nl.float32)
        y = nl.full((128, 128), 1.0, dtype=nl.float32, buffer=nl.sbuf)
        result = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(result, nl.matmul(x, y, transpose_x=True))
        product = bool(nl.equal(result, y))
        nisa.tensor_copy(result, nl.transpose(x))
        return product, bool(nl.equal(result, x))

    assert inside(body) == (True, True)


def test_loops_over_tiles() -> None:
    ranges = (nl.affine_range, nl.sequential_range, nl.static_range)

    def kernel(source: Any, which: int) -> Any:
        out = nl.ndarray(source.shape, source.dtype, nl.shared_hbm)
        for i in ranges[which](source.shape[1] // 512):
            part = slice(i * 512, i * 512 + 512)
            tile = nl.load(source[0:128, part])
            nl.store(out[0:128, part], nl.multiply(tile, tile))
        return out

    x = np.random.default_rng(0).standard_normal((128, 1024)).astype(np.float32)
    for which in range(3):
        np.testing.assert_array_equal(nki.simulate(kernel)(x, which), x * x)


def test_identity_is_what_is_stored() -> None:
    def kernel(expected: Any) -> Any:
        identity = nl.shared_identity_matrix(n=128, dtype=nl.float32)
        assert nl.equal(identity, nl.load(expected[0:128, 0:128]))
        out = nl.ndarray((128, 128), nl.float32, nl.shared_hbm)
        nl.store(out[0:128, 0:128], identity)
        return out

    one = np.eye(128, dtype=np.float32)
    np.testing.assert_array_equal(nki.simulate(kernel)(one), one)


def test_gathering_by_index() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(WIDE).astype(np.float32)
    indices = rng.integers(0, 512, WIDE).astype(np.uint32)
    result = run(nl.gather_flattened, x, indices)
    np.testing.assert_array_equal(result, np.take_along_axis(x, indices.astype(int), 1))


def test_random_numbers_lie_between_0_and_1() -> None:
    drawn = run(lambda _: nl.rand(WIDE, dtype=nl.float32), np.zeros((1, 1), np.float32))
    assert drawn.shape == WIDE
    assert 0 <= drawn.min() < drawn.max() <= 1
