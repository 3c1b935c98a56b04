"""PyTorch's table of operators (op_db) on DTensors: shards give what the whole tensor gives.

    python -m tests.distributed.bases_ops [--ranks N] [--part K/N] [--samples N] [--placements N]
        [--all] [OPERATOR...]

For every operator of the table, the first of its samples in float32 are dealt out by PyTorch's
DTensorConverter, with placements drawn from all that are even. The results of the shards put
together equal those of the unsharded operator on the same core, and so do the gradients. Prints a
line of JSON for each operator: its name, the outcome (passed, unsupported, failed) and why.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal import common_methods_invocations as table
from torch.testing._internal.common_utils import set_rng_seed
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorConverter
from torch.utils import _pytree as pytree

from tests.distributed.bases_device import BACKEND, DEVICE, start
from tests.distributed.bases_ops_exclusions import EXCLUDED
from tests.distributed.ranks import run_ranks

GROUP_TIMEOUT_S = 10  # of a collective; a rank that has failed doesn't come
TIMEOUT_S = 580

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


@contextlib.contextmanager
def missing_rules() -> Iterator[None]:
    """Makes one kind of error of what PyTorch can't distribute."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        if any(words in str(error) for words in UNSUPPORTED):
            raise NoRuleError(str(error)) from error
        raise


def call(operator: Any, args: Any, kwargs: Any) -> Any:
    """Calls it on copies: some operators change what they are given."""
    fresh = pytree.tree_map(lambda v: v.clone() if is_tensor(v) else v, (args, kwargs))
    with missing_rules():
        return operator(*fresh[0], **fresh[1])


def whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def trained(value: Any) -> bool:
    return is_tensor(value) and value.requires_grad and value.dtype.is_floating_point


def gradients(outputs: Any, inputs: list[Tensor]) -> list[Tensor | None]:
    """Of a sum of the outputs, each element with a weight of its own."""
    terms = []
    for out in leaves(outputs):
        if trained(out):
            full = whole(out)
            weights = torch.linspace(0.5, 1.5, full.numel(), device=full.device)
            terms.append((full * weights.view(full.shape)).sum())
    if not terms:
        return []
    found = torch.autograd.grad(torch.stack(terms).sum(), inputs, allow_unused=True)
    return [None if g is None else whole(g) for g in found]


def same(found: list[Tensor | None], wanted: list[Tensor | None]) -> None:
    """Equal as far as sums of 64 terms, of which the largest result is one, may be in any order."""
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        if got is None or want is None:
            # DTensor gives zeros where an input isn't used.
            assert all(g is None or not g.any() for g in (got, want))
            continue
        if not want.dtype.is_floating_point and not want.dtype.is_complex:
            torch.testing.assert_close(got, want, rtol=0, atol=0)
            continue
        finite = want.detach().abs().nan_to_num(0, 0, 0)
        largest = float(finite.max()) if want.numel() else 0.0
        eps = torch.finfo(want.dtype).eps
        torch.testing.assert_close(
            got, want, rtol=16 * eps, atol=64 * eps * largest, equal_nan=True
        )


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
        output = None
        try:
            output = call(operator.op, d_args, d_kwargs)
            same([whole(t) for t in leaves(output)], leaves(expected))
            if wanted:
                with missing_rules():
                    found = gradients(output, [t for t in leaves((d_args, d_kwargs)) if trained(t)])
                same(found, wanted)
        except NoRuleError:
            if output is None:
                raise
            wanted = []  # no rule for the gradients
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


def all_good(key: str, rank: int, world: int, good: bool) -> bool:
    """Whether every rank says so; by the store, as the group may be broken."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{key} {rank}", str(good))
    return all(store.get(f"{key} {r}") == b"True" for r in range(world))


def renew(key: str, rank: int, world: int) -> None:
    """A new group instead of one whose ranks have failed at different places."""
    store = dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    dist.init_process_group(
        BACKEND,
        store=PrefixStore(key, store),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=GROUP_TIMEOUT_S),
    )
    _clear_sharding_prop_cache()


def work(rank: int, world: int, names: list[str], samples: int, placements: int) -> list[Any]:
    start(rank)
    # Sizes that 4 ranks divide; the table's own are odd and prime.
    table.XS, table.S, table.M, table.L = 2, 4, 8, 16
    mesh = init_device_mesh(DEVICE, (world,))
    wanted = set(names)
    report = []
    for operator in table.op_db:
        name = operator.formatted_name
        if name not in wanted:
            continue
        outcome, why = check(operator, mesh, samples, placements)
        report.append({"op": name, "outcome": outcome, "why": why})
        if not all_good(name, rank, world, outcome != "failed"):
            renew(name, rank, world)
            mesh = init_device_mesh(DEVICE, (world,))
    return report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--part", default="0/1", help="take only each N-th operator, from K on")
    parser.add_argument("--samples", type=int, default=3, help="of an operator")
    parser.add_argument("--placements", type=int, default=4, help="of a sample")
    parser.add_argument("--all", action="store_true", help="the excluded too")
    parser.add_argument("ops", nargs="*")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    names = (
        given.ops
        or [
            op.formatted_name
            for op in table.op_db
            if torch.float32 in op.supported_dtypes("cpu")
            and (given.all or op.formatted_name not in EXCLUDED)
        ][part::parts]
    )
    results = run_ranks(
        given.ranks,
        work,
        names,
        given.samples,
        given.placements,
        timeout=TIMEOUT_S,
        backend=BACKEND,
        group_timeout=GROUP_TIMEOUT_S,
    )
    for outcomes in zip(*results, strict=True):
        # One rank's part may be wrong and the others' right.
        worst = next((o for o in reversed(outcomes) if o["outcome"] == "failed"), outcomes[0])
        print(json.dumps(worst))  # noqa: T201


if __name__ == "__main__":
    main()
