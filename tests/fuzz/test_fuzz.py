"""Bad files: seeded mutations of good ones, and what an earlier search found worth keeping."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).with_name("corpus")
_MUTATIONS = {"hlo": 600, "command": 150, "stablehlo": 4, "neff": 1200}


@pytest.mark.parametrize("name", TARGETS)
def test_good_files_are_taken(name: str) -> None:
    target = TARGETS[name]
    seeds = list(target.seeds().items())
    said = {s: target.run(content) for s, content in (seeds[:3] if name == "stablehlo" else seeds)}
    # What the chip has no complex type for is refused by the command, for its target.
    expected = {"ok", "large"} if name != "command" else {"ok", "HloError"}
    assert set(said.values()) <= expected, said
    assert list(said.values()).count("ok") > len(said) // 2, said


@pytest.mark.parametrize("name", TARGETS)
def test_changed_files_are_taken_or_refused(name: str) -> None:
    target = TARGETS[name]
    rng = random.Random(20261122)  # noqa: S311 - no secret
    seeds = list(target.seeds().values())
    said: Counter[str] = Counter()
    for _ in range(_MUTATIONS[name]):
        content = rng.choice(seeds)
        for _ in range(rng.randint(1, 3)):
            content = (mutate_bytes if rng.random() < 0.2 else target.mutate)(content, rng)
        said[target.run(content)] += 1
    assert set(said) - {"ok", "large"}, said
    assert said["ok"] or name == "stablehlo", said  # of text hardly any change is taken


def _kept() -> list[Path]:
    return sorted(path for path in CORPUS.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", _kept(), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_before(path: Path) -> None:
    TARGETS[path.parent.name].run(path.read_bytes())
