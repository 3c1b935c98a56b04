"""How much faster eager mode could be at best: what joining operators can't remove.

    python -m benchmarks.eager_limits [--only REGEX] [--repeats N] [--operators N] [--allow-load]

Each model of `benchmarks.eager_models` is run in debug mode, and the times at which the core begins
and ends each operator are read from the device's own recording. Of each piece, the shortest of
`--repeats` steps counts, so a busy machine disturbs little. Milliseconds of a step:

* *step*: all of it, with what Python does between operators;
* *products*: the core's time for products, convolutions and attention;
* *joined*: for what the optimizer and the like join in every mode;
* *others*: for all other operators, which come in chains between products;
* *once*: the same if a chain read each of its inputs once, and wrote once what is read behind it or
  was there before. Of its operators' time the share of bytes remains that remains to be moved;
* *within*: the same if products also handed over what they wrote without a pass over memory.

Three limits for step / step in fused mode: *free* if all but products took no time at all; *within*
and *once* as above, joined work unchanged. In all, Python, dispatch and allocation are free as
well, and none counts that operators compute something, nor the bytes of what nobody reads behind a
chain. So joining operators can't beat them.
"""

from __future__ import annotations

import itertools
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import eager_models, quiet
from benchmarks.harness import Step
from neuron_tools.explorer.session import Event
from torch_neuronx import neuron
from torch_neuronx.profiling import recording

_PRODUCT = re.compile(r"mm|matmul|linear|convolution|attention|dot\b")
_JOINED = re.compile(r"_foreach_|_fused_|::foreach: ")
#: The rows of the issue's geometric mean: whole models.
MODELS = tuple(itertools.islice(eager_models.WORK, 7))


@dataclass
class Call:
    """An operator's call: what it reads and writes (bytes by storage), and when it ran (ns)."""

    name: str
    reads: dict[int, int]
    writes: dict[int, int]
    operands: int  # bytes of all operands and results, each time that they are named
    start: int
    end: int
    ns: int = 0

    @property
    def kind(self) -> str:
        if _PRODUCT.search(self.name):
            return "product"
        return "joined" if _JOINED.search(self.name) else "other"


@dataclass
class _Watch(TorchDispatchMode):
    """Writes down the calls of a block."""

    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._numbers = itertools.count()
        self._storages: dict[int, int] = {}  # by address: of the last owner

    def _number(self, tensor: torch.Tensor, *, fresh: bool) -> int:
        address = tensor.untyped_storage().data_ptr()
        if fresh or address not in self._storages:
            self._storages[address] = next(self._numbers)
        return self._storages[address]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        inputs = _on_core((args, kwargs or {}))
        start = time.time_ns()
        result = func(*args, **(kwargs or {}))
        end = time.time_ns()
        if func.is_view:
            return result
        outputs = _on_core(result)
        old = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        reads = {self._number(tensor, fresh=False): _bytes(tensor) for tensor in inputs}
        writes = {
            self._number(t, fresh=t.untyped_storage().data_ptr() not in old): _bytes(t)
            for t in outputs
        }
        operands = sum(_bytes(tensor) for tensor in (*inputs, *outputs))
        self.calls.append(Call(str(func), reads, writes, operands, start, end))
        return result


def _on_core(tree: object) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(tree)
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.device.type == "neuron"]


def _bytes(tensor: torch.Tensor) -> int:
    return min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())


def _outermost(events: list[Event]) -> Iterator[Event]:
    end = 0
    for event in sorted(events, key=lambda each: (each.start, -each.end)):
        if event.start >= end:
            end = event.end
            yield event


def _recorded(step: Step) -> list[Event]:
    neuron.synchronize()
    recording.start(1 << 20)
    step()
    neuron.synchronize()
    kinds = {"kernel", "copy", "program"}
    return list(_outermost([each for each in recording.take()[0] if each.kind in kinds]))


def _names(events: list[Event]) -> list[str]:
    # While calls are watched, autograd adds gradients up in new memory, and else in place.
    return [event.name.replace("_.", ".") for event in events]


def watch(step: Step) -> tuple[list[Call], list[int], list[Event]]:
    """Run a step; return its calls, the core's work, and for which call each of the latter was."""
    with _Watch() as seen:
        events = _recorded(step)
    calls: list[Call] = []
    owners = []
    left = iter(seen.calls)
    call = next(left, None)
    for event in events:
        while call is not None and event.start >= call.end:
            calls.append(call)
            call = next(left, None)
        inside = call is not None and event.start >= call.start
        owners.append(len(calls))
        # Work between two calls was deferred, and is done for the next that asks for values.
        if not inside:
            calls.append(Call(event.name, {}, {}, 0, event.start, event.end))
    if call is not None:
        calls.extend((call, *left))
    return calls, owners, events


@dataclass(frozen=True)
class Chain:
    """A run of other operators: nanoseconds, and the bytes of which the module's text speaks."""

    ns: int
    operands: int
    once: int
    from_products: int  # of `once`: what a product wrote last

    def left(self, least: int) -> float:
        """Return the nanoseconds that remain if so many bytes remain to be moved."""
        return self.ns * min(1.0, least / max(1, self.operands))


def chains(calls: list[Call]) -> Iterator[Chain]:
    """Yield the runs of other operators between products."""
    behind: list[set[int]] = []  # what is read behind each call
    later: set[int] = set()
    for call in reversed(calls):
        behind.append(set(later))
        later |= call.reads.keys()
    behind.reverse()
    of_product: set[int] = set()
    numbered = list(zip(calls, behind, strict=True))
    for kind, group in itertools.groupby(numbered, key=lambda pair: pair[0].kind):
        members = list(group)
        inputs: dict[int, int] = {}
        made: dict[int, int] = {}
        for call, _ in members:
            for storage, size in call.reads.items():
                if storage not in made:
                    inputs[storage] = max(size, inputs.get(storage, 0))
            made |= call.writes
        if kind == "other":
            wanted = members[-1][1] | inputs.keys()
            yield Chain(
                sum(call.ns for call, _ in members),
                sum(call.operands for call, _ in members),
                sum(inputs.values()) + sum(size for s, size in made.items() if s in wanted),
                sum(size for storage, size in inputs.items() if storage in of_product),
            )
        of_product = of_product | made.keys() if kind == "product" else of_product - made.keys()


@dataclass(frozen=True)
class Limits:
    """Milliseconds of a step in debug mode, and of its parts; see the module."""

    step: float
    products: float
    joined: float
    others: float
    once: float
    within: float
    operators: Counter[str]  # nanoseconds of others, by name

    @property
    def if_free(self) -> float:
        return self.step / self.products

    @property
    def if_once(self) -> float:
        return self.step / (self.products + self.joined + self.once)

    @property
    def if_within(self) -> float:
        return self.step / (self.products + self.joined + self.within)


def measure(step: Step, repeats: int) -> Limits:
    """Return the limits of a model, from the shortest time of its step and of each operator."""
    with neuron.eager_mode("debug"):
        step()
        calls, owners, events = watch(step)
        runs = [_recorded(step) for _ in range(repeats)]
    runs = [run for run in runs if _names(run) == _names(events)]
    assert runs, "every step does other work"
    stamps = [[stamp for event in run for stamp in (event.start, event.end)] for run in runs]
    pieces = [[end - start for start, end in itertools.pairwise(run)] for run in stamps]
    shortest = [min(each) for each in zip(*pieces, strict=True)]  # work and gaps in turn
    for owner, ns in zip(owners, shortest[::2], strict=True):
        calls[owner].ns += ns
    total: Counter[str] = Counter()
    operators: Counter[str] = Counter()
    for call in calls:
        total[call.kind] += call.ns
        if call.kind == "other":
            operators[call.name] += call.ns
    once = sum(chain.left(chain.once) for chain in chains(calls))
    within = sum(chain.left(chain.once - chain.from_products) for chain in chains(calls))
    products, joined, others = (total[kind] / 1e6 for kind in ("product", "joined", "other"))
    return Limits(
        sum(shortest) / 1e6, products, joined, others, once / 1e6, within / 1e6, operators
    )


def main() -> int:
    """Measure and print the table."""
    options = quiet.parser(__doc__, repeats=9)
    options.add_argument(
        "--operators", type=int, default=0, metavar="N", help="also list the N that take longest"
    )
    args = options.parse_args()

    def table(watched: quiet.Watch) -> int:
        found = []
        columns = ("step", "products", "joined", "others", "once", "within")
        print(f"{'':38} {' '.join(f'{name:>8}' for name in columns)}   limits: free within   once")
        for name in MODELS:
            if not re.search(args.only, name):
                continue
            limits = measure(eager_models.WORK[name](torch.device("neuron")), args.repeats)
            found.append(limits)
            row = " ".join(f"{getattr(limits, column):8.2f}" for column in columns)
            ratios = f"{limits.if_free:12.3f} {limits.if_within:6.3f} {limits.if_once:6.3f}"
            print(f"{name:38} {row}   {ratios}", flush=True)
            for operator, ns in limits.operators.most_common(args.operators):
                print(f"{'':8}{operator:40} {ns / 1e6:8.2f}")
        means = []
        for name in ("free", "within", "once"):
            mean = statistics.geometric_mean([getattr(each, f"if_{name}") for each in found])
            means.append(f"{name} {mean:.3f}")
        print(f"geometric means: {', '.join(means)}; {watched.facts()}")
        return 0

    return quiet.main(args, table)


if __name__ == "__main__":
    sys.exit(main())
