"""Start a job as users do, by `torchrun` or another launcher, and leave nothing of it behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    directory: Path = REPOSITORY,
    timeout: float = 120,
) -> str:
    """Run a command in a session of its own and return what it printed, errors included.

    Every process of the session is killed at the end, however it came.

    Raises:
        AssertionError: it failed or took longer than ``timeout`` seconds; with its last output.
    """
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        variables.pop(name, None)
    variables.update(environment or {})
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"{command} took over {timeout} s:\n{output[-6000:]}") from None
    code = process.returncode
    ending = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    assert code == 0, f"{command} failed with {ending}:\n{output[-12000:]}"
    return output


def torchrun(ranks: int, *program: str, **options: object) -> str:
    """Run a program, a script or `-m` and a module, on ``ranks`` ranks; see `run`."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return run([*launcher, f"--nproc-per-node={ranks}", *program], **options)  # type: ignore[arg-type]
