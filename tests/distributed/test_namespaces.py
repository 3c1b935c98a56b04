"""Training over two computers, which are network namespaces of this one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from examples.two_hosts import launch, namespaces, why_no_namespaces

WORKER = Path(__file__).with_name("hosts_worker.py")


def names_left() -> set[str]:
    command = ["ip", "netns", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(listed.stdout.split())


def pids_in(name: str) -> set[int]:
    command = ["ip", "netns", "pids", name]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    return {int(pid) for pid in listed.stdout.split()}


@pytest.fixture(autouse=True)
def _may_make_namespaces() -> None:
    if reason := why_no_namespaces():
        pytest.skip(f"cannot make network namespaces: {reason}")


@pytest.mark.slow
def test_training_over_two_hosts(capfd: pytest.CaptureFixture[str]) -> None:
    with namespaces() as pair:
        names = {host.prefix[-1] for host in pair}
        assert names <= names_left()
        code = launch(pair, 2, [str(WORKER)], timeout=200)
    printed = capfd.readouterr()
    assert code == 0, printed.out + printed.err
    for way in ("DDP", "FSDP2", "HSDP"):
        assert f"{way} trains like one process" in printed.out
    assert printed.out.count("was told of both") == 4
    assert not names & names_left()


def test_namespaces_are_removed_after_a_failure() -> None:
    names: set[str] = set()
    processes = []

    def fail() -> None:
        with namespaces() as pair:
            names.update(host.prefix[-1] for host in pair)
            processes.append(subprocess.Popen([*pair[1].prefix, "sleep", "1000"]))
            while processes[0].pid not in pids_in(pair[1].prefix[-1]):
                assert processes[0].poll() is None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert processes[0].wait(10) != 0
    assert not names & names_left()
