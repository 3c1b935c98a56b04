"""The tables of the benchmarks of compiling: every row can be measured and has its target."""

from __future__ import annotations

import dataclasses
import math
import sys
from subprocess import CompletedProcess

import pytest

from benchmarks import __main__ as every
from benchmarks.compiled import child, command, compile_time, hlo_models, memory, operators
from neuronxcc.frontends.hlo.module import decode


def test_all_suites_are_held_to_the_same_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], env: dict[str, str], **_: object) -> CompletedProcess[bytes]:
        calls.append((command, env))
        return CompletedProcess(command, 0)

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--isa", "avx2", "--only", "gelu"])
    assert every.main() == 0
    assert [command[2:] for command, _ in calls] == [[s, "--only", "gelu"] for s in every.SUITES]
    for _, environment in calls:
        assert environment["TORCH_NEURONX_ISA"] == "avx2"
        assert environment["XLA_FLAGS"] == "--xla_cpu_max_isa=AVX2"


def test_rows_of_compile_time_are_well_formed() -> None:
    checks = compile_time.table()
    assert len({check.name for check in checks}) == len(checks)
    clocks = {field.name for field in dataclasses.fields(child.Seconds)}
    for check in checks:
        assert check.clock in clocks
        assert check.most is None or check.most > 0
        assert check.parts >= 1
    assert {run.case for run in compile_time.runs(checks)} <= child.MAKERS.keys()
    backends = {run.backend for run in compile_time.runs(checks)}
    assert backends == {child.NEURON, child.INDUCTOR}


def test_row_of_compile_time_divides_what_it_says() -> None:
    ours, rival = compile_time.Run("small"), compile_time.Run("small", child.INDUCTOR)
    times = {ours: child.Seconds(3, 2, 1), rival: child.Seconds(30, 20, 5)}
    check = compile_time.Check("ratio", "ours", ours, 0.1, rival)
    assert compile_time.row(check, times) == compile_time.Row("ratio", 1, 5, 0.2, 0.1, met=False)
    check = compile_time.Check("seconds", "whole", ours, 4)
    assert compile_time.row(check, times) == compile_time.Row("seconds", 3, None, 3, 4, met=True)
    check = compile_time.Check("per layer", "backend", ours, parts=4)
    assert math.isclose(compile_time.row(check, times).value, 0.5)


def test_rows_of_operators_are_well_formed() -> None:
    table = operators.table()
    assert len({each.name for each in table}) == len(table)
    for each in table:
        assert each.shape in operators.SHAPES
        assert each.most >= operators.MOST
        assert each.training is None or each.training >= operators.MOST


def test_a_row_of_operators_divides_what_it_says() -> None:
    row = operators.Row("sort", 2.0, 3.0, 2.0)
    assert (row.ratio, row.met) == (1.5, True)
    assert not operators.Row("sort", 2.0, 5.0, 2.0).met


def test_rows_of_memory_are_well_formed() -> None:
    for check in memory.table():
        assert check.case in child.MAKERS
        assert 0 < check.most <= 1


def test_benchmarks_that_all_run_exist() -> None:
    suites = {compile_time.__name__, memory.__name__, command.__name__}
    assert suites <= set(every.SUITES)


def test_rows_of_the_command_are_well_formed() -> None:
    checks = command.table()
    assert len({check.name for check in checks}) == len(checks)
    assert all(check.most is None or check.most > 0 for check in checks)


def test_graphs_of_many_operators_have_that_many() -> None:
    for form in hlo_models.FORMS:
        module = decode(hlo_models.operators(form, 400))
        count = sum(i.opcode != "parameter" for i in module.computations[module.entry].instructions)
        assert 300 <= count <= 500, form
