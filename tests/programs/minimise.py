"""Cut a program down to what a finding needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.programs.check import check
from tests.programs.program import Program, words


def minimise(program: Program, mode: str, kind: str, *, seed: int, tries: int = 120) -> Program:
    """A smaller program with the same kind of finding; the program itself if none is found.

    Args:
        program: what was found
        mode: how it was run
        kind: the verdict's kind, which the smaller one has too
        seed: of the noise
        tries: programs to run at most
    """
    best, left, again = program, tries, True
    while again and left > 0:
        again = False
        for smaller in _smaller(best):
            if left <= 0:
                break
            left -= 1
            if check(smaller, [mode], seed=seed).verdicts[mode].kind == kind:
                best, again = smaller, True
                break
    return best


def _smaller(program: Program) -> Iterator[Program]:
    """Programs with fewer results, then with fewer statements, the largest cuts first."""
    if program.use != "plain":
        yield replace(program, use="plain")
    if len(program.results) > 1:
        half = len(program.results) // 2
        for results in (program.results[:half], program.results[half:]):
            yield _alive(replace(program, results=results))
    bound = [s for s in program.statements if not s.outs]
    for statement in reversed(bound):
        yield _alive(
            replace(program, statements=[s for s in program.statements if s is not statement])
        )
    if len(program.results) == 1:
        # Return an operand instead of the result.
        names = [n for s in program.statements for n in s.outs]
        for name in names[:-1][::-1][:12]:
            if name not in program.results:
                yield _alive(replace(program, results=(name,)))
    for name, x in program.inputs.items():
        if x.requires_grad:
            yield replace(program, inputs={**program.inputs, name: x.detach()})


def _alive(program: Program) -> Program:
    """Without statements that no result or effect needs."""
    needed = set(program.results)
    kept = []
    for statement in reversed(program.statements):
        if not statement.outs or needed & set(statement.outs):
            kept.append(statement)
            needed |= words(statement.code)
    inputs = {n: x for n, x in program.inputs.items() if n in needed} or dict(
        [next(iter(program.inputs.items()))]
    )
    modules = {n: t for n, t in program.modules.items() if n in needed}
    return replace(program, statements=kept[::-1], inputs=inputs, modules=modules)
