"""Training over two computers, which are network namespaces of this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.namespaces import torchrun, two_hosts, why_not

WORKER = Path(__file__).with_name("hosts_worker.py")


def test_training_over_two_hosts() -> None:
    if reason := why_not():
        pytest.skip(f"cannot make network namespaces: {reason}")
    with two_hosts() as (names, addresses):
        launchers = torchrun(names, addresses, 2, [str(WORKER)], sys.executable)
        try:
            output = [launcher.communicate(timeout=120)[0] for launcher in launchers]
        finally:
            for launcher in launchers:
                launcher.kill()
    assert [launcher.returncode for launcher in launchers] == [0, 0], "\n".join(output)
    for way in ("DDP", "FSDP2", "HSDP"):
        assert f"{way} trains like one process" in output[0]
    # Nothing of it is left.
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert not [name for name in names if name in listed.stdout]
