"""How many of PyTorch's operators the front end lowers, and whether what it makes of them is right.

    python -m tests.compiler.opinfo [--names add,mul] [--dtype float32] [--samples 8] [--backward]

Every sample of an OpInfo is traced with our decompositions, imported, run by the IR's NumPy
reference, and compared with eager CPU PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from functorch.compile import aot_function
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.testing._internal.common_methods_invocations import op_db

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.op import Op
from torch_neuronx.dynamo.decompositions import decompositions
from torch_neuronx.dynamo.importer import import_graph
from torch_neuronx.dynamo.partition import partition
from torch_neuronx.dynamo.reference import ReferenceExecutable
from torch_neuronx.dynamo.wrapper import boxed
from torch_neuronx.ops.entry import base_name
from torch_neuronx.ops.lookup import Status, verdict
from torch_neuronx.ops.modes import current_policy


@dataclass
class Report:
    """What became of one OpInfo.

    status: "ok"; "host" (a host step); "listed" (the operator table says why a NeuronCore has none); "wrong"; "error"; "eager" (eager does not pass either);
    "dynamic" (the result's shape depends on data: nothing that a static graph can hold).
    """

    name: str
    status: str = "ok"
    samples: int = 0
    custom: Counter[str] = field(default_factory=Counter)
    host: Counter[str] = field(default_factory=Counter)
    detail: str = ""


def calls(graph: Graph) -> Iterator[tuple[Op, str]]:
    """Custom and host calls of a graph, control flow included."""
    for node in graph.nodes():
        if node.op in (Op.CUSTOM_CALL, Op.HOST_CALL):
            yield node.op, node["target"]
        for body in (node.get("body"), node.get("cond"), *(node.get("branches") or ())):
            if body is not None:
                yield from calls(body)


def compiled(function: Any, report: Report) -> Any:
    """The function through AOTAutograd, our import and the reference executor."""

    def compiler(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        del inputs
        with unset_fake_temporarily():
            imported = import_graph(gm)
        for op, target in calls(imported.graph):
            (report.host if op is Op.HOST_CALL else report.custom)[target] += 1
        for host in imported.host_calls:
            if host.reason:
                report.detail = host.reason
        return boxed(imported, ReferenceExecutable(imported))

    return aot_function(
        function,
        fw_compiler=compiler,
        bw_compiler=compiler,
        inference_compiler=compiler,
        decompositions=dict(decompositions()),
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """rtol, atol: many roundings of a long chain in the type, of values near 1."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0, 0.0
    eps = torch.finfo(dtype).eps
    return 64 * eps, 64 * eps


# Operators whose result PyTorch leaves open.
UNDEFINED = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
}  # fmt: skip


def reason(target: str) -> str:
    """Why a NeuronCore runs no such operator either, "" if it does."""
    found = verdict(base_name(target), "float32", current_policy())
    return found.gap.reason if found.status is Status.HOST and found.gap is not None else ""


def compare(got: Any, expected: Any) -> str:
    """What differs, "" if nothing."""
    if not isinstance(expected, torch.Tensor) or not isinstance(got, torch.Tensor):
        return "" if got == expected or expected is None else f"{got!r} for {expected!r}"
    rtol, atol = tolerance(expected.dtype)
    finite = expected.detach()[expected.detach().isfinite()].abs()
    if finite.numel():  # sums of numbers of this size may cancel
        atol *= max(1.0, float(finite.max()))
    try:
        torch.testing.assert_close(
            got, expected, rtol=rtol, atol=atol, equal_nan=True, check_stride=False
        )
    except AssertionError as error:
        return str(error).splitlines()[0] + " " + " ".join(str(error).splitlines()[1:6])
    return ""


def check(info: Any, dtype: torch.dtype, samples: int, *, backward: bool) -> Report:
    """Go through samples of one OpInfo."""
    report = Report(f"{info.name}{'.' + info.variant_test_name if info.variant_test_name else ''}")
    torch.manual_seed(0)
    random.seed(0)
    try:
        inputs = list(info.sample_inputs("cpu", dtype, requires_grad=backward))
    except Exception as error:  # noqa: BLE001 - whatever the generator of samples raises
        report.status, report.detail = "eager", f"no samples: {error}"
        return report
    rng = random.Random(0)
    if len(inputs) > samples:
        inputs = [inputs[0], *rng.sample(inputs[1:], samples - 1)]
    for sample in inputs:
        one(info, sample, report, backward=backward)
        if report.status not in ("ok", "host", "listed"):
            break
    return report


def one(info: Any, sample: Any, report: Report, *, backward: bool) -> None:
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[i] for i in where]

    def forward(*args: torch.Tensor) -> list[Any]:
        filled = list(leaves)
        for i, arg in zip(where, args, strict=True):
            filled[i] = arg
        input_, rest, kwargs = pytree.tree_unflatten(filled, spec)
        result = info.op(input_, *rest, **kwargs)
        if sample.output_process_fn_grad is not None and backward:
            result = sample.output_process_fn_grad(result)
        return pytree.tree_leaves(result)

    def both(function: Any) -> list[Any]:
        args = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
        torch.manual_seed(42)  # what wrapper_set_seed of the OpInfos sets
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

    try:
        expected = both(forward)
    except Exception as error:  # noqa: BLE001
        report.status, report.detail = "eager", f"{type(error).__name__}: {error}"
        return
    report.samples += 1
    try:
        got = both(compiled(forward, report))
    except Exception as error:  # noqa: BLE001
        text = f"{type(error).__name__}: {error}"
        kind = "error"
        if any(s in text for s in DYNAMIC):
            kind = "dynamic"
        report.status, report.detail = kind, text[:600]
        if "--trace" in sys.argv:
            traceback.print_exc()
        return
    if report.host:
        report.status = "listed" if all(map(reason, report.host)) else "host"
    if info.name in UNDEFINED:
        return
    for number, (a, b) in enumerate(zip(got, expected, strict=True)):
        text = compare(a, b)
        if text:
            report.status, report.detail = "wrong", f"output {number}: {text}"
            return


DYNAMIC = (
    "DynamicOutputShape", "DataDependentOutput", "EMOD025", "GuardOnDataDependent",
    "data-dependent",
)  # fmt: skip


def main() -> None:
    """Print one line per info that is not "ok", then totals."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", default="")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--start", default="")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    names = set(filter(None, options.names.split(",")))
    totals: Counter[str] = Counter()
    hosts: Counter[str] = Counter()
    customs: Counter[str] = Counter()
    torch.set_num_threads(1)
    for info in op_db:
        if (names and info.name not in names) or info.name < options.start:
            continue
        if not info.supports_dtype(dtype, "cpu") or (
            options.backward and not info.supports_autograd
        ):
            continue
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO() if not options.trace else sys.stderr),
        ):
            warnings.simplefilter("ignore")
            report = check(info, dtype, options.samples, backward=options.backward)
        totals[report.status] += 1
        if report.status == "host":
            hosts.update(report.host.keys())
        customs.update(report.custom.keys())
        if report.status != "ok":
            extra = ",".join(report.host)
            print(f"{report.status:8} {report.name:40} {extra} {report.detail[:300]}", flush=True)
    print(dict(totals))
    print("host:", dict(hosts))
    print("custom:", dict(customs))


if __name__ == "__main__":
    main()
