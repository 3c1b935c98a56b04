"""A process that uses the device: what `test_live` runs, told by its words what to do."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

import nki
import nki.isa as nisa
import nki.language as nl
import nrtpy
import torch_neuronx
from neuronxcc.compiler import compile_graph
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import TensorType
from neuronxcc.neff import NeffInfo, write_neff
from neuronxcc.options import Options
from torch_neuronx import _C, testing
from torch_neuronx.program import operator_time


def work() -> None:
    """Executions that are easy to count: 5 additions, 1 product of 2 * 64 * 32 * 16 FLOPs."""
    x = torch.ones(64, 32, device="neuron")
    w = torch.ones(32, 16, device="neuron")
    for _ in range(5):
        torch.add(x, x)
    x @ w


def enqueue() -> None:
    """Enqueue what is so small that it would run at its call."""
    _C.set_direct_elements(0)


def fail() -> None:
    """Two errors: wrong arguments, and a result for which there is no memory."""
    x = torch.ones(4, 3, device="neuron")
    tall = torch.ones(1 << 18, 1, device="neuron")
    for one, other in ((x, x), (tall, tall.t())):
        try:
            torch.mm(one, other)
        except (RuntimeError, torch.OutOfMemoryError):
            continue
        raise AssertionError("nothing was wrong")


def injected() -> None:
    """A fault that was asked for."""
    x = torch.ones(4, device="neuron")
    with testing.inject("hbm_error", at=1):
        try:
            torch.add(x, x)
        except torch.AcceleratorError:
            return
    raise AssertionError("nothing was wrong")


def compiled() -> None:
    """A program that is loaded and runs three times."""
    step = torch.compile(lambda x: torch.relu(x @ x) + 1, backend="neuron", fullgraph=True)
    x = torch.ones(16, 16).to("neuron")
    for _ in range(3):
        step(x)
    globals()["kept"] = step


def _neff(*, predicted: bool) -> None:
    """A NEFF that is loaded and runs three times, with or without what its compiler predicted."""
    options = Options()
    kind = TensorType(DType.F32, (64, 64))
    x = parameter(0, kind)
    program = compile_graph(Graph("twice", (x,), (build.add(x, x),)), options)
    if not predicted:
        program = replace(program, meta={})
    content = write_neff(program, NeffInfo("twice", options.target, options.lnc))
    with tempfile.NamedTemporaryFile(suffix=".neff") as file:
        Path(file.name).write_bytes(content)
        model = nrtpy.NrtpyModel.load_from_neff(file.name)
    given = nrtpy.NrtpyTensor.from_numpy(np.ones((64, 64), np.float32), "x")
    for _ in range(3):
        model(dict.fromkeys(model.input_tensors_info, given))


def neff() -> None:
    """A NEFF as compilers write it."""
    _neff(predicted=True)


def traced() -> None:
    """A traced model that is saved, loaded and called three times."""
    x = torch.ones(16, 16)
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        torch.jit.save(torch_neuronx.trace(lambda x: torch.relu(x @ x) + 1, x), file.name)
        model = torch.jit.load(file.name)
    for _ in range(3):
        model(x)


def neff_without() -> None:
    """A NEFF that says nothing of its time."""
    _neff(predicted=False)


@nki.jit
def _double(x: Any) -> Any:
    tile = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
    out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


def kernel() -> None:
    """A kernel of NKI that is called three times."""
    x = torch.ones(128, 512).to("neuron")
    for _ in range(3):
        _double(x)


def collectives() -> None:
    """Three reductions of 1024 bytes, in a group of one rank."""
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(f"{folder}/store", 1)
        dist.init_process_group("neuron", store=store, rank=0, world_size=1)
        x = torch.ones(256, device="neuron")
        for _ in range(3):
            dist.all_reduce(x)
        dist.destroy_process_group()


def settle() -> None:
    """Wait until all that ran has its predicted time."""
    operator_time.settle()


def fork() -> None:
    """A child that inherits the device and ends before its parent."""
    work()
    child = os.fork()
    if child == 0:
        os._exit(0 if _C.registry_path() == "" else 1)
    assert os.waitpid(child, 0)[1] == 0


def forked_first() -> None:
    """A child that uses the device, which its parent has not."""
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    work()


def main() -> None:
    for word in sys.argv[1:]:
        if word == "wait":
            sys.stdout.write(f"ready {_C.registry_path()}\n")
            sys.stdout.flush()
            sys.stdin.readline()
        elif word == "die":
            os.kill(os.getpid(), 9)
        elif word == "sleep":
            time.sleep(1)
        else:
            globals()[word]()


if __name__ == "__main__":
    main()
