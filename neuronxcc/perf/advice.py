"""What would make a program faster, by rules: :func:`advice_for`.

Every rule looks at what the timeline was made of, and speaks only where it is about a share of the
time that is worth the work. The thresholds are those of the profiler's documented recommendations
where it has one (transposes over 10 %), else a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from neuronxcc.perf.model import LEAST_CYCLES, Cost
from neuronxcc.perf.prediction import Prediction
from neuronxcc.perf.stream import ENGINES, GPSIMD, SCALAR, TENSOR, VECTOR, Work

__all__ = ["Advice", "advice_for"]

_WORTH: Final = 0.1  # of the device's time, or of what an engine does
_SHORT_ROW: Final = 512  # bytes; below that a row costs more than its bytes again
_HALF: Final = 0.5  # of the array
_ARRAY: Final = 128  # rows and columns of it
_US = 1e6


class Advice(NamedTuple):
    """Something to look at.

    Attributes:
        rule: its name, a word or two.
        text: what was found and what to do, in sentences.
        share: of the device's time that it is about, at the most.
    """

    rule: str
    text: str
    share: float


class _Used(NamedTuple):
    """A work with how often it runs, and microseconds that all of them keep their engine busy."""

    work: Work
    cost: Cost
    runs: int
    busy: float


def advice_for(made: Prediction) -> tuple[Advice, ...]:
    """Return what a program would gain by, that which is about the most time first."""
    if not made.device_us:
        return ()
    used = list(_used(made))
    found = [text for rule in _RULES for text in rule(made, used)]
    return tuple(sorted(found, key=lambda advice: -advice.share))


def _used(made: Prediction) -> Iterator[_Used]:
    engines = made.machine.target.core.dma_engines
    for work, count in zip(made.stream.works, made.counts.tolist(), strict=True):
        cost = made.machine.cost(work)
        each = cost.moving * cost.engines / engines if cost.engines else cost.issue
        yield _Used(work, cost, count, each * count / _US / made.cores)


def _share(made: Prediction, chosen: list[_Used]) -> float:
    return min(1.0, sum(item.busy for item in chosen) / made.device_us)


def _short_rows(made: Prediction, used: list[_Used]) -> Iterator[Advice]:
    short = [u for u in used if u.work.transfer and u.work.transfer.row < _SHORT_ROW]
    share = _share(made, short)
    if share > _WORTH:
        least = min(u.work.transfer.row for u in short if u.work.transfer)
        more = made.machine.parameters.dma_row
        yield Advice(
            "short rows",
            f"{share:.0%} of the time the DMA engines move rows of less than {_SHORT_ROW} bytes, "
            f"down to {least}. A row costs as much as {more:.0f} bytes besides its own: load tiles "
            "with longer rows, or several at once.",
            share,
        )


def _transposes(made: Prediction, used: list[_Used]) -> Iterator[Advice]:
    products = [u for u in used if u.work.queue == TENSOR]
    turned = [u for u in products if u.work.product and u.work.product.transpose]
    whole = sum(u.busy for u in products)
    part = sum(u.busy for u in turned)
    if whole and part > _WORTH * whole and _share(made, turned) > _WORTH / 2:
        yield Advice(
            "transposes",
            f"{part / whole:.0%} of the Tensor Engine's time goes into transposes. Keep the "
            "operand in the order that the product wants, turn it around once and keep it, or let "
            "the DMA engines do it while loading (nisa.dma_transpose).",
            _share(made, turned),
        )


def _spills(made: Prediction, used: list[_Used]) -> Iterator[Advice]:
    spilled = [u for u in used if u.work.transfer and u.work.transfer.spill]
    if spilled:
        yield Advice(
            "spills",
            f"{made.spilled_bytes / 1e6:.1f} MB go to HBM and back because tiles do not fit in "
            "SBUF. Use smaller tiles, or finish with one before the next is made.",
            _share(made, spilled),
        )


def _half_arrays(made: Prediction, used: list[_Used]) -> Iterator[Advice]:
    products = [u for u in used if u.work.product and not u.work.product.transpose]
    whole = sum(u.busy for u in products)
    filled = sum(u.busy * _fill(u.work) for u in products)
    if whole and filled <= _HALF * whole and _share(made, products) > _WORTH:
        yield Advice(
            "half the array",
            f"products use {filled / whole:.0%} of the {_ARRAY} x {_ARRAY} array on average. Let "
            "the contraction fill 128 partitions and the stationary tile 128 columns.",
            _share(made, products),
        )


def _fill(work: Work) -> float:
    product = work.product
    assert product is not None
    used = min(product.rows, _ARRAY) * min(product.columns, _ARRAY)
    return used / (_ARRAY * _ARRAY)


def _float32_products(made: Prediction, used: list[_Used]) -> Iterator[Advice]:
    wide = [u for u in used if u.work.product and u.work.product.dtype == "float32"]
    share = _share(made, wide)
    if made.bound_by == "tensor" and share > _HALF:
        yield Advice(
            "float32 products",
            "the Tensor Engine takes four passes for float32. In bfloat16 the same products take "
            "a quarter of the time; sums stay in float32.",
            share * 0.75,
        )


def _short_instructions(made: Prediction, used: list[_Used]) -> Iterator[Advice]:
    for queue in (TENSOR, VECTOR, SCALAR, GPSIMD):
        clock = made.machine.clocks[queue]
        least = round(LEAST_CYCLES / clock * 1000)
        mine = [u for u in used if u.work.queue == queue and not u.cost.engines]
        short = [u for u in mine if u.cost.issue <= least]
        share = _share(made, short)
        if share > _WORTH:
            yield Advice(
                "short instructions",
                f"{share:.0%} of the time {ENGINES[queue]} runs instructions that are as short as "
                f"one can be, {LEAST_CYCLES} cycles. Wider tiles do more in the same time.",
                share,
            )


def _idle(made: Prediction, used: list[_Used]) -> Iterator[Advice]:
    del used
    waiting = made.critical.get("waiting", 0.0)
    if made.bound_by == "latency" and waiting > _WORTH:
        yield Advice(
            "waiting",
            f"no engine works half of the time, and {waiting:.0%} of the time the end waits for "
            "results and for transfers to begin. Give a loop's tiles several buffers, so that the "
            "next iteration begins before this one ends, and do more with an instruction.",
            waiting,
        )


def _descriptors(made: Prediction, used: list[_Used]) -> Iterator[Advice]:
    slow = [u for u in used if u.work.transfer and u.work.transfer.made == "gpsimd"]
    making = sum(u.cost.making * u.runs for u in slow) / _US / made.cores
    if making > _WORTH * made.device_us:
        share = min(1.0, making / made.device_us)
        yield Advice(
            "descriptors",
            f"for {share:.0%} of the time GpSimd makes descriptors of transfers whose addresses "
            "move. Use addresses that are known, fewer and larger transfers, or "
            "dge_mode=nisa.dge_mode.hwdge.",
            share,
        )


def _one_of_two(made: Prediction, used: list[_Used]) -> Iterator[Advice]:
    shares = made.utilisation
    movable = [
        u for u in used if u.work.queue == VECTOR
        and u.work.name in ("tensor_copy", "tensor_scalar")
    ]  # fmt: skip
    share = _share(made, movable)
    if made.bound_by == "vector" and share > _WORTH and shares["scalar"] < shares["vector"] / 2:
        yield Advice(
            "Scalar is idle",
            f"Vector binds the program, and {share:.0%} of the time it runs copies and products "
            "with numbers, which Scalar could run (nisa.activation, or engine=nisa.engine.scalar).",
            share / 2,
        )


_RULES: Final[tuple[Callable[[Prediction, list[_Used]], Iterator[Advice]], ...]] = (
    _short_rows,
    _transposes,
    _spills,
    _half_arrays,
    _float32_products,
    _short_instructions,
    _idle,
    _descriptors,
    _one_of_two,
)
