"""What would make a program faster, by rules over its estimate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from torch_neuronx.estimation.schedule import Clock, Mode
from torch_neuronx.estimation.segments import Piece

__all__ = ["RULES", "Advice", "advise"]


class Advice(NamedTuple):
    """A rule that applies.

    Attributes:
        rule: its name.
        share: of the step's time that it is about.
        text: what to do, in sentences.
    """

    rule: str
    share: float
    text: str


class Rule(NamedTuple):
    """A rule about what a step spends its time on.

    Attributes:
        name: of the rule.
        least: the share of the step from which on it is said.
        share: microseconds that it is about.
        text: what to do.
    """

    name: str
    least: float
    share: Callable[[Clock, Mode], float]
    text: str


def _those(which: Callable[[Piece], bool]) -> Callable[[Clock, Mode], float]:
    return lambda clock, _mode: sum(piece.us for piece in clock.pieces if which(piece))


def _row(engine: str) -> Callable[[Clock, Mode], float]:
    return lambda clock, _mode: sum(row.us for row in clock.rows if row.engine == engine)


_ELEMENTWISE = {"function", "arithmetic with a number", "arithmetic of tensors", "division", "copy"}


def _unfused(clock: Clock, mode: Mode) -> float:
    """Operators on elements, each a program of its own, or bound by memory in one."""
    if mode == "eager":
        pieces = [piece.us for piece in clock.pieces if piece.kind in _ELEMENTWISE]
        return sum(pieces) if len(pieces) > 1 else 0.0  # one is no chain
    return sum(p.us for p in clock.pieces if p.kind in _ELEMENTWISE and p.engine == "dma")


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "transposes",
        0.10,
        _those(lambda piece: piece.kind == "transpose"),
        "Transposes take a tenth of the step or more: the Tensor Engine does them instead of "
        "products. Keep activations in the layout that the next product sums over, and store "
        "weights the way they are used.",
    ),
    Rule(
        "short rows",
        0.02,
        _those(lambda piece: 0 < piece.row_bytes < 512),
        "Rows of less than 512 bytes are moved: a DMA engine takes as long for each as for 2 KiB. "
        "Gather whole rows, or pack what is gathered together.",
    ),
    Rule(
        "unfused chains",
        0.10,
        _unfused,
        "Operators on single elements go through memory one by one. Compile the model "
        '(torch.compile(model, backend="neuron")), or write the chain as one kernel.',
    ),
    Rule(
        "spills",
        0.02,
        lambda clock, _mode: clock.us * clock.spilled / max(1, clock.read + clock.written),
        "Values that do not fit into SBUF go to HBM and back. Make tiles or batches smaller, or "
        "divide the layer over more cores.",
    ),
    Rule(
        "half of the array",
        0.10,
        _those(
            lambda piece: piece.kind == "product" and piece.filled <= 0.5 and piece.engine != "dma"
        ),
        "Products fill half of the Tensor Engine's 128 x 128 array or less: their sums are over "
        "fewer than 128 elements, or they have fewer than 64 rows. Batch them, or choose widths "
        "that are multiples of 128.",
    ),
    Rule(
        "float32 products",
        0.20,
        _those(
            lambda piece: piece.kind == "product" and piece.passes > 2 and piece.engine != "dma"
        ),
        "Products in float32 take about four passes of the Tensor Engine. Use bfloat16 "
        "(model.bfloat16(), autocast), or --auto-cast matmult.",
    ),
    Rule(
        "host",
        0.20,
        _row("host"),
        "The core waits for the host. Compile the model, give it larger batches, and read no "
        "values in between (.item(), print).",
    ),
    Rule(
        "collectives",
        0.30,
        _row("cc"),
        "The core waits for other cores. Use fewer of them for one layer, or let collectives run "
        "beside computation (FSDP's prefetch, asynchronous tensor parallelism).",
    ),
    Rule(
        "operators of the host",
        0.0,
        _those(lambda piece: piece.kind == "host"),
        "Some operators are none of a NeuronCore: the host would run them. "
        "torch_neuronx.explain names them.",
    ),
)


def advise(clock: Clock, mode: Mode) -> tuple[Advice, ...]:
    """Return the rules that apply, those about the most time first."""
    return tuple(sorted(_applying(clock, mode), key=lambda advice: -advice.share))


def _applying(clock: Clock, mode: Mode) -> Iterable[Advice]:
    for rule in RULES:
        share = rule.share(clock, mode) / clock.us if clock.us else 0.0
        if share > rule.least:
            yield Advice(rule.name, share, rule.text)
