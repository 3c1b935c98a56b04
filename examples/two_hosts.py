"""Two computers inside this one, and a job that trains over both.

    python -m examples.two_hosts                        # FSDP2 on 2 x 2 NeuronCores
    python -m examples.two_hosts --ranks 1 train.py     # a program of yours, one rank on each
    python -m examples.two_hosts -- -m my.training      # a module of yours

As root, the computers are network namespaces that a cable (veth) connects: each has its own
interfaces, addresses and ports, and ranks on different ones share no memory. Otherwise, and with
``--plain``, they are a pretence: ``TORCH_NEURONX_HOST_ID`` tells ranks of this computer apart, and
what is between them is the loopback interface. What runs is ``torchrun``, once per computer, as it
would on real ones.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass
class Host:
    """Where one half of the job runs."""

    address: str
    prefix: list[str] = field(default_factory=list)  # of commands
    variables: dict[str, str] = field(default_factory=dict)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def why_no_namespaces() -> str:
    """Why this computer cannot make network namespaces; empty if it can."""
    if shutil.which("ip") is None:
        return "there is no `ip` command"
    name = f"neuron-probe-{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("netns", "delete", name)
    except OSError as error:
        return str(error)
    return ""


@contextmanager
def namespaces() -> Iterator[list[Host]]:
    """Two network namespaces that are connected; afterwards they and their processes are gone."""
    number = os.getpid() % 250 + 1
    names = [f"neuron-{os.getpid()}-{side}" for side in "ab"]
    hosts = [
        Host(f"10.77.{number}.{i + 1}", ["ip", "netns", "exec", name])
        for i, name in enumerate(names)
    ]
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        cable = ("link", "add", "cable", "type", "veth", "peer", "cable", "netns", names[1])
        _ip("-n", names[0], *cable)
        for name, host in zip(names, hosts, strict=True):
            _ip("-n", name, "address", "add", f"{host.address}/24", "dev", "cable")
            _ip("-n", name, "link", "set", "cable", "up")
        yield hosts
    finally:
        for name in names:
            # A process that is left in it would keep it, and its end of the cable, alive.
            listed = subprocess.run(
                ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
            )
            for pid in listed.stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


@contextmanager
def pretence() -> Iterator[list[Host]]:
    """Two hosts that are one, but for what their ranks are told."""
    yield [Host("127.0.0.1", [], {"TORCH_NEURONX_HOST_ID": name}) for name in "ab"]


def launch(
    hosts: Sequence[Host],
    ranks: int,
    program: Sequence[str],
    variables: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> int:
    """Run `program` by ``torchrun`` with `ranks` processes on each of the hosts.

    Args:
        hosts: from one of the functions above.
        ranks: per host.
        program: a script and its arguments, or ``-m`` and a module.
        variables: of the environment of all ranks.
        timeout: in seconds, after which the job is killed.

    Returns:
        The first exit code that isn't 0, or 0.
    """
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    launchers = []
    for node, host in enumerate(hosts):
        command = [*host.prefix, sys.executable, "-m", "torch.distributed.run"]
        command += ["--nnodes", str(len(hosts)), "--node-rank", str(node)]
        command += ["--nproc-per-node", str(ranks)]
        command += ["--master-addr", hosts[0].address, "--master-port", str(port), *program]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **host.variables, **(variables or {})}
        launchers.append(subprocess.Popen(command, env=environment, start_new_session=True))
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        for launcher in launchers:
            launcher.wait(None if deadline is None else max(0, deadline - time.monotonic()))
    finally:
        for launcher in launchers:
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGKILL)
                launcher.wait()
    return next((code for each in launchers if (code := each.returncode) != 0), 0)


def train() -> None:
    """What every rank does: a few steps of a small transformer, sharded over all ranks."""
    import torch  # noqa: PLC0415 - the launcher doesn't need it
    import torch.distributed as dist  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    dist.init_process_group("neuron")
    rank = dist.get_rank()
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(2)]
    model = nn.Sequential(*layers, nn.Linear(64, 64)).to("neuron")
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(rank)  # other data on every rank
    for step in range(10):
        x = torch.randn(16, 32, 64, device="neuron")
        loss = nn.functional.mse_loss(model(x), torch.sin(3 * x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if rank == 0:
            print(f"step {step}: loss {mean.item():.4f}", flush=True)
    dist.destroy_process_group()


def main() -> int:
    """Launch the job, and say where it runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2, help="NeuronCores per computer")
    parser.add_argument("--plain", action="store_true", help="no network namespaces")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="a script and its arguments")
    options = parser.parse_args()
    program = [word for i, word in enumerate(options.program) if i > 0 or word != "--"]
    reason = "as you wish" if options.plain else why_no_namespaces()
    print(f"hosts: {f'pretended ({reason})' if reason else 'two network namespaces'}", flush=True)
    with pretence() if reason else namespaces() as hosts:
        return launch(hosts, options.ranks, program or ["-m", "examples.two_hosts"])


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        sys.exit(main())
