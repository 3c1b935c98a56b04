"""What the front end makes of PyTorch's OpInfo samples: lowered or not, and equal to eager or not.

Every sample goes through AOTAutograd with our decompositions and partitioner, our import, and the
IR's NumPy reference (or, with --native, passes, lowering and machine code), and is compared with
eager CPU PyTorch.

    python -m tests.compiler.opinfo --dtype bfloat16 --samples 4 --backward --names add,sum
"""

from __future__ import annotations

import argparse
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._functorch.aot_autograd import aot_function
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.testing._internal.common_methods_invocations import op_db

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.op import Op
from tests.shallow import shallow
from torch_neuronx.dynamo.decompositions import decompositions
from torch_neuronx.dynamo.importer import Imported, import_graph
from torch_neuronx.dynamo.native import compile_native
from torch_neuronx.dynamo.partition import partition
from torch_neuronx.dynamo.reference import run_graph
from torch_neuronx.dynamo.wrapper import boxed
from torch_neuronx.ops.entry import base_name
from torch_neuronx.ops.lookup import Status, verdict
from torch_neuronx.ops.modes import current_policy

# Operators whose result PyTorch leaves open.
UNDEFINED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
# What AOTAutograd says of graphs whose shapes or control flow depend on data.
DYNAMIC = (
    "DynamicOutputShape",
    "DataDependentOutput",
    "EMOD025",
    "GuardOnDataDependent",
    "data-dependent",
)


@dataclass
class Report:
    """What became of one OpInfo.

    status:
      "ok"       lowered and equal to eager
      "host"     equal, but an operator has no lowering
      "listed"   as "host", and `torch_neuronx.ops` says why no NeuronCore has that operator
      "dynamic"  the shape of a result depends on data: nothing that a static graph can hold
      "eager"    eager PyTorch does not take the sample either
      "wrong"    different from eager
      "error"    anything else
    """

    name: str
    status: str = "ok"
    samples: int = 0
    custom: Counter[str] = field(default_factory=Counter)
    host: Counter[str] = field(default_factory=Counter)
    detail: str = ""

    @property
    def finished(self) -> bool:
        """Whether nothing can be learnt from further samples."""
        return self.status not in {"ok", "host", "listed"}


def infos(dtype: torch.dtype, *, backward: bool = False) -> list[Any]:
    """The OpInfos that support the type on the CPU."""
    return [
        info
        for info in op_db
        if info.supports_dtype(dtype, "cpu") and (info.supports_autograd or not backward)
    ]


def full_name(info: Any) -> str:
    """Name and variant."""
    variant = info.variant_test_name
    return f"{info.name}.{variant}" if variant else str(info.name)


def calls(graph: Graph) -> Iterator[tuple[Op, str]]:
    """Custom and host calls of a graph, control flow included."""
    for node in graph.nodes():
        if node.op in (Op.CUSTOM_CALL, Op.HOST_CALL):
            yield node.op, node["target"]
        for body in (node.get("body"), node.get("cond"), *(node.get("branches") or ())):
            if body is not None:
                yield from calls(body)


#: Makes what runs an imported graph.
Executor = Callable[[Imported, Mapping[str, Any]], Any]


def compiled(function: Any, report: Report, executor: Executor = run_graph) -> Any:
    """The function through AOTAutograd, our import and an executor, by default the reference."""

    def compiler(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        del example_inputs
        with unset_fake_temporarily():
            imported = import_graph(gm)
        for op, target in calls(imported.graph):
            (report.host if op is Op.HOST_CALL else report.custom)[target] += 1
        for host in imported.host_calls:
            report.detail = report.detail or host.reason
        return boxed(imported, executor(imported, {}))

    return aot_function(
        function,
        fw_compiler=compiler,
        bw_compiler=compiler,
        inference_compiler=compiler,
        decompositions=dict(decompositions(instructions=executor is not run_graph)),
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )


def reason(target: str) -> str:
    """Why a NeuronCore runs no such operator either, "" if it does."""
    found = verdict(base_name(target), "float32", current_policy())
    return found.gap.reason if found.status is Status.HOST and found.gap is not None else ""


def difference(got: Any, expected: Any) -> str:
    """What differs, "" if nothing: a chain of 64 roundings, of numbers of the size that occurs."""
    if not (isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor)):
        return "" if got == expected or expected is None else f"{got!r} for {expected!r}"
    bound = 0.0
    scale = 1.0
    if expected.dtype.is_floating_point or expected.dtype.is_complex:
        bound = 64 * torch.finfo(expected.dtype).eps
        plain = expected.detach()
        finite = plain[plain.isfinite()].abs()
        scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
    try:
        torch.testing.assert_close(
            got, expected, rtol=bound, atol=bound * scale, equal_nan=True, check_stride=False
        )
    except AssertionError as error:
        return " ".join(str(error).splitlines()[:6])
    return ""


@shallow
def check(
    info: Any,
    dtype: torch.dtype,
    samples: int,
    *,
    backward: bool = False,
    executor: Executor = run_graph,
) -> Report:
    """Go through samples of one OpInfo: the first ones, spread over all of them."""
    report = Report(full_name(info))
    inputs = first_samples(info, dtype, samples, report, backward=backward)
    for sample in inputs:
        _check_sample(info, sample, report, backward=backward, executor=executor)
        if report.finished:
            break
    return report


@shallow
def check_together(info: Any, picks: Mapping[torch.dtype, int]) -> Report:
    """As `check` with so many samples of each type, all of them outputs of one graph.

    The result is that of the graph if it is good. If not, samples disturb each other (one has data
    dependent shapes, or nothing in common with the seed of the next), or one is wrong: the caller
    then goes through them one by one.
    """
    report = Report(full_name(info))
    forwards: list[tuple[Any, int]] = []
    tensors: list[torch.Tensor] = []
    for dtype, count in picks.items():
        if not info.supports_dtype(dtype, "cpu"):
            continue
        for sample in first_samples(info, dtype, count, report, backward=False):
            forward, used = as_function(info, sample, backward=False)
            try:
                run(forward, used, backward=False)
            except Exception:  # noqa: BLE001, S112 - eager refuses it: nothing to compare with
                continue
            forwards.append((forward, len(used)))
            tensors += used

    def function(*args: torch.Tensor) -> list[Any]:
        results: list[Any] = []
        first = 0
        for forward, count in forwards:
            results += forward(*args[first : first + count])
            first += count
        return results

    report.status = "eager"
    if forwards:
        report.status = "ok"
        compare(info, function, tensors, report)
    return report


def first_samples(
    info: Any, dtype: torch.dtype, count: int, report: Report, *, backward: bool
) -> list[Any]:
    """So many samples, spread over all of them; none, and a note, if their generator fails."""
    torch.manual_seed(0)
    try:
        inputs = list(info.sample_inputs("cpu", dtype, requires_grad=backward))
    except Exception as error:  # noqa: BLE001 - whatever the generator of samples raises
        report.status, report.detail = "eager", f"no samples: {error}"
        return []
    return inputs[:: max(1, len(inputs) // count)][:count]


def as_function(info: Any, sample: Any, *, backward: bool) -> tuple[Any, list[torch.Tensor]]:
    """The operator as a function of the sample's tensors, and these."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def forward(*args: torch.Tensor) -> list[Any]:
        filled = list(leaves)
        for i, arg in zip(where, args, strict=True):
            filled[i] = arg
        first, rest, kwargs = pytree.tree_unflatten(filled, spec)
        result = info.op(first, *rest, **kwargs)
        if backward and sample.output_process_fn_grad is not None:
            result = sample.output_process_fn_grad(result)
        return pytree.tree_leaves(result)

    return forward, [leaves[i] for i in where]


def _check_sample(
    info: Any, sample: Any, report: Report, *, backward: bool, executor: Executor
) -> None:
    forward, tensors = as_function(info, sample, backward=backward)
    compare(info, forward, tensors, report, backward=backward, executor=executor)


def compare(
    info: Any,
    forward: Any,
    tensors: list[torch.Tensor],
    report: Report,
    *,
    backward: bool = False,
    executor: Executor = run_graph,
) -> None:
    """Run a function of tensors both ways and note what became of it."""
    try:
        expected = run(forward, tensors, backward=backward)
    except Exception as error:  # noqa: BLE001
        report.status, report.detail = "eager", f"{type(error).__name__}: {error}"
        return
    report.samples += 1
    try:
        got = run(compiled(forward, report, executor), tensors, backward=backward)
    except Exception as error:  # noqa: BLE001
        text = f"{type(error).__name__}: {error}"
        report.status = "dynamic" if any(part in text for part in DYNAMIC) else "error"
        report.detail = text[:600]
        if "--trace" in sys.argv:
            traceback.print_exc()
        return
    if report.host:
        report.status = "listed" if all(map(reason, report.host)) else "host"
    if info.name in UNDEFINED:
        return
    for number, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        text = difference(mine, theirs)
        if text:
            report.status, report.detail = "wrong", f"output {number}: {text}"
            return


def run(function: Any, tensors: Sequence[torch.Tensor], *, backward: bool) -> list[Any]:
    """Outputs, then the arguments as the operator left them, or their gradients."""
    args = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    torch.manual_seed(42)  # what the OpInfos of random operators set themselves, in eager mode
    outputs = list(function(*args))
    if not backward:
        return [*outputs, *args]
    wanted = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
    needing = [a for a in args if a.requires_grad]
    grads: Sequence[Any] = ()
    if wanted and needing:
        ones = [torch.ones_like(o) for o in wanted]
        grads = torch.autograd.grad(wanted, needing, ones, allow_unused=True)
    return [*(o.detach() if isinstance(o, torch.Tensor) else o for o in outputs), *grads]


def main() -> None:
    """Print a line for every info that is not "ok", then totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", default="", help="of OpInfos, with commas; default all")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--trace", action="store_true", help="print tracebacks of errors")
    parser.add_argument("--native", action="store_true", help="run machine code, not NumPy")
    options = parser.parse_args()
    names = set(filter(None, options.names.split(",")))
    totals: Counter[str] = Counter()
    used: dict[str, Counter[str]] = {"host": Counter(), "custom": Counter()}
    torch.set_num_threads(1)
    for info in infos(getattr(torch, options.dtype), backward=options.backward):
        if names and info.name not in names:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = check(
                info,
                getattr(torch, options.dtype),
                options.samples,
                backward=options.backward,
                executor=compile_native if options.native else run_graph,
            )
        totals[report.status] += 1
        used["host"].update(report.host.keys())
        used["custom"].update(report.custom.keys())
        if report.status != "ok":
            line = (
                f"{report.status:8} {report.name:40} {','.join(report.host)} {report.detail[:300]}"
            )
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    sys.stdout.write(f"{dict(totals)}\n")
    for kind, counter in used.items():
        sys.stdout.write(f"{kind}: {dict(counter)}\n")


if __name__ == "__main__":
    main()
