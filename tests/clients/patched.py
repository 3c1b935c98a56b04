"""Runs functions with modules that are patched: -m tests.clients.patched FOLDER MODULE NAME...

Each patch of FOLDER is applied to temporary copies of the installed files that it names. An import
then finds the copies instead of the installed modules, in this process only. After that the
functions NAME of MODULE are called, and `NAME: done` is printed.

Only the standard library may be imported before the patches are in place.
"""

import importlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from shutil import copy
from types import ModuleType


class Copies(MetaPathFinder):
    """Finds modules in files of their own."""

    def __init__(self, files: dict[str, Path]) -> None:
        self.files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self.files.get(name)
        return None if file is None else spec_from_file_location(name, file)


def files_of(patch: Path) -> list[str]:
    """The files that a patch changes, as they are below site-packages."""
    marked = [line for line in patch.read_text().splitlines() if line.startswith("--- a/")]
    return [line.removeprefix("--- a/") for line in marked]


def installed(file: str) -> Path:
    """Where a file of a package is."""
    package, _, rest = file.partition("/")
    spec = find_spec(package)  # of a package without parents: this imports nothing
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(package)
    return Path(spec.submodule_search_locations[0]) / rest


def apply(patches: list[Path], folder: Path) -> dict[str, Path]:
    """Patched copies in `folder`, by the names of their modules."""
    for file in {file for patch in patches for file in files_of(patch)}:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        copy(installed(file), folder / file)
    for patch in patches:
        command = ["git", "apply", "--whitespace=nowarn", str(patch.resolve())]
        subprocess.run(command, cwd=folder, check=True)
    return {
        ".".join(path.relative_to(folder).with_suffix("").parts): path
        for path in folder.rglob("*.py")
    }


def main(folder: str, module: str, *names: str) -> None:
    with tempfile.TemporaryDirectory() as copies:
        patches = sorted(Path(folder).glob("*.patch"))
        here = [p for p in patches if all(find_spec(f.split("/")[0]) for f in files_of(p))]
        sys.meta_path.insert(0, Copies(apply(here, Path(copies))))
        program = importlib.import_module(module)
        for name in names:
            getattr(program, name)()
            print(f"{name}: done", flush=True)  # noqa: T201 - read by who has started this


if __name__ == "__main__":
    main(*sys.argv[1:])
