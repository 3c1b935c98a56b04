"""Computers made of network namespaces: each has its own interfaces, addresses and ports."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def _ip(*arguments: str) -> None:
    done = subprocess.run(
        ["ip", *arguments],  # noqa: S607 - wherever this computer has it
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def why_not() -> str:
    """Why this computer cannot make namespaces; empty if it can."""
    if shutil.which("ip") is None:
        return "there is no `ip` command"
    name = f"neuron-probe-{os.getpid()}"
    try:
        _ip("netns", "add", name)
    except OSError as error:
        return str(error)
    _ip("netns", "delete", name)
    return ""


@contextmanager
def two_hosts() -> Iterator[tuple[list[str], list[str]]]:
    """Two namespaces that are connected by a cable (veth).

    Yields:
        Their names, for ``ip netns exec NAME``, and their addresses.
    """
    number = os.getpid() % 250 + 1
    names = [f"neuron-{os.getpid()}-{side}" for side in "ab"]
    addresses = [f"10.77.{number}.{side}" for side in (1, 2)]
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip(
            "-n",
            names[0],
            "link",
            "add",
            "cable",
            "type",
            "veth",
            "peer",
            "cable",
            "netns",
            names[1],
        )
        for name, address in zip(names, addresses, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            _ip("-n", name, "link", "set", "cable", "up")
        yield names, addresses
    finally:
        for name in names:
            # Whoever is left in it would keep it, and its cable, alive.
            listed = subprocess.run(
                ["ip", "netns", "pids", name],  # noqa: S607 - wherever this computer has it
                capture_output=True,
                text=True,
                check=False,
            )
            for pid in listed.stdout.split():
                os.kill(int(pid), 9)
            subprocess.run(
                ["ip", "netns", "delete", name],  # noqa: S607 - wherever this computer has it
                capture_output=True,
                check=False,
            )


def torchrun(
    names: list[str], addresses: list[str], ranks: int, command: list[str], python: str
) -> list[subprocess.Popen[str]]:
    """Start ``torchrun`` with `ranks` processes on each of the hosts; their output is captured."""
    launchers = []
    for node, name in enumerate(names):
        arguments = [python, "-m", "torch.distributed.run", "--nnodes", str(len(names))]
        arguments += ["--node-rank", str(node), "--nproc-per-node", str(ranks)]
        arguments += ["--master-addr", addresses[0], "--master-port", "29500", *command]
        launchers.append(
            subprocess.Popen(
                ["ip", "netns", "exec", name, *arguments],  # noqa: S607 - wherever this computer has it
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        )
    return launchers
