"""What holds of the times of all device programs: of any operators, extents, types and chips."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph
from neuronxcc.options import Options
from neuronxcc.perf import Prediction, model_of
from neuronxcc.perf.model import CoreModel
from neuronxcc.perf.stream import ENGINES
from neuronxcc.targets import TARGETS, Target, get_target
from nki.device import DeviceProgram, ProgramPrediction, lower

from .device_families import FAMILIES, extents_of, padded, softmax, turned
from .device_tools import given_, graph_of

MACHINES = [(target, lnc) for target in TARGETS for lnc in target.supported_lnc]
TYPES = (DType.F32, DType.BF16, DType.F16)
# Extents of a graph with so many of them, so that it has some thousand instructions at the most.
MOST = {2: 4000, 3: 400, 4: 48}
CLOSE = 1 + 1e-6  # microseconds are floating-point
TURN = 1 + 1e-4  # cycles are whole picoseconds
LEAST_CYCLES = 64  # of all engines but Tensor: NKI's formulas of its products have none
STEP = 0.85  # of 3,000 random pairs the lowest was 0.876
SHORTER = frozenset({"nc_match_replace8"})  # by its formula in NKI's documents


def program(
    family: Callable[..., Graph], dtype: DType, extents: tuple[int, ...], target: Target, lnc: int,
    optlevel: int,
) -> DeviceProgram:  # fmt: skip
    options = Options(target=target.name, lnc=lnc, optlevel=optlevel)
    return lower(family(dtype, *extents), target.name, options, passes=False)


def check_section(made: Prediction, target: Target) -> None:
    """The busiest engine at least, all one after the other at most; no instruction in no time."""
    model = model_of(target)
    costs = [model.cost(work) for work in made.stream.works]
    each = [
        int(count) * (c.issue + c.latency + c.start + c.making + c.moving + model.semaphore)
        for count, c in zip(made.counts, costs, strict=True)
    ]
    assert made.device_us <= sum(each) / 1e6 * CLOSE
    assert max(made.busy_us.values()) <= made.device_us * CLOSE
    issued: Counter[int] = Counter()
    for count, work in zip(made.counts, made.stream.works, strict=True):
        if work.transfer is None and work.name not in SHORTER:
            issued[work.queue] += int(count)
    for engine in ("vector", "scalar", "gpsimd"):
        queue = ENGINES.index(engine)
        least = issued[queue] * LEAST_CYCLES / model.clocks[queue] / 1e3
        assert made.busy_us[engine] * made.cores * TURN >= least


def bound_us(found: ProgramPrediction, model: CoreModel) -> float:
    """The time of a program's bytes: from HBM to HBM they are moved once, and count twice."""
    hbm, dma = found.hbm_bytes / model.hbm_gbps, found.moved_bytes / model.dma_gbps
    return max(hbm, dma) / found.cores / 1e3


def check_program(made: DeviceProgram, target: Target, *, whole: bool) -> None:
    """Properties of the times of a program.

    Args:
        made: the program.
        target: what it is for.
        whole: all of its parameters are read.
    """
    assert not made.missing, [section.reason for section in made.missing]
    found, model = made.predict(), model_of(target)
    alone = 0.0
    for part in found.sections:
        assert part.prediction is not None
        check_section(part.prediction, target)
        alone += part.prediction.device_us
    assert max(found.busy_us.values()) <= found.device_us * CLOSE
    # Who comes behind a section does not keep it from its work.
    assert found.device_us <= alone * CLOSE
    assert found.device_us == pytest.approx(sum(part.device_us for part in found.sections))
    # Nothing is faster than its bytes and its products.
    assert bound_us(found, model) <= found.device_us * CLOSE
    nbytes = sum(node.type.nbytes for node in made.graph.results)
    if whole:
        nbytes += sum(node.type.nbytes for node in made.graph.params)
    assert nbytes <= found.hbm_bytes
    peak = target.core.tensor.peak_tflops["bfloat16"] * found.cores * 1e6
    assert found.flops / peak <= found.device_us * CLOSE


def extents_for(family: Callable[..., Graph], least: int = 1) -> st.SearchStrategy[tuple[int, ...]]:
    """As many small extents as large ones."""
    count = extents_of(family)
    sizes = st.floats(math.log(least), math.log(MOST[count])).map(lambda x: round(math.exp(x)))
    return st.tuples(*[sizes] * count)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=10)
@given(data=st.data())
def test_times_are_between_what_must_be_and_what_may_be(
    family: Callable[..., Graph], data: st.DataObject
) -> None:
    target, lnc = data.draw(st.sampled_from(MACHINES))
    dtype, optlevel = data.draw(st.sampled_from(TYPES)), data.draw(st.sampled_from([1, 2]))
    extents = data.draw(extents_for(family))
    made = program(family, dtype, extents, target, lnc, optlevel)
    check_program(made, target, whole=not family.__name__.startswith("rows"))


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=10)
@given(data=st.data())
def test_longer_is_hardly_faster(family: Callable[..., Graph], data: st.DataObject) -> None:
    """What is computed in tiles has steps, but none by which a choice has become a bad one.

    A dimension of one element is left out: a program without it is another program.
    """
    target, lnc = data.draw(st.sampled_from(MACHINES))
    dtype = data.draw(st.sampled_from(TYPES))
    extents = data.draw(extents_for(family, least=2))
    dim = data.draw(st.integers(0, len(extents) - 1))
    more = data.draw(st.sampled_from([1, 2, 8, extents[dim] // 2 + 1, extents[dim]]))
    longer = tuple(size + more * (d == dim) for d, size in enumerate(extents))
    us = [program(family, dtype, one, target, lnc, 2).predict().device_us
          for one in (extents, longer)]  # fmt: skip
    assert us[1] >= STEP * us[0]


@pytest.mark.parametrize(("target", "lnc"), MACHINES)
@pytest.mark.parametrize("columns", [15, 148])
def test_what_is_left_of_a_filled_tensor_shows_the_same_block(
    target: Target, lnc: int, columns: int
) -> None:
    """A second block for the rest made a padded tensor of 3 x 148 slower than one of 5 x 148."""
    us = [
        program(padded, DType.F32, (rows, columns), target, lnc, 2).predict().device_us
        for rows in range(2, 10)
    ]
    assert min(us) >= STEP * max(us)


@pytest.mark.parametrize("rows", [1246, 2492])
def test_loads_for_later_do_not_delay_what_is_waited_for(rows: int) -> None:
    """The second section's loads were ahead of the first one's stores, which it waits for."""
    target = get_target("inf2")
    made = program(softmax, DType.BF16, (rows, 32), target, 1, 1)
    check_program(made, target, whole=True)


@pytest.mark.parametrize(("target", "lnc"), MACHINES)
@pytest.mark.parametrize("shape", [(1, 1 << 20), (1024, 1024), (3, 1, 350_000), (1 << 20,)])
def test_what_lies_in_one_run_is_moved_by_all_engines(
    shape: tuple[int, ...], target: Target, lnc: int
) -> None:
    """A row of a transfer is one engine's: a copy of 4 MiB took eight times as long."""
    x = given_(0, DType.F32, *shape)
    options = Options(target=target.name, lnc=lnc)
    made = lower(graph_of(build.concatenate([x, x], 0)), target.name, options, passes=False)
    found, model = made.predict(), model_of(target)
    assert found.hbm_bytes == 4 * x.type.nbytes
    bound = bound_us(found, model)
    # Starting and issuing the transfers takes some microseconds.
    assert bound <= found.device_us <= 1.25 * bound + 5
    values = np.arange(x.type.size, dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(made.run([values])[0], np.concatenate([values, values]))


@pytest.mark.parametrize(("target", "lnc"), MACHINES)
@pytest.mark.parametrize("columns", [40, 128, 414, 3000])
def test_more_rows_are_not_turned_in_less_time(columns: int, target: Target, lnc: int) -> None:
    """Few rows are read element by element; where that took longer, 16 rows took a fifth of 15."""
    times = [
        program(turned, DType.F32, (columns, rows), target, lnc, 2).predict().device_us
        for rows in (1, 2, 3, 4, 6, 8, 12, 15, 16, 17, 24)
    ]
    for less, more in itertools.pairwise(times):
        assert more >= 0.9 * less  # where the other way begins to pay, it is not exactly as fast
