"""From AOTAutograd's calling convention to the executable's and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_neuronx.dynamo.importer import Imported
from torch_neuronx.dynamo.outputs import Output

Run = Callable[[list[Any]], list[torch.Tensor]]


def boxed(imported: Imported, run: Run) -> Callable[[list[Any]], list[Any]]:
    """A function of the FX graph's arguments, given as a list that is emptied before the run.

    So nothing keeps an argument alive that the program has used for the last time.
    """
    sources, outputs = imported.arguments, imported.outputs
    count = len(outputs)
    direct = all(o == Output("result", i) for i, o in enumerate(outputs))
    same = sources == tuple(range(len(sources)))
    # Results of a program lie on its device; a graph may have asked for some on another one.
    program = imported.device.type
    moved = [
        (i, d)
        for i, d in enumerate(imported.result_devices)
        if d != program and i not in imported.graph.aliases
    ]
    needed = sorted({o.index for o in outputs if o.kind == "argument"})

    def call(args: list[Any]) -> list[Any]:
        kept = {i: args[i] for i in needed}
        if same and len(args) == len(sources):
            tensors = list(args)
        else:
            tensors = [args[s] if isinstance(s, int) else s for s in sources]
        args.clear()
        results = run(tensors)
        for i, device in moved:
            results[i] = results[i].to(device)
        if direct:
            return list(results[:count])
        return [_output(o, results, kept) for o in outputs]

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _output(output: Output, results: Sequence[torch.Tensor], args: dict[int, Any]) -> Any:
    if output.kind == "constant":
        return output.value
    base = results[output.index] if output.kind == "result" else args[output.index]
    view = output.view
    if view is None:
        return base
    return base.as_strided(view.size, view.stride, view.offset)
