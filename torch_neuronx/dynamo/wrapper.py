"""From AOTAutograd's calling convention to the executable's and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from torch_neuronx.dynamo.boxes import takes_list
from torch_neuronx.dynamo.importer import Imported
from torch_neuronx.dynamo.outputs import Output, Strided
from torch_neuronx.program.executable import Run


def boxed(
    imported: Imported,
    run: Run,
    *,
    inference: bool = False,
    returned: int | None = None,
    without_gradients: Collection[int] = (),
    any_layout: bool = False,
) -> Callable[[list[Any]], list[Any]]:
    """A function of the FX graph's arguments, given as a list that is emptied before the run.

    So nothing keeps an argument alive that the program has used for the last time.

    Args:
        imported: of which it is.
        run: the program.
        inference: none of its results has gradients.
        returned: how many of its results the caller gets; others are kept for the backward pass.
            All if None.
        without_gradients: the numbers of those that the caller gets as tensors without gradients.
        any_layout: arguments may have other strides than they were traced with.
    """
    sources, outputs = imported.arguments, imported.outputs
    alone = _alone(outputs[:returned])
    bases = [
        o.index for o in (outputs[i] for i in without_gradients) if o == Output("result", o.index)
    ]
    direct = len(outputs) == len(imported.graph.results) and all(
        output == Output("result", i) for i, output in enumerate(outputs)
    )
    same = sources == tuple(range(imported.argument_count))
    needed = sorted({o.index for o in outputs if o.kind == "argument"})
    # Results of a program lie on its device; a graph may have asked for some on another one.
    program = imported.device.type
    moved = [
        (i, device)
        for i, device in enumerate(imported.result_devices)
        if device != program and i not in imported.graph.aliases
    ]
    if any_layout:
        run = _laid_out(imported, run)
    if imported.awaited:
        run = _waiting(imported.awaited, run)
    if direct and same and not moved:

        def forward(args: list[Any]) -> list[Any]:
            return run(args)

        return takes_list(forward)

    def call(args: list[Any]) -> list[Any]:
        kept = {i: args[i] for i in needed}
        if same:
            results = run(args)
        else:
            tensors = [args[s] if isinstance(s, int) else s for s in sources]
            args.clear()
            results = run(tensors)
        for i, device in moved:
            results[i] = results[i].to(device)
        if inference:
            wholes = {id(x): x for x in results if not x.requires_grad}
        else:
            wholes = {id(results[i]): results[i] for i in bases}
        return [
            _by_itself(results[o.index], alone[i])
            if i in alone
            else _output(o, results, kept, wholes)
            for i, o in enumerate(outputs)
        ]

    return takes_list(call)


def _laid_out(imported: Imported, run: Run) -> Run:
    """Copy arguments that a program refuses for their strides, and call it again.

    It refuses before it does anything, and leaves the list as it is. What it writes to stays as it
    is, since a copy would be lost.
    """
    written = set(imported.graph.aliases.values())
    strides = {i: s for i, s in enumerate(imported.param_strides) if i not in written}

    def call(args: list[Any]) -> list[torch.Tensor]:
        try:
            return run(args)
        except ValueError:
            other = [i for i, x in enumerate(args) if _lies_otherwise(x, strides.get(i))]
            if not other:
                raise
        for i in other:
            args[i] = torch.empty_strided(
                args[i].shape, strides[i], dtype=args[i].dtype, device=args[i].device
            ).copy_(args[i])
        return run(args)

    return call


def _lies_otherwise(x: torch.Tensor, strides: tuple[int, ...] | None) -> bool:
    if strides is None or x.layout is not torch.strided or x.dim() != len(strides):
        return False
    return x.stride() != strides


def _waiting(awaited: Sequence[int], run: Run) -> Run:
    """Wait for collectives that were started elsewhere and whose results are arguments here."""

    def wait_and_run(args: list[Any]) -> list[torch.Tensor]:
        for number in awaited:
            torch.ops._c10d_functional.wait_tensor(args[number])
        return run(args)

    return wait_and_run


def _alone(outputs: Sequence[Output]) -> dict[int, Strided]:
    """Views of what the program made of which the caller gets nothing else, by their numbers."""
    made = Counter(o.index for o in outputs if o.kind == "result")
    return {
        i: o.view
        for i, o in enumerate(outputs)
        if o.kind == "result" and made[o.index] == 1 and o.view is not None
    }


def _by_itself(base: torch.Tensor, view: Strided) -> torch.Tensor:
    """Return a tensor in the memory of another one, which is no view to autograd.

    Only how a program lays out its results makes it one (`rot90` is a transposed `flip`), for which
    autograd would refuse writes. Both count the same writes: the other may be saved for gradients.
    """
    return view.of(base.detach()).detach()


def _output(
    output: Output,
    results: Sequence[torch.Tensor],
    args: dict[int, Any],
    wholes: dict[int, torch.Tensor],
) -> Any:
    if output.kind == "constant":
        return output.value
    base = results[output.index] if output.kind == "result" else args[output.index]
    view = output.view
    if view is None:
        return base
    # Once for all its views: AOTAutograd wants arguments that share memory to have one base, which
    # may be one of them. Detached where there are gradients, since a view of a result that has them
    # has them too, also if the graph detached it. Both still count the same writes, so autograd
    # notices if something saved is overwritten.
    if id(base) not in wholes:
        wholes[id(base)] = base.detach()
    return view.of(wholes[id(base)])
