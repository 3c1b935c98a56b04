"""Operators with dimension numbers: any valid ones, against XLA on the CPU.

The module comes from JAX, so every case is what XLA takes. The reference evaluates it, or the
compiled program runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax

from neuronxcc.frontends.hlo import import_hlo
from neuronxcc.ir.reference import evaluate
from tests.frontends.hlo_text import natively

Draw = Callable[[st.SearchStrategy[Any]], Any]
quick = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
SMALL = st.integers(1, 4)


def array(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(sum(shape) + 7 * len(shape))
    return rng.standard_normal(shape).astype(np.float32)


def check(function: Callable[..., Any], *args: Any, native: bool = False) -> None:
    """The reference, or the program, gives what JAX does."""
    jitted = jax.jit(function)
    module: Any = jitted.lower(*args).compiler_ir("hlo")
    imported = import_hlo(module.as_serialized_hlo_module_proto())
    wanted = [np.asarray(x) for x in jax.tree.leaves(jitted(*args))]
    given_ = [np.asarray(a) for a in args]
    found = natively(imported, given_) if native else evaluate(imported.graph, given_)
    for got, want in zip(found, wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        finite = np.abs(want[np.isfinite(want)])
        largest = float(finite.max()) if finite.size else 0.0
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * max(largest, 1.0))


@quick
@given(st.data())
def test_dot_general(data: st.DataObject) -> None:
    draw: Draw = data.draw
    batch, contract = (draw(st.lists(SMALL, max_size=2)) for _ in range(2))
    sides, numbers = [], []
    for _ in range(2):
        free = draw(st.lists(SMALL, max_size=2))
        extents = [*batch, *contract, *free]
        order = draw(st.permutations(range(len(extents))))
        sides.append(array(*(extents[d] for d in order)))
        places = [order.index(d) for d in range(len(extents))]
        count = len(batch) + len(contract)
        numbers.append((places[len(batch) : count], places[: len(batch)]))
    (lc, lb), (rc, rb) = numbers
    dims = ((tuple(lc), tuple(rc)), (tuple(lb), tuple(rb)))
    native = draw(st.booleans())
    check(lambda x, y: lax.dot_general(x, y, dims), *sides, native=native)


@quick
@given(st.data())
def test_convolution(data: st.DataObject) -> None:
    draw: Draw = data.draw
    spatial = draw(st.integers(1, 2))
    groups = draw(st.sampled_from([1, 1, 2]))
    batched = draw(st.booleans()) and groups == 2
    inputs = draw(st.integers(1, 2)) * (1 if batched else groups)
    outputs = draw(st.integers(1, 2)) * groups
    extents = [draw(st.integers(3, 6)) for _ in range(spatial)]
    window = [draw(st.integers(1, 3)) for _ in range(spatial)]
    letters = "HW"[:spatial]
    lhs = "".join(draw(st.permutations("NC" + letters)))
    rhs = "".join(draw(st.permutations("OI" + letters)))
    out = "".join(draw(st.permutations("NC" + letters)))
    sizes = {"N": 2, "C": inputs, **dict(zip(letters, extents, strict=True))}
    per_group = inputs if batched else inputs // groups
    filters = {"O": outputs, "I": per_group, **dict(zip(letters, window, strict=True))}
    x, w = array(*(sizes[c] for c in lhs)), array(*(filters[c] for c in rhs))
    pairs = st.tuples(st.integers(-1, 2), st.integers(0, 2))
    padding = [draw(pairs) for _ in range(spatial)]
    dilated = draw(st.sampled_from(["lhs", "rhs", "strides", ""]))
    more = {name: [2 if name == dilated else 1] * spatial for name in ("lhs", "rhs", "strides")}
    check(
        lambda x, w: lax.conv_general_dilated(
            x, w, more["strides"], padding, more["lhs"], more["rhs"], (lhs, rhs, out),
            feature_group_count=1 if batched else groups,
            batch_group_count=groups if batched else 1,
        ),
        x, w, native=draw(st.booleans()),
    )  # fmt: skip


@quick
@given(st.data())
def test_gather_and_scatter(data: st.DataObject) -> None:
    draw: Draw = data.draw
    rank = draw(st.integers(1, 3))
    extents = [draw(st.integers(2, 5)) for _ in range(rank)]
    mapped = draw(st.lists(st.sampled_from(range(rank)), unique=True, min_size=1))
    collapsed = sorted(draw(st.lists(st.sampled_from(mapped), unique=True)))
    sizes = [1 if d in collapsed else draw(st.integers(1, n)) for d, n in enumerate(extents)]
    lead = draw(st.lists(SMALL, max_size=2))
    windows = rank - len(collapsed)
    offsets = sorted(
        draw(
            st.lists(
                st.sampled_from(range(len(lead) + windows)), unique=True, min_size=windows,
                max_size=windows,
            )
        )
        if windows
        else []
    )  # fmt: skip
    rng = np.random.default_rng(rank)
    indices = rng.integers(-1, 6, (*lead, len(mapped))).astype(np.int32)
    numbers = lax.GatherDimensionNumbers(tuple(offsets), tuple(collapsed), tuple(mapped))
    x = array(*extents)
    native = draw(st.booleans())

    def gather(x: Any, i: Any) -> Any:
        return lax.gather(x, i, numbers, sizes, mode=lax.GatherScatterMode.CLIP)

    check(gather, x, indices, native=native)
    updates = array(*jax.eval_shape(gather, x, indices).shape)
    dims = lax.ScatterDimensionNumbers(tuple(offsets), tuple(collapsed), tuple(mapped))
    kind = draw(st.sampled_from([lax.scatter_add, lax.scatter_max, lax.scatter_min]))
    check(
        lambda x, i, u: kind(x, i, u, dims, mode=lax.GatherScatterMode.FILL_OR_DROP),
        x, indices, updates, native=native,
    )  # fmt: skip


@quick
@given(st.data())
def test_reduce_window(data: st.DataObject) -> None:
    draw: Draw = data.draw
    rank = draw(st.integers(1, 3))
    extents = [draw(st.integers(3, 6)) for _ in range(rank)]
    window = [draw(st.integers(1, 3)) for _ in range(rank)]
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    padding = [draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in range(rank)]
    dilated = draw(st.sampled_from(["base", "window", "", ""]))
    holes = [draw(st.integers(1, 2)) for _ in range(rank)] if dilated else [1] * rank
    ones = [1] * rank
    kind, start = draw(
        st.sampled_from(
            [
                (lax.add, 0.0),
                (lax.max, -np.inf),
                (lax.min, np.inf),
                (lax.add, 0.5),
                (lambda a, b: a + b - a * b * 0.25, 0.25),
            ]
        )
    )
    base, spread = (holes, ones) if dilated == "base" else (ones, holes)
    check(
        lambda x: lax.reduce_window(
            x, np.float32(start), kind, window, strides, padding, base, spread
        ),
        array(*extents), native=draw(st.booleans()),
    )  # fmt: skip


@quick
@given(st.data())
def test_pad_and_slices(data: st.DataObject) -> None:
    draw: Draw = data.draw
    rank = draw(st.integers(1, 3))
    extents = [draw(st.integers(2, 5)) for _ in range(rank)]
    config = [
        (draw(st.integers(-2, 3)), draw(st.integers(0, 3)), draw(st.integers(0, 2)))
        for _ in extents
    ]
    sizes = [draw(st.integers(1, n)) for n in extents]
    starts = np.array([draw(st.integers(-3, 7)) for _ in extents], np.int32)
    steps = [draw(st.integers(1, 3)) for _ in extents]
    x = array(*extents)
    native = draw(st.booleans())
    check(
        lambda x, s: (
            lax.pad(x, jnp.float32(3), config), lax.dynamic_slice(x, list(s), sizes),
            lax.dynamic_update_slice(x, jnp.ones(sizes), list(s)),
            lax.slice(x, [0] * rank, x.shape, steps),
        ),
        x, starts, native=native,
    )  # fmt: skip


@quick
@given(st.data())
def test_movement_and_reductions(data: st.DataObject) -> None:
    draw: Draw = data.draw
    rank = draw(st.integers(1, 4))
    extents = [draw(st.integers(1, 4)) for _ in range(rank)]
    order = draw(st.permutations(range(rank)))
    dims = tuple(draw(st.lists(st.sampled_from(range(rank)), unique=True, min_size=1)))
    x = array(*extents)
    native = draw(st.booleans())
    wide = [*extents, 2]
    check(
        lambda x: (
            lax.transpose(x, order), lax.rev(x, dims), x.sum(dims), x.max(dims),
            jnp.argmax(x, dims[0]), jnp.sort(x, dims[0]), jnp.cumsum(x, dims[0]),
            lax.broadcast_in_dim(x, wide, tuple(range(rank))),
        ),
        x, native=native,
    )  # fmt: skip
