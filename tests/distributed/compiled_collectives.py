"""Functional collectives in compiled functions, in every form: the bits of eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import Tensor
from torch._inductor import config as inductor_config

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import TensorType
from neuronxcc.ir.reference import evaluate_ranks
from neuronxcc.lowering.lower import lower
from neuronxcc.options import Options
from neuronxcc.program.program import Program
from neuronxcc.program.steps.collective import CollectiveStep
from neuronxcc.program.steps.operator import AtenStep
from torch_neuronx.dynamo import backend
from torch_neuronx.dynamo.backend import CompiledGraph
from torch_neuronx.program.executable import Executable

ops: Any = torch.ops._c10d_functional


class Watch:
    """The graphs that are compiled while it is open."""

    def __init__(self) -> None:
        self.graphs: list[CompiledGraph] = []

    def __enter__(self) -> Self:
        backend.OBSERVERS.append(self.graphs.append)
        return self

    def __exit__(self, *_: object) -> None:
        backend.OBSERVERS.remove(self.graphs.append)

    def program(self, kind: str) -> Program:
        """The program of the first graph of a kind."""
        graph = next(graph for graph in self.graphs if graph.kind == kind)
        program: Program = graph.executable.program
        return program


def collectives(program: Program) -> list[str]:
    """The kinds of the collectives of a program, in order."""
    return [step.kind for step in program.steps if isinstance(step, CollectiveStep)]


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Whole, or an error."""
    return torch.compile(function, backend="neuron", **{"fullgraph": True, **options})


Step = Callable[..., Any]


def world() -> dist.ProcessGroup:
    """The group of all ranks."""
    group = dist.group.WORLD
    assert group is not None
    return group


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Small whole numbers, so that every order of additions gives the same."""
    value = torch.randint(-4, 5, shape, device="neuron")
    return value.abs().to(dtype) if dtype in UNSIGNED else value.to(dtype)


UNSIGNED = (torch.uint8, torch.bool)
# All reductions of the first two; of others those that are done in another way.
REDUCTIONS: dict[torch.dtype, tuple[str, ...]] = {
    torch.float32: ("sum", "max", "min", "product", "avg"),
    torch.int64: ("sum", "max", "min", "product", "band", "bor", "bxor"),
    torch.bfloat16: ("sum", "avg"),
    torch.float16: ("avg",),
    torch.uint8: ("sum", "bxor"),
    torch.bool: ("sum", "min"),
    torch.complex64: ("sum", "avg"),
}


# ---- by type: several collectives in each function -----------------------------------------------


def reduced(dtype: torch.dtype, ranks: int) -> Step:
    """Sums and so on, in one piece and in parts."""

    def step(x: Tensor) -> list[Any]:
        found: list[Any] = []
        for op in REDUCTIONS[dtype]:
            found += [fc.all_reduce(x, op, world()), fc.reduce_scatter_single(x, op, 0, world())]
        found += fc.all_reduce_coalesced([x, x[1:]], "sum", world())
        found += fc.reduce_scatter_single_coalesced([x, x[ranks:]], "sum", [0, 0], world())
        return found

    return step


def moved(rank: int, ranks: int) -> Step:
    """What is only carried."""

    def step(x: Tensor) -> list[Any]:
        # Rank r sends s + 1 rows to rank s; the ring has no fixed point, the last one has.
        sent = list(range(1, ranks + 1))
        ring = [(r + 1) % ranks for r in range(ranks)]
        swap = [*range(ranks - 2), ranks - 1, ranks - 2]
        return [
            fc.all_gather_single(x, 0, world()),
            *fc.all_gather_single_coalesced([x, x[0]], world()),
            fc.all_to_all_single(x[: 2 * ranks], None, None, world()),
            fc.all_to_all_single(x[: sum(sent)], [rank + 1] * ranks, sent, world()),
            fc.broadcast(x, ranks - 1, world()),
            fc.permute_tensor(x.flatten(), ring, world()),
            fc.permute_tensor(x.flatten(), swap, world()),
        ]

    return step


def in_place(ranks: int) -> Step:
    """Collectives that write what they are given, or a tensor for the result; `x` is written."""

    def step(x: Tensor) -> list[Any]:
        name = world().group_name
        y, z = x.clone(), x.clone()
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        started = ops.all_reduce_(y[1:], "sum", name)
        ended = ops.wait_tensor(started)
        many = ops.all_reduce_coalesced_([z[0], z[1:3]], reduce_op="max", group_name=name)
        for each in many:
            ops.wait_tensor(each)
        before = z[1:].clone()
        ops.wait_tensor(ops.broadcast_(z[1:], ranks - 1, name))
        whole = x.new_zeros(1 + ranks * x.shape[0], *x.shape[1:])
        ops.wait_tensor(ops.all_gather_into_tensor_out(x, ranks, name, out=whole[1:]))
        part = x.new_empty(x.shape[0] // ranks, *x.shape[1:])
        got = ops.reduce_scatter_tensor_out(x, "sum", ranks, name, out=part)
        ops.wait_tensor(got)
        dist.all_gather_single(like := torch.empty_like(whole[1:]), y)
        dist.reduce_scatter_single(less := torch.empty_like(part), y)
        dist.all_gather(pieces := [torch.empty_like(x) for _ in range(ranks)], y)
        dist.all_to_all_single(other := torch.empty_like(x), y)
        return [y, z, before, ended, whole, part, got, like, less, *pieces, other, x[0]]

    return step


def functional(rank: int, ranks: int) -> None:
    """Every functional collective of every type, compiled and eager."""
    torch.manual_seed(rank)
    size = ranks * (ranks + 1)
    check(moved(rank, ranks), tensor(size, 3))
    pair = dist.new_group(range(2))  # of more ranks: a group that not all are in
    if rank < 2:
        check(
            lambda x: fc.all_reduce(x, "sum", pair) + fc.all_reduce(x + 1, "max", pair), tensor(3)
        )
    nobody_wants(rank, ranks)
    permuted(rank, ranks)
    if ranks > 2:
        return  # the rest doesn't know how many there are
    for dtype in REDUCTIONS:
        check(reduced(dtype, ranks), tensor(size, 3, dtype=dtype))
    check(moved(rank, ranks), tensor(size, 3, dtype=torch.bool))
    for dtype in (torch.float32, torch.bool):
        check(in_place(ranks), tensor(size, 3, dtype=dtype))
    x = tensor(2 * ranks, ranks, 3)
    check(lambda x: [fc.all_gather_single(x, dim, world()) for dim in range(2)], x)
    check(lambda x: [fc.reduce_scatter_single(x, "sum", dim, world()) for dim in range(2)], x)
    sizes_of_the_call(rank, ranks)
    gradients(rank, ranks)
    waits_for_others(ranks)


def check(function: Step, *args: Tensor) -> None:
    """Compiled and eager give the same bits, in results and in arguments."""
    torch._dynamo.reset()
    copies = [x.clone() for x in args]
    want = ended(function(*copies))
    again = [x.clone() for x in args]
    with Watch() as watch:
        got = ended(compiled(function)(*again))
    assert not [call.op for graph in watch.graphs for call in graph.imported.host_calls]
    for a, b in zip([*got, *again], [*want, *copies], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def ended(values: Any) -> list[Tensor]:
    """Tensors whose collectives are done."""
    many = values if isinstance(values, list | tuple) else [values]
    return [x.wait() if isinstance(x, fc.AsyncCollectiveTensor) else x for x in many]


def nobody_wants(rank: int, ranks: int) -> None:
    """A rank that gets nothing takes part, or the others would wait for ever."""

    def step(x: Tensor) -> Tensor:
        receive = [x.shape[0] if rank == 0 else 0] * ranks
        got = fc.all_to_all_single(x, receive, [x.shape[0], *[0] * (ranks - 1)], world())
        total: Tensor = (got * 2).sum(0) + fc.all_reduce(x, "sum", world()).sum()
        return total

    check(step, tensor(4, 2))


def sizes_of_the_call(rank: int, ranks: int) -> None:
    """Sizes of parts that are symbols in the graph: one program for each that it is called with."""
    torch._dynamo.reset()

    def step(x: Tensor, send: int, receive: list[int]) -> Tensor:
        sent = [send] * (ranks - 1) + [x.shape[0] - send * (ranks - 1)]
        return fc.all_to_all_single(x * 2, receive, sent, world())

    run = compiled(step, dynamic=True)
    for send, last in ((2, 5), (3, 4), (4, 7)):
        x = tensor(send * (ranks - 1) + last, 3)
        receive = [last if rank == ranks - 1 else send] * ranks
        (want,) = ended(step(x, send, receive))
        torch.testing.assert_close(run(x, send, receive), want, rtol=0, atol=0)


# ---- gradients -----------------------------------------------------------------------------------


def gradients(rank: int, ranks: int) -> None:
    """Those of eager mode, of every collective that has one."""
    autograd: Any = torch.ops._c10d_functional_autograd
    name = world().group_name
    sent = list(range(1, ranks + 1))
    ring = [(r + 1) % ranks for r in range(ranks)]
    even = [ranks + 1] * ranks
    steps: list[Step] = [
        lambda x: fc.all_reduce(x, "sum", world()),
        lambda x: fc.all_gather_single_autograd(x, 0, world()),
        lambda x: fc.reduce_scatter_single_autograd(x, "sum", 0, world()),
        lambda x: fc.all_to_all_single_autograd(x[: 2 * ranks], None, None, world()),
        lambda x: fc.all_to_all_single(x[: sum(sent)], [rank + 1] * ranks, sent, world()),
        lambda x: fc.permute_tensor(x.flatten(), ring, world()),
        lambda x: ops.wait_tensor(autograd.all_gather_into_tensor(x, ranks, name)),
        lambda x: ops.wait_tensor(autograd.reduce_scatter_tensor(x, "sum", ranks, name)),
        lambda x: ops.wait_tensor(autograd.all_to_all_single(x, even, even, name)),
        lambda x: torch.cat(fc.all_gather_single_coalesced([x, x[:1]], world())),
        lambda x: torch.cat(fc.all_reduce_coalesced([x, x[:1]], "sum", world())),
    ]

    def step(*leaves: Tensor) -> list[Tensor]:
        return [each(leaf) for each, leaf in zip(steps, leaves, strict=True)]

    torch._dynamo.reset()
    x = tensor(ranks * (ranks + 1), 2)
    weights = torch.arange(2.0 * ranks * x.numel(), device="neuron")
    found = []
    for function in (step, compiled(step)):
        leaves = [x.clone().requires_grad_() for _ in steps]
        outs = ended(function(*leaves))
        torch.stack([(o.flatten() * weights[: o.numel()]).sum() for o in outs]).sum().backward()
        found.append([*(o.detach() for o in outs), *(leaf.grad for leaf in leaves)])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


# ---- collectives of others -----------------------------------------------------------------------


def waits_for_others(ranks: int) -> None:
    """An argument, or a view of one, that a collective outside of the graph is still filling."""
    name = world().group_name
    run = compiled(lambda x: ops.wait_tensor(x[1:]) * 2)
    x = torch.full((1 << 20,), 1.0, device="neuron")
    for _ in range(3):
        assert run(ops.all_reduce(x, "sum", name)).eq(2 * ranks).all()


# ---- the step by pairs, which PyTorch has no operator for ----------------------------------------


def permuted(rank: int, ranks: int) -> None:
    """Rings, to oneself, and pairs that leave ranks out: as the reference says, on all ranks."""
    rng = np.random.default_rng(0)
    values = rng.integers(-3, 4, (ranks, 5, 2)).astype(np.float32)
    for pairs in (
        [(r, (r + 1) % ranks) for r in range(ranks)],
        [(r, r) for r in range(ranks)],
        [(0, ranks - 1)],
        [(ranks - 1, 0), (0, 0)][:1],
        [(0, 0), (1, ranks - 1)],
        [],
    ):
        x = parameter(0, TensorType(DType.F32, (5, 2)))
        sent = build.collective_permute(build.add(x, 1.0), pairs, name=world().group_name)
        graph = Graph("permuted", (x,), (build.add(sent, x),))
        want = evaluate_ranks(graph, [[value] for value in values])[rank][0]
        program = lower(graph, Options())
        assert [s.kind for s in program.steps if isinstance(s, CollectiveStep)] or not pairs
        run = Executable(program, f"neuron:{torch.accelerator.current_device_index()}")
        (got,) = run([torch.from_numpy(values[rank]).to("neuron")])
        np.testing.assert_array_equal(got.cpu().numpy(), want)


# ---- asynchronous tensor parallelism ------------------------------------------------------------


def fused(rank: int, ranks: int) -> dict[str, list[str]]:
    """Products beside collectives, with Inductor's switch and without: what they become."""
    torch.manual_seed(0)
    enable: Any = torch.distributed._symmetric_memory
    name = world().group_name
    weights = [tensor(12, 8).sign(), tensor(8, 12).sign(), tensor(12, 12).sign()]
    torch.manual_seed(rank)

    def gathered(x: Tensor, v: Tensor, w: Tensor, _: Tensor) -> Any:
        whole = fc.all_gather_single(x, 0, world())
        return whole @ v, whole @ v + 1, (whole @ v).relu() @ w

    def kept(x: Tensor, v: Tensor, _: Tensor, u: Tensor) -> Any:
        whole = fc.all_gather_single(x.view(2, -1, 12), 1, world())
        return whole @ u, whole @ v, whole * 2

    def scattered(x: Tensor, v: Tensor, _: Tensor, __: Tensor) -> Any:
        first = fc.reduce_scatter_single(x @ v, "sum", 0, world())
        return first, fc.reduce_scatter_single(x.view(2, -1, 12) @ v, "sum", 1, world())

    def layer(x: Tensor, v: Tensor, w: Tensor, _: Tensor) -> Any:
        whole = fc.all_gather_single(x.view(2, -1, 12), 1, world())
        return fc.reduce_scatter_single((whole @ v).relu() @ w, "sum", 1, world())

    with pytest.warns(FutureWarning, match="no need to call this function any"):
        enable.enable_symm_mem_for_group(name)
    x = tensor(4 * ranks, 12).sign()
    found = {}
    for step in (gathered, kept, scattered, layer) if ranks == 2 else (layer,):
        outs = []
        for switch in (False, True):
            torch._dynamo.reset()
            leaves = [each.clone().requires_grad_() for each in (x, *weights)]
            with inductor_config.patch(_micro_pipeline_tp=switch), Watch() as watch:
                out = ended(compiled(step)(*leaves))
                torch.stack([(each * each).sum() for each in out]).sum().backward()
            outs.append([*out, *(leaf.grad for leaf in leaves if leaf.grad is not None)])
            targets = [
                s.target.removeprefix("symm_mem::fused_").removesuffix(".default")
                for graph in watch.graphs
                for s in graph.executable.program.steps
                if isinstance(s, AtenStep)
            ]
            assert bool(targets) is switch
            left = [kind for g in watch.graphs for kind in collectives(g.executable.program)]
        found[step.__name__] = targets + left
        # Whole numbers, small enough for float32: the order of additions doesn't matter.
        torch.testing.assert_close(outs[1], outs[0], rtol=0, atol=0)
    return found
