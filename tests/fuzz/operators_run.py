"""Hostile calls of operators between guard pages: `python -m tests.fuzz.operators_run file 1 4`.

Ways: "file", as the one step of a program, which might be a NEFF's; "eager", on neuron tensors,
of which there are more operators: those that write to arguments.
With 0 changed calls per operator, the right ones are made, and none may be refused. Prints a line
per finding and a last line with counts; the exit code is 1 if there was a finding.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from neuronxcc.program.memory import View
from neuronxcc.program.steps.operator import AtenStep
from tests.compiler.executable_programs import Maker
from tests.fuzz.operators import (
    Call,
    Spec,
    contiguous,
    hostile,
    invent,
    materialise,
    operator,
    placed,
    record,
    registered,
    run,
)
from torch_neuronx.dynamo.registry import flat
from torch_neuronx.program.allowed import refusal
from torch_neuronx.program.dtypes import TO_TORCH
from torch_neuronx.program.executable import Executable

_FROM_TORCH = {dtype: ir for ir, dtype in TO_TORCH.items()}
_RECORDED = 0.85  # of the calls; the others are invented


#: Operators that are not called in eager mode, and why.
NOT_CALLED = {
    "aten::from_file.default": "it opens files of any name",
    "aten::from_file.out": "it opens files of any name",
    # The others end the process on every device, before a kernel of the device is called.
    "aten::_thnn_differentiable_gru_cell_backward.default": "it takes six parts of any gates",
    "aten::_thnn_differentiable_lstm_cell_backward.default": "it reads a gradient that is missing",
    "aten::quantized_gru_cell.default": "it reads packed weights of another library",
    "aten::quantized_lstm_cell.default": "it reads packed weights of another library",
    "aten::_sobol_engine_draw.default": "it reads tables of its module's",
    "aten::_sobol_engine_ff_.default": "it reads tables of its module's",
    "aten::_sobol_engine_initialize_state_.default": "it reads tables of its module's",
    "aten::_sobol_engine_scramble_.default": "it reads tables of its module's",
    "aten::copy.default": "it reads a tensor that is missing",
    "aten::copy.out": "it reads a tensor that is missing",
}  # fmt: skip


def _spec(*shape: int, dtype: torch.dtype = torch.float32) -> Spec:
    values = tuple([0] * math.prod(shape)) if dtype in {torch.int64, torch.uint8} else None
    return Spec(shape, contiguous(shape), dtype, values)


#: Right calls of operators that trust their caller, and that no sample of PyTorch's makes.
_X, _COMPLEX, _INT = _spec(3, 4), _spec(3, 4, dtype=torch.complex64), torch.int64
_LAYER = (_spec(5, 2, 4), _spec(12, 4), _spec(12, 3), *(_spec(12),) * 2, *(_spec(2, 3),) * 2)
_IMAGE, _KERNEL, _GRADIENT = _spec(2, 3, 6, 7), _spec(4, 3, 3, 2), _spec(2, 4, 6, 3)
_PLACES = _spec(2, 3, 2, 2, dtype=_INT)
_NO, _YES = False, True
RIGHT = (
    Call("aten::_batch_norm_no_update.default", (_spec(2, 3, 4), *(_spec(3),) * 4, 0.1, 0.1), ()),
    Call("aten::_chunk_cat.default", ((_X, _spec(3, 2)), 0, 2), ()),
    Call("aten::_chunk_cat.out", ((_X, _spec(3, 2)), 0, 2), (("out", _spec(2, 12)),)),
    Call("aten::_cummax_helper.default", (_X, _X, _spec(3, 4, dtype=_INT), 1), ()),
    Call("aten::_cummin_helper.default", (_X, _X, _spec(3, 4, dtype=_INT), 0), ()),
    Call("aten::_fft_c2c.out", (_COMPLEX, (0, 1), 0, _YES), (("out", _COMPLEX),)),
    Call("aten::_fft_c2r.out", (_COMPLEX, (1,), 0, 6), (("out", _spec(3, 6)),)),
    Call(
        "aten::_fft_r2c.out", (_X, (0, 1), 0, _YES),
        (("out", _spec(3, 3, dtype=torch.complex64)),),
    ),
    Call("aten::_foreach_copy.default", ((_X, _X), (_X, _X), _NO), ()),
    Call(
        "aten::_nnpack_spatial_convolution.default", (_IMAGE, _spec(4, 3, 3, 3), None, (1, 1)), (),
    ),
    Call(
        "aten::_slow_conv2d_backward.grad_input",
        (_GRADIENT, _IMAGE, _KERNEL, (3, 2), (1, 2), (1, 0)),
        (("grad_input", _IMAGE), ("grad_weight", _KERNEL), ("grad_bias", _spec(4))),
    ),
    Call(
        "aten::_slow_conv2d_backward.output_mask",
        (_GRADIENT, _IMAGE, _KERNEL, (3, 2), (1, 2), (1, 0), (_YES, _YES, _YES)), (),
    ),
    Call(
        "aten::_slow_conv2d_forward.default",
        (_IMAGE, _KERNEL, (3, 2), _spec(4), (1, 2), (1, 0)), (),
    ),
    Call(
        "aten::fractional_max_pool2d_backward.grad_input",
        (_spec(2, 3, 2, 2), _spec(2, 3, 6, 6), (2, 2), (2, 2), _PLACES),
        (("grad_input", _spec(2, 3, 6, 6)),),
    ),
    Call(
        "aten::mkldnn_rnn_layer.default",
        (*_LAYER, _NO, (), 2, 3, 1, _YES, _NO, _NO, _YES), (),
    ),
    Call(
        "aten::embedding_dense_backward.default",
        (_spec(12, 3), _spec(12, dtype=_INT), 5, -1, _YES), (),
    ),
    Call("aten::range.out", (0, 9, 2), (("out", _spec(5, dtype=_INT)),)),
    Call("aten::rrelu_with_noise.out", (_X, _X, 0.1, 0.3, _YES, None), (("out", _X),)),
    Call("aten::rrelu_with_noise_.default", (_X, _X, 0.1, 0.3, _YES, None), ()),
)  # fmt: skip


def targets(way: str) -> list[str]:
    """The operators that are called, "namespace::name.overload": all, or what a file may name."""
    left_out = NOT_CALLED.get if way == "eager" else refusal
    return [target for target in registered("aten", "prims") if not left_out(target)]


def tensor(spec: Spec) -> torch.Tensor:
    """A neuron tensor, of halves or of the integers that are named."""
    return placed(spec, "neuron", lambda count: torch.full((count,), 0.5))


def eager(call: Call) -> None:
    """Call it on neuron tensors."""
    if not any(isinstance(leaf, Spec) for leaf in tree_leaves((call.args, call.kwargs))):
        return  # no neuron tensor, so the call never comes to the device
    operator(call.target)(
        *(materialise(a, tensor) for a in call.args),
        **{name: materialise(value, tensor) for name, value in call.kwargs},
    )


def as_step(call: Call) -> None:
    """Load and run a program with the call as its one step."""
    maker = Maker()
    given: list[Spec] = []

    def freeze(value: Any) -> Any:
        if isinstance(value, Spec):
            number = maker.buffer("input", value.shape, _FROM_TORCH[value.dtype], value.strides)
            given.append(value)
            return maker.view(number)
        if isinstance(value, tuple):
            return tuple(map(freeze, value))
        if isinstance(value, torch.dtype):
            return _FROM_TORCH[value]
        if isinstance(value, torch.device | torch.layout | torch.memory_format):
            return None
        return value

    args = tuple(map(freeze, call.args))
    kwargs = {name: freeze(value) for name, value in call.kwargs}
    returns = operator(call.target)._schema.returns  # type: ignore[attr-defined]
    if not maker.buffers:
        return
    # Once without results: whatever is refused is refused here, before fake tensors are asked.
    step = AtenStep(call.target, args, kwargs, (None,) * len(returns), host=True)
    maker.steps.append(step)
    Executable(maker.program(), "neuron")
    outs = tuple(None if spec is None else _result(maker, spec) for spec in _results(call))
    maker.steps[0] = replace(step, outs=outs)
    Executable(maker.program(), "neuron")([tensor(spec) for spec in given])


def _results(call: Call) -> list[Spec | None]:
    """What the program says that the results are: what fake tensors say, if they do."""

    def fake(spec: Spec) -> torch.Tensor:
        return torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype)

    try:
        with FakeTensorMode(), torch.no_grad():
            args = [materialise(a, fake) for a in call.args]
            kwargs = {name: materialise(value, fake) for name, value in call.kwargs}
            made = flat(operator(call.target)(*args, **kwargs))
    except Exception:  # noqa: BLE001 - then nothing is known, and the loader has to refuse
        return [None] * len(operator(call.target)._schema.returns)  # type: ignore[attr-defined]
    return [
        Spec(tuple(t.shape), tuple(t.stride()), t.dtype)
        if isinstance(t, torch.Tensor) and t.dtype in _FROM_TORCH and t.layout == torch.strided
        else None
        for t in made
    ]


def _result(maker: Maker, spec: Spec) -> View:
    return maker.view(maker.buffer("output", spec.shape, _FROM_TORCH[spec.dtype]))


WAYS: dict[str, Callable[[Call], None]] = {"file": as_step, "eager": eager}


def recorded_calls(wanted: list[str], path: Path | None) -> dict[str, list[Call]]:
    """Calls that PyTorch's samples make, kept in a file between runs if one is named."""
    if path is None:
        return record(frozenset(wanted))
    if not path.exists():
        path.write_bytes(pickle.dumps(record(frozenset(targets("eager")))))
    calls: dict[str, list[Call]] = pickle.loads(path.read_bytes())  # noqa: S301 - our own file
    for call in RIGHT:
        calls.setdefault(call.target, []).append(call)
    return {target: calls[target] for target in wanted if target in calls}


def calls_of(way: str, seed: int, per: int, only: str, path: Path | None) -> list[Call]:
    """`per` calls of every operator, changed; the recorded ones as they are if it is 0."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    wanted = [target for target in targets(way) if only in target]
    recorded = recorded_calls(wanted, path)
    if per == 0:
        return [call for calls in recorded.values() for call in calls]
    made = []
    for target in wanted:
        known = recorded.get(target)
        for _ in range(per):
            right = known and rng.random() < _RECORDED
            made.append(hostile(rng.choice(known), rng) if known and right else invent(target, rng))
    return made


def main() -> int:
    """Parse the command line and search."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.operators_run", description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("seed", type=int)
    parser.add_argument("per", type=int)
    parser.add_argument("--only", default="", help="part of the operators' names")
    parser.add_argument("--recorded", type=Path, help="file of recorded calls, made if missing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    calls = calls_of(given.way, given.seed, given.per, given.only, given.recorded)
    counts: dict[str, int] = {}
    findings = 0
    for finding in run(calls, WAYS[given.way], counts):
        slow = finding.how in {"SIGALRM", "SIGKILL"}  # of the host's memory there was no more
        findings += not slow
        print(f"{'slow' if slow else 'finding'}: {finding.how} {finding.call}"[:600], flush=True)
    print(f"{len(calls)} calls: {counts}, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    assert os.environ.get("TORCH_NEURONX_GUARD_PAGES"), "set TORCH_NEURONX_GUARD_PAGES"
    sys.exit(main())
