"""What PyTorch's own error samples have wrong is refused at the call where operators are enqueued.

The shapes and types of a call's results are believed from its kind, which says nothing of a call
that is wrong: it must not be enqueued, to be refused where nobody looks for it.
"""

from __future__ import annotations

import contextlib
from itertools import islice

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

import torch_neuronx
from tests.device.enqueued import everything_enqueued
from tests.shallow import shallow

N = torch_neuronx.neuron
_SAMPLES = 3
#: Beginnings of OpInfo names -> why they are left out.
_LEFT_OUT = {"jiterator_": "its kernels are CUDA's"}
_CHECKED = [
    op
    for op in op_db
    if vars(op)["error_inputs_func"] is not None
    if not op.name.startswith(tuple(_LEFT_OUT))
]


def settle(op: OpInfo) -> None:
    """Run samples twice, so that kinds of calls are known and the second ones are enqueued."""
    with contextlib.suppress(RuntimeError, NotImplementedError, TypeError):
        for sample in islice(op.sample_inputs("neuron", torch.float32), _SAMPLES):
            for _ in range(2):
                call(op, sample)
    N.synchronize()


def on_cpu(sample: SampleInput) -> SampleInput:
    moved: SampleInput = sample.transform(lambda t: t.cpu() if isinstance(t, torch.Tensor) else t)
    return moved


def call(op: OpInfo, sample: SampleInput) -> object:
    return op(sample.input, *sample.args, **sample.kwargs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", _CHECKED, ids=lambda op: op.formatted_name)
@shallow
def test_errors_are_told_at_the_call(op: OpInfo) -> None:
    with everything_enqueued("strict"):
        settle(op)
        for error in op.error_inputs("neuron"):
            sample = error.sample_input
            try:
                call(op, sample)
            except Exception:  # noqa: BLE001, S112 - of as many types as samples
                continue
            N.synchronize()  # an error that comes only now is late
            # What is no error on the CPU: `NotImplemented`, from which Python makes one.
            call(op, on_cpu(sample))
