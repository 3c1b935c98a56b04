"""Fuzz a parser with coverage as the guide: `python -m tests.fuzz hlo --minutes 60`.

Needs Atheris (`pip install atheris`), libFuzzer for Python. Findings go to a directory, one file
for each place that raised; the inputs that reach something new stay in the working corpus there.
`--keep` copies the smallest of them to `tests/fuzz/corpus`, which the tests replay.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

_KEPT_FILES, _KEPT_BYTES = 24, 2048
CORPUS = Path(__file__).with_name("corpus")


def main() -> int:
    """Parse the command line and fuzz."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--keep", action="store_true", help="copy small inputs to the repository")
    given = parser.parse_args()
    try:
        import atheris  # noqa: PLC0415 - optional: nothing else needs it
    except ImportError:
        print("pip install atheris, and try again", file=sys.stderr)
        return 1
    targets = _instrumented(atheris)

    target = targets.TARGETS[given.target]
    corpus, findings = (given.folder / given.target / n for n in ("corpus", "findings"))
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in target.seeds().items():
        (corpus / f"seed_{name}").write_bytes(content)
    if given.keep:
        return _keep(corpus, given.target)

    def one(content: bytes) -> None:
        try:
            target.run(content)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is written down and the search goes on
            path = findings / _place(error)
            if not path.exists():
                path.write_bytes(content)
                path.with_suffix(".txt").write_text(traceback.format_exc())
                print(f"finding: {path}", flush=True)

    def mutate(content: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)  # noqa: S311 - no secret
        if rng.random() < 0.15:
            changed: bytes = atheris.Mutate(content, most)
        else:
            changed = target.mutate(content, rng)
        return changed[:most] if len(changed) > most else changed

    limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + targets.BYTES, limit))
    words: list[Any] = [
        sys.argv[0], str(corpus), f"-max_total_time={int(given.minutes * 60)}",
        f"-timeout={targets.SECONDS}", f"-artifact_prefix={findings}/", "-max_len=65536",
        "-rss_limit_mb=0", "-print_final_stats=1",
    ]  # fmt: skip
    atheris.Setup(words, one, custom_mutator=mutate)
    atheris.Fuzz()
    return 0


def _instrumented(atheris: Any) -> Any:
    """`tests.fuzz.targets`, and with it neuronxcc, which tells Atheris where it has been.

    Raises:
        RuntimeError: It doesn't, so that the search would be blind.
    """
    # The loaders of an editable installation can't be instrumented. Python's own find our packages
    # in the current directory as well.
    sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__module__.startswith("_editable")]
    with atheris.instrument_imports(include=["neuronxcc"], enable_loader_override=False):
        from tests.fuzz import targets  # noqa: PLC0415 - it imports what is instrumented
    loader = type(sys.modules["neuronxcc.neff.container"].__loader__)
    if not loader.__module__.startswith("atheris"):
        raise RuntimeError(f"neuronxcc was imported by {loader}, which is not instrumented")
    return targets


def _place(error: Exception) -> str:
    """The kind of an error and the line of ours that raised it."""
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if "/tests/fuzz/" not in f.filename
    ]
    last = next((f for f in reversed(frames) if "site-packages" not in f.filename), None)
    where = f"{Path(last.filename).stem}-{last.lineno}" if last else "unknown"
    return f"{type(error).__name__}-{where}"


def _keep(corpus: Path, name: str) -> int:
    """Copy the smallest inputs that the search made."""
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    made = [p for p in corpus.iterdir() if not p.name.startswith("seed_")]
    small = sorted(
        (p for p in made if p.stat().st_size <= _KEPT_BYTES), key=lambda p: p.stat().st_size
    )
    for path in small[:: max(1, len(small) // _KEPT_FILES)][:_KEPT_FILES]:
        shutil.copy(path, folder / path.name[:12])
    return 0


if __name__ == "__main__":
    sys.exit(main())
