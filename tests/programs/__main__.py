"""Search for programs that the device runs differently: `python -m tests.programs --minutes 60`.

Programs run in a process of their own, so that a crash is a finding too. Each finding is a text file
with the program, cut down, in `--folder`; seeds go up from `--seed` and make the same programs again.
Differences that are not ours (PyTorch's tracing makes the same) are counted by their reason, and
`excuses.txt` in the folder says which seeds had them.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.programs.check import MODES, check, compiled
from tests.programs.generate import program
from tests.programs.minimise import minimise


def main() -> int:
    """Parse the command line and search."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--programs", type=int, default=1 << 40)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--folder", type=Path, default=Path("build/programs"))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--traced", choices=MODES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.traced:
        compiled(program(given.seed), "neuron", "aot_eager", given.traced)
        return 0
    given.folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * given.minutes
    modes = given.modes.split(",")
    if given.child:
        logging.disable(logging.CRITICAL)  # tracing logs what it refuses
        _search(given.seed, given.programs, end, modes, given.folder)
        return 0
    return _parent(given.seed, given.programs, end, modes, given.folder)


def _parent(seed: int, programs: int, end: float, modes: list[str], folder: Path) -> int:
    """Start children, each where the last one ended; returns 1 if anything was found."""
    last, total, findings = seed + programs, Counter[str](), 0
    excuses: dict[str, list[int]] = {}
    while seed < last and time.monotonic() < end:
        command = [sys.executable, "-m", "tests.programs", "--child", "--seed", str(seed)]
        command += [
            "--programs",
            str(min(last - seed, 300)),
            "--minutes",
            str((end - time.monotonic()) / 60),
        ]
        command += ["--modes", ",".join(modes), "--folder", str(folder)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for line in child.stdout:
            if not line.startswith("{"):
                continue  # PyTorch prints, e.g. warnings of LAPACK
            said = json.loads(line)
            seed = said["seed"]
            if "counts" in said:
                total.update(said["counts"])
                seed += 1
            if "excuse" in said:
                excuses.setdefault(said["excuse"], []).append(said["seed"])
                _note(excuses, folder)
            if "finding" in said:
                findings += 1
                print(f"{said['seed']} {said['finding']}", flush=True)
        if child.wait() < 0 or child.returncode > 1:
            if _crashes_without_us(seed, modes):
                total["crash of PyTorch"] += 1
            else:
                findings += 1
                (folder / f"{seed}-crash.txt").write_text(program(seed).text())
                print(f"{seed} crash: ended with {child.returncode}", flush=True)
            seed += 1
    for excuse, seeds in sorted(excuses.items()):
        print(f"excused {len(seeds)} times, first by {seeds[0]}: {excuse}")
    print(f"{dict(total)}; {findings} findings, next seed {seed}")
    return int(findings > 0)


def _note(excuses: dict[str, list[int]], folder: Path) -> None:
    """Write which seeds were excused and why, so that somebody can look at them."""
    lines = [f"{len(seeds)} {why}: {seeds[-20:]}\n" for why, seeds in sorted(excuses.items())]
    (folder / "excuses.txt").write_text("".join(lines))


def _crashes_without_us(seed: int, modes: list[str]) -> bool:
    """Whether tracing alone ends the process: PyTorch's replay of some views does."""
    return any(
        subprocess.run(
            [sys.executable, "-m", "tests.programs", "--traced", mode, "--seed", str(seed)],
            capture_output=True,
            check=False,
        ).returncode
        < 0
        for mode in modes
        if mode != "eager"
    )


def _search(seed: int, programs: int, end: float, modes: list[str], folder: Path) -> None:
    for number in range(seed, seed + programs):
        if time.monotonic() > end:
            return
        print(json.dumps({"seed": number}), flush=True)
        made = program(number)
        result = check(made, modes, seed=number)
        counts: Counter[str] = Counter(programs=1, statements=len(made.statements))
        counts["refused by the CPU"] += result.expected.error is not None
        counts["with gradients"] += result.expected.stage == "backward"
        counts["with draws"] += made.has("random")
        for mode, verdict in result.verdicts.items():
            counts[f"{mode} elements"] += verdict.elements
            counts[f"{mode} compared"] += verdict.compared
            if verdict.excuse:
                print(
                    json.dumps({"seed": number, "excuse": f"{mode}: {verdict.excuse}"}), flush=True
                )
        for mode, verdict in result.findings.items():
            small = minimise(made, mode, verdict.kind, seed=number)
            detail = check(small, [mode], seed=number).verdicts[mode].detail
            path = folder / f"{number}-{mode}.txt"
            path.write_text(
                f"{verdict.kind}: {detail}\n{small.describe()}\n{small.text()}\n--- before\n{made.text()}"
            )
            first = detail.splitlines()[0][:150] if detail else ""
            print(
                json.dumps(
                    {"seed": number, "finding": f"{mode} {verdict.kind}: {first} -> {path}"}
                ),
                flush=True,
            )
        print(json.dumps({"seed": number, "counts": counts}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
