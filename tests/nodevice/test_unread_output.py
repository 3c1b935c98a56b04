"""Every command of ours ends quietly when nobody reads what it prints."""

import ast
import errno
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neuronxcc.unread import UNREAD, ends_quietly
from tests import interpreter

ROOT = Path(__file__).parents[2]
PACKAGES = ("neuronxcc", "nki", "nrtpy", "neuron_tools", "torch_neuronx", "neuron_dtypes")
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
# What works for a parent process that reads its output; nobody calls it.
INTERNAL = {"neuronxcc.frontends.stablehlo_worker", "torch_neuronx.tools.nccom"}


def runnable() -> set[str]:
    """Modules of ours that `python -m` runs."""
    found = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                found.add(name.removesuffix(".__main__"))
    return found - INTERNAL


# Words with which a command prints little, much, and to standard error.
WORDS: dict[str, list[list[str]]] = {
    "neuronxcc": [
        ["--help"], ["compile", "--help"], ["--version"], ["list-operators", "--framework", "XLA"],
        ["explain", "NCC_EMOD025"], ["nonsense"], ["compile", "missing"],
    ],
    "neuron_tools.explorer.cli": [["--help"], ["view"], []],
    "neuron_tools.packager": [["--help"], ["info", "missing"], ["validate", "a", "b"], []],
    "neuron_tools.parallel_compile": [
        ["--help"], ["--command", "clean"], ["--command", "compile"],
        ["--command", "collect", "missing-program"],
    ],
    "neuron_tools.ls": [["--help"], [], ["-j"], ["--nonsense"]],
    "neuron_tools.monitor.command": [["--help"], [], ["-c", "missing"]],
    "neuron_tools.nccom.command": [["--help"], ["allr"], ["-r", "2", "-N", "2", "allr"]],
    "neuron_tools.prometheus": [["--help"], ["--port", "99999"]],
    "neuron_tools.sysfs.command": [["--help"], [], ["--root", "/proc/nothing"]],
    "neuron_tools.top.command": [["--help"], []],
    "torch_neuronx.collect_env": [["--help"], ["--json"]],
    "torch_neuronx.ops": [["--help"], [], ["--json"], ["topk"], ["--dtype", "nonsense"]],
    "torch_neuronx.distributed.plan": [["--help"], ["missing.py"]],
    "torch_neuronx.estimate": [["--help"], ["--target", "nonsense"], ["missing.py"]],
    "torch_neuronx.estimation.calibration": [["--help"], ["--nonsense"]],
    "nki.coverage": [[]],
    "nki.perf.calibration": [["--help"], ["--nonsense"]],
    "neuronxcc.environment": [["--help"], []],
    "torch_neuronx.env": [["--markdown"], ["--nonsense"]],
    "torch_neuronx.serving": [["--help"], ["--nonsense"]],
}  # fmt: skip


def test_every_command_is_here() -> None:
    modules = {value.partition(":")[0] for value in SCRIPTS.values()}
    scripts = {"neuronxcc" if name == "neuronxcc.cli" else name for name in modules}
    assert set(WORDS) == runnable()
    assert scripts <= set(WORDS)


@pytest.mark.parametrize("value", SCRIPTS.values())
def test_scripts_are_the_functions_that_end_quietly(value: str) -> None:
    """What pip installs calls the function, `python -m` the module: it is the same one."""
    module, _, name = value.partition(":")
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    if not path.exists():
        path = ROOT / "neuronxcc" / "cli" / "command.py"
    functions = {
        node.name: [ast.unparse(decorator) for decorator in node.decorator_list]
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert functions[name] == ["ends_quietly"]


def run(module: str, words: list[str], home: Path, **options: Any) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "",
        "TORCH_NEURONX_NEFF_CACHE_DIR": str(home / "c"),
        **options.pop("env", {}),
    }
    # Most commands start faster than a process that has imported PyTorch is copied.
    new = not module.startswith("torch_neuronx")
    process = interpreter.run(["-m", module, *words], cwd=home, env=environ, new=new, **options)
    return process.returncode, process.stdout or "", process.stderr or ""


# Buffered output breaks when a command ends, unbuffered while it prints. One function of a command
# handles both, so its first words, `--help` or all there are, show both and the others the first.
RUNS = [
    (module, words, unbuffered)
    for module, lists in WORDS.items()
    for number, words in enumerate(lists)
    for unbuffered in (("", "1") if number == 0 else ("",))
]


@pytest.mark.every(11, "slow")
@pytest.mark.parametrize(("module", "words", "unbuffered"), RUNS)
def test_commands_end_quietly(
    module: str, words: list[str], unbuffered: str, tmp_path: Path
) -> None:
    def unread(*streams: str) -> tuple[int, str]:
        read, write = os.pipe()
        os.close(read)
        env = {"PYTHONUNBUFFERED": unbuffered}
        pipes = dict.fromkeys(streams, write)
        code, _, errors = run(module, words, tmp_path, env=env, **pipes)
        os.close(write)
        return code, errors

    code, errors = unread("stdout")
    if code != UNREAD:  # it prints to standard error alone; nobody reads that either
        assert errors
        code, errors = unread("stdout", "stderr")
    assert code == UNREAD
    assert "Traceback" not in errors
    assert "roken" not in errors


def printing(text: str) -> Callable[[], int]:
    @ends_quietly
    def main() -> int:
        sys.stdout.write(text)
        return 3

    return main


def test_what_is_read_is_not_touched(capfd: pytest.CaptureFixture[str]) -> None:
    assert printing("x" * 100_000)() == 3
    assert len(capfd.readouterr().out) == 100_000


def test_another_broken_pipe_is_no_reader_that_left(capfd: pytest.CaptureFixture[str]) -> None:
    @ends_quietly
    def main() -> int:
        raise BrokenPipeError(errno.EPIPE, "of a worker")

    with pytest.raises(BrokenPipeError, match="of a worker"):
        main()
    assert capfd.readouterr().err == ""


def test_a_shell_sees_the_status_of_sigpipe() -> None:
    line = f"{sys.executable} -m neuronxcc compile --help | head -1; echo ${{PIPESTATUS[0]}}"
    process = subprocess.run(
        ["bash", "-c", line],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert process.stderr == ""
    # `head` may read all of it before it ends.
    assert process.stdout.splitlines()[-1] in {"0", "141"}
