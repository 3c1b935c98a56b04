"""PyTorch's table of operators (op_db) on DTensors: shards give what the whole tensor gives.

    python -m tests.distributed.bases_ops [--ranks N] [--every K] [--samples N] [--placements N] [OP...]

For every operator of the table, the first of its samples in float32 are dealt out by PyTorch's
DTensorConverter, with placements drawn from all that are even, on N ranks; the results of the shards
put together equal those of the unsharded operator on the same core, and so do the gradients.
Prints a line of JSON for each operator: its name, the outcome (passed, unsupported, failed) and why.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal import common_methods_invocations as table
from torch.testing._internal.common_utils import set_rng_seed
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorConverter
from torch.utils import _pytree as pytree

from tests.distributed.bases_device import BACKEND, CONTROL, DEVICE, start
from tests.distributed.bases_ops_exclusions import EXCLUDED
from tests.distributed.ranks import run_ranks

# What says that PyTorch has no rule by which an operator works on shards.
UNSUPPORTED = (
    "does not have a sharding strategy registered",
    "got mixed torch.Tensor and DTensor",
)


class NoRuleError(Exception):
    """PyTorch can't distribute the operator."""


def arguments(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (sample.input, *sample.args), sample.kwargs


def is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def leaves(value: Any) -> list[Tensor]:
    return [v for v in pytree.tree_leaves(value) if is_tensor(v)]


def call(operator: Any, args: Any, kwargs: Any) -> Any:
    """Calls it on copies: some operators change what they are given."""
    fresh = pytree.tree_map(lambda v: v.clone() if is_tensor(v) else v, (args, kwargs))
    try:
        return operator(*fresh[0], **fresh[1])
    except (RuntimeError, NotImplementedError) as error:
        if any(words in str(error) for words in UNSUPPORTED):
            raise NoRuleError(str(error)) from error
        raise


def whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def trained(value: Any) -> bool:
    return is_tensor(value) and value.requires_grad and value.dtype.is_floating_point


def gradients(outputs: Any, inputs: list[Tensor]) -> list[Tensor | None]:
    """Of a weighted sum of the outputs, whose weights are the same for shards and the whole."""
    total: Any = 0
    for out in leaves(outputs):
        if out.requires_grad and out.dtype.is_floating_point:
            total = total + whole(out).sin().sum()
    if not is_tensor(total):
        return []
    found = torch.autograd.grad(total, inputs, allow_unused=True)
    return [None if g is None else whole(g) for g in found]


def check_sample(operator: Any, sample: Any, mesh: DeviceMesh, draw: random.Random, n: int) -> int:
    """How many placements of a sample were compared."""
    args, kwargs = arguments(sample)
    inputs = [t for t in leaves((args, kwargs)) if trained(t)]
    expected = call(operator.op, args, kwargs)
    wanted = gradients(expected, inputs) if operator.supports_autograd and inputs else []
    converter = DTensorConverter(mesh, args, kwargs)
    places = list(converter.sharding_combs)
    kept = places if len(places) <= n else [places[0], *draw.sample(places[1:], n - 1)]
    converter.sharding_combs = iter(kept)
    for place, (d_args, d_kwargs) in zip(kept, converter, strict=True):
        if not converter.successful():
            return 0
        try:
            output = call(operator.op, d_args, d_kwargs)
            torch.testing.assert_close(
                [whole(t) for t in leaves(output)], leaves(expected), equal_nan=True
            )
            if wanted:
                shards = [t for t in leaves((d_args, d_kwargs)) if trained(t)]
                found = gradients(output, shards)
                torch.testing.assert_close(
                    [g for g in found if g is not None],
                    [g for g in wanted if g is not None],
                    equal_nan=True,
                )
        except Exception as error:
            error.add_note(f"{place} of {sample}")
            raise
    return len(kept)


def check(operator: Any, mesh: DeviceMesh, samples: int, placements: int) -> tuple[str, str]:
    """Outcome and reason."""
    set_rng_seed(0)
    draw = random.Random(operator.formatted_name)  # noqa: S311
    count = 0
    try:
        for sample in itertools.islice(
            operator.sample_inputs(DEVICE, torch.float32, requires_grad=operator.supports_autograd),
            samples,
        ):
            count += check_sample(operator, sample, mesh, draw, placements)
    except NoRuleError as error:
        return "unsupported", str(error)[:120]
    except Exception as error:  # noqa: BLE001  # whatever it is, it is reported
        notes = " ".join(getattr(error, "__notes__", ()))
        return "failed", f"{type(error).__name__}: {str(error)[:600]} | {notes[:300]}"
    return "passed" if count else "unsupported", str(count)


def work(rank: int, world: int, names: list[str], samples: int, placements: int) -> list[Any]:
    start(rank)
    mesh = init_device_mesh(DEVICE, (world,))
    wanted = set(names)
    report = []
    for operator in table.op_db:
        if operator.formatted_name in wanted:
            outcome, why = check(operator, mesh, samples, placements)
            report.append({"op": operator.formatted_name, "outcome": outcome, "why": why})
            if rank == 0:
                print(json.dumps(report[-1]), flush=True)  # noqa: T201
    return report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="take each K-th operator only")
    parser.add_argument("--samples", type=int, default=3, help="of an operator")
    parser.add_argument("--placements", type=int, default=4, help="of a sample")
    parser.add_argument("--all", action="store_true", help="the excluded too")
    parser.add_argument("ops", nargs="*")
    given = parser.parse_args()
    names = (
        given.ops
        or [
            op.formatted_name
            for op in table.op_db
            if torch.float32 in op.supported_dtypes("cpu")
            and (given.all or op.formatted_name not in EXCLUDED)
        ][:: given.every]
    )
    results = run_ranks(
        given.ranks,
        work,
        names,
        given.samples,
        given.placements,
        timeout=550,
        backend=BACKEND,
    )
    for outcome in zip(*results, strict=True):
        if len({o["outcome"] for o in outcome}) > 1:
            print(json.dumps({**outcome[0], "outcome": "failed", "why": str(outcome)}))  # noqa: T201
    print(Counter(r["outcome"] for r in results[0]), CONTROL, file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
