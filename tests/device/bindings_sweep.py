"""Calls every function of the native core with arguments that make no sense: for `test_bindings`.

Prints a line of JSON before each call and one after it, so that a call which ends the process is
the last that was named.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_neuronx import _C

# What these do to the process is their purpose, whatever they are given.
EXCLUDED = {
    "next_region": "waits", "next_operator": "waits", "stop_regions": "ends a thread",
    "stop_predicting": "ends a thread", "close_process_groups": "at the end of the process",
    "close_queues": "at the end of the process", "close_registry": "at the end of the process",
    "register_kernels": "once in a process", "register_symmetric_memory": "once in a process",
    "set_operator_table": "replaces the table", "call_at_first_use": "takes a function",
    "set_holders_writer": "takes a function", "set_line_finder": "takes a function",
}  # fmt: skip
ROUNDS = 8

INTEGERS = (-1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 0, 1)
NUMBERS = (float("nan"), float("inf"), -1.0, 0.5)
TEXTS = ("", "x" * 5000, "\0", "all_reduce")
SEQUENCES: tuple[list[Any], ...] = (
    [],
    [-1],
    [2**63],
    [2**62] * 3,
    ["x"],
    [(0, 0)],
    [(2**63, 1)],
    [(1, 2, 3, 4, 5, None)],
)


def tensors() -> tuple[Any, ...]:
    """Of odd sizes, types, layouts and devices."""
    return (
        torch.zeros(0), torch.zeros(3, dtype=torch.int64), torch.zeros(2, 3),
        torch.zeros(2, 3, device="neuron"), torch.zeros(2, 3, device="meta"),
        torch.zeros(3, 3).to_sparse(), torch.zeros(2, 2, dtype=torch.complex64),
        torch.zeros(3).expand(4, 3), torch.zeros(2, 3, device="neuron:1"),
    )  # fmt: skip


def values_of(kind: str) -> tuple[Any, ...]:
    """Values for a parameter, by the type that its signature names."""
    if "Tensor" in kind and "Sequence" in kind:
        x = torch.zeros(3)
        return ([], [x], [x.to("neuron")], [torch.zeros(0), torch.zeros(5)], [None], [[x, None]])
    if "Tensor" in kind:
        return tensors()
    if fixed := re.search(r"FixedSize\((\d+)\)", kind):
        return tuple([value] * int(fixed[1]) for value in INTEGERS)
    known = {"Sequence": SEQUENCES, "Int": INTEGERS, "Float": NUMBERS, "str": TEXTS,
             "bool": (True, False)}  # fmt: skip
    odd = (None, object(), 3, b"abc", torch.zeros(1))
    return next((values for part, values in known.items() if part in kind), odd)


def parameters_of(function: Callable[..., Any]) -> tuple[list[tuple[str, str]], bool]:
    """Names and types of the parameters, and whether they must be given by name."""
    first = (function.__doc__ or "").strip().split("\n")[0]
    found = re.match(r"\w+\((.*)\) ->", first)
    parts, depth, start, quoted = [], 0, 0, False
    text = found[1] + "," if found else ""
    for at, letter in enumerate(text):
        quoted ^= letter in "\"'"
        depth += 0 if quoted else (letter in "([") - (letter in ")]")
        if letter == "," and not depth and not quoted:
            parts.append(text[start:at].strip())
            start = at + 1
    named = "*" in parts
    pairs = (part.partition(":") for part in parts if part and part != "*")
    return [(name, re.sub(r" = .*$", "", kind.strip())) for name, _, kind in pairs], named


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions of the core, but for those that are excluded."""
    for name in sorted(dir(_C)):
        found = getattr(_C, name)
        if not callable(found) or isinstance(found, type) or name.startswith("_"):
            continue
        if name not in EXCLUDED:
            yield name, found


def called(name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Call a function, and print what came of it."""
    shown = [repr(value)[:60] for value in (*args, *kwargs.values())]
    sys.stdout.write(json.dumps([name, shown]) + "\n")
    sys.stdout.flush()
    try:
        getattr(_C, name)(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - any error is one that Python can handle
        outcome = type(error).__name__
    else:
        outcome = "returned"
    sys.stdout.write(json.dumps(outcome) + "\n")
    sys.stdout.flush()


def main() -> None:
    for name, function in functions():
        parameters, named = parameters_of(function)
        wrong = [object()] * max(1, len(parameters))
        called(name, wrong, {})
        for turn in range(ROUNDS):
            args = []
            for at, (_, kind) in enumerate(parameters):
                values = values_of(kind)
                args.append(values[(turn + at * (turn % 3)) % len(values)])
            if named:
                names = (parameter for parameter, _ in parameters)
                called(name, [], dict(zip(names, args, strict=True)))
            else:
                called(name, args, {})


if __name__ == "__main__":
    main()
