"""A process of its own that says what operators and collectives take, for another one that runs.

`torch_neuronx/program/operator_time.py` starts it and asks. To make a graph of an operator PyTorch
patches itself for the whole process, which a program that runs must not notice. Questions and
answers are lines of JSON; the process ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

from neuronxcc.perf.graphs import Machine
from neuronxcc.targets import get_target
from torch_neuronx.distributed.planning.collectives import payload_of
from torch_neuronx.estimation.operators import bytes_us, exchange_us, operator_us
from torch_neuronx.estimation.session import placed


def _read(value: Any, known: dict[int, torch.Tensor]) -> Any:
    """An argument as `operator_us` has it."""
    if isinstance(value, list):
        return [_read(item, known) for item in value]
    if not isinstance(value, dict):
        return value
    if "device" in value:
        return torch.device(value["device"])
    if "complex" in value:
        return complex(*value["complex"])
    number, shape, stride, dtype, meta = value["tensor"]
    if number not in known:
        kind = getattr(torch, dtype)
        known[number] = (
            torch.empty_strided(shape, stride, dtype=kind, device="meta")
            if meta
            else torch.zeros((), dtype=kind).expand(shape)
        )
    return known[number]


def _operator_us(question: dict[str, Any]) -> float:
    space, _, rest = question["operator"].partition("::")
    base, _, overload = rest.partition(".")
    known: dict[int, torch.Tensor] = {}
    arguments = [_read(value, known) for value in question["arguments"]]
    placement = placed(question["target"], question["lnc"])
    try:
        func = getattr(getattr(getattr(torch.ops, space), base), overload or "default")
    except AttributeError:  # the program's own, of which nothing is known here
        return bytes_us(sum(one.nbytes for one in known.values()), placement)
    return operator_us(func, arguments, placement)


def _collective_us(question: dict[str, Any]) -> float:
    kind, ranks = question["collective"], question["ranks"]
    placement = placed(
        question["target"], question["lnc"], question["world_size"], question["instance"],
        question["ranks_per_instance"],
    )  # fmt: skip
    nbytes = payload_of(kind, question["read"], question["written"], len(ranks))
    machine = Machine.of(get_target(question["target"]), question["lnc"])
    return exchange_us(kind, nbytes, ranks, placement, machine)


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Return the microseconds, or why there are none."""
    try:
        us = _operator_us(question) if "operator" in question else _collective_us(question)
    except Exception as error:  # noqa: BLE001 - whoever asked is told
        return {"error": f"{type(error).__name__}: {error}"}
    return {"us": us}


def main() -> None:
    """Answer until nobody asks."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else is printed is no answer
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()
