"""Pages that name files name files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "neuronxcc|nki|neuron_dtypes|neuron_tools|nrtpy|torch_neuronx|tests|docs|benchmarks|examples"
)
FILE = re.compile(rf"`((?:{PACKAGES})/[\w./]*)`")


@pytest.mark.parametrize("page", ["architecture", "howto", "glossary"])
def test_files_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    named = set(FILE.findall(text))
    assert named
    missing = sorted(name for name in named if not (ROOT / name).exists())
    assert not missing, f"docs/{page}.md names {missing}"


def test_every_task_has_few_files_and_an_example() -> None:
    text = (ROOT / "docs" / "howto.md").read_text(encoding="utf-8")
    tasks = text.split("\n## ")[1:]
    assert len(tasks) == 10
    for task in tasks:
        title = task.partition("\n")[0]
        assert "xample" in task, title
        assert FILE.search(task), title


def map_entries() -> list[str]:
    """The paths of docs/map.md, whose lines are indented as the folders are nested."""
    text = (ROOT / "docs" / "map.md").read_text(encoding="utf-8").split("```")[1]
    found: list[str] = []
    folders: list[str] = []
    for line in text.strip("\n").splitlines():
        depth, words = (len(line) - len(line.lstrip())) // 2, re.split(r"\s{2,}", line.strip())[0]
        if depth > 2 + len(folders) and not words.endswith((".py", "/", ".pyi")):
            continue  # the rest of the line above
        for word in words.replace(",", " ").split():
            if word.endswith("/") or "." in word:
                path = "".join(folders[:depth]) + word
                found.append(path)
        if words.endswith("/"):
            folders[depth:] = [words.split()[-1]]
    return found


def test_the_map_names_what_there_is() -> None:
    entries = map_entries()
    assert len(entries) > 80
    assert not [entry for entry in entries if not (ROOT / entry).exists()]
