"""Kernels in the compile cache: a signature that was recorded once runs without its Python.

A program of a kernel is a NEFF like any other. What else is to be known of the launch stands in the
program's notes under "nki", as JSON.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from neuronxcc.cache.cache import CompileCache, open_cache
from neuronxcc.cache.key import CacheKey, source_digest, versions
from neuronxcc.cache.messages import warn
from neuronxcc.options import Options, from_environment
from neuronxcc.program.program import Program
from nki.dtypes import info
from nki.launch import Facts, Launch, facts_of
from nki.lowering import lower
from nki.recording import Recording
from nki.returned import from_data, is_plain, to_data

__all__ = ["prepare"]

_NOTES = "nki"


def prepare(
    name: str, parts: Mapping[str, str] | None, target: str, record: Callable[[], Recording]
) -> Launch:
    """Return the launch of a signature: from the cache, or recorded.

    What is recorded is kept when it has been lowered, unless its Python has looked at values or it
    returns objects of classes of the user's.

    Args:
        name: of the kernel, for people.
        parts: what the signature consists of, by label; None for one that cannot be kept.
        target: name of the target.
        record: runs the kernel as Python.
    """
    if parts is None:
        return _recorded(record(), None)
    options = replace(from_environment({}), target=target)
    cache = open_cache(options.wrapper)
    key = CacheKey.of(
        {**parts, "target": target, "version.nki": _source(), **_versions("version.")}
    )
    program = cache.lookup(key)
    facts = None if program is None else _facts(program)
    if program is not None and facts is not None:
        kept = program
        return Launch(facts, record, lambda: kept, name)
    return _recorded(record(), _Entry(cache, key, options, name))


class _Entry:
    """Where a program is to be kept."""

    def __init__(self, cache: CompileCache, key: CacheKey, options: Options, name: str) -> None:
        self._where = cache, key, options, name

    def keep(self, program: Program) -> None:
        cache, key, options, name = self._where
        cache.store(key, program, options, name)


def _recorded(recording: Recording, entry: _Entry | None) -> Launch:
    facts = facts_of(recording)

    def program() -> Program:
        made = lower(recording)
        made.meta = {**made.meta, _NOTES: _notes(facts)}
        if entry is not None and facts.keep and is_plain(facts.results):
            entry.keep(made)
        return made

    return Launch(facts, lambda: recording, program, recording.name)


def _notes(facts: Facts) -> str:
    return json.dumps(
        {
            "results": to_data(facts.results),
            "arguments": facts.arguments,
            "written": sorted(facts.written),
            "outputs": facts.outputs,
            "findings": facts.findings,
        }
    )


def _facts(program: Program) -> Facts | None:
    """Return what a kept program says about its launch; None, after a warning, if it is damaged."""
    try:
        notes: dict[str, Any] = json.loads(program.meta[_NOTES])
        return Facts(
            from_data(notes["results"]),
            _shapes(notes["arguments"]),
            frozenset(map(int, notes["written"])),
            _shapes(notes["outputs"]),
            tuple(
                (str(code), str(text), (str(file), int(line)))
                for code, text, (file, line) in notes["findings"]
            ),
        )
    except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        warn(f"a kernel's notes in the cache are not usable ({error!r}); it is recorded again")
        return None


def _shapes(data: Any) -> tuple[tuple[tuple[int, ...], str], ...]:
    return tuple((tuple(map(int, shape)), info(dtype).name) for shape, dtype in data)


@functools.cache
def _source() -> str:
    return source_digest(Path(__file__).parent)


def _versions(prefix: str) -> dict[str, str]:
    return {prefix + name: text for name, text in versions().items()}
