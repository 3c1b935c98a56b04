"""Where gloo listens, and what hosts are called."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from torch._C import _distributed_c10d as c10d

from torch_neuronx.distributed import hosts


def test_names_tell_hosts_apart() -> None:
    given = ["TORCH_NEURONX_HOST_ID=left", "x", "y", "z", "x"]
    addresses = ["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4", "2.2.2.3"]
    computers = ["box", "node", "node", "other", "node"]
    assert hosts._names(given, addresses, computers) == [
        "left",
        "node at 2.2.2.2",
        "node at 3.3.3.3",
        "other",
        "node at 2.2.2.3",
    ]


def test_the_way_to_this_computer_is_its_loopback() -> None:
    assert hosts._address_towards("127.0.0.1", 80) == "127.0.0.1"
    assert hosts._address_towards("a name that nobody has", 80) == "127.0.0.1"
    assert hosts._is_loopback("127.0.1.1")
    assert hosts._is_loopback("::1")
    assert not hosts._is_loopback("fe80::1%eth0")


def test_the_interface_of_an_address() -> None:
    assert hosts._interface_of("127.0.0.1") == "lo"
    assert hosts._interface_of("203.0.113.7") == ""  # nobody's
    assert hosts._interface_of("::1") == ""


def test_master_of_nested_stores() -> None:
    store = c10d.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    nested = c10d.PrefixStore("a", c10d.PrefixStore("b", store))
    assert hosts._master_of(nested) == ("127.0.0.1", store.port)
    assert hosts._master_of(c10d.HashStore())[0] == hosts._ANYWHERE


@pytest.mark.parametrize("interfaces", [None, "lo", "lo,lo"])
def test_connect(interfaces: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if interfaces is None:
        monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    else:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", interfaces)
    server = c10d.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    made: list[Any] = [None, None]

    def join(rank: int) -> None:
        store = c10d.TCPStore("127.0.0.1", server.port, 1, is_master=False)
        made[rank] = hosts.connect(store, rank, 2, ["x", "y"], 20)

    threads = [threading.Thread(target=join, args=(r,)) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank, (gloo, names) in enumerate(made):
        assert (gloo.rank(), gloo.size()) == (rank, 2)
        assert all(name.endswith(" at 127.0.0.1") for name in names)
    # A loopback is no way for others, so nothing is said to PyTorch's own groups.
    assert os.environ.get("GLOO_SOCKET_IFNAME") == interfaces


def test_an_interface_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nothing0")
    with pytest.raises(RuntimeError, match="nothing0"):
        hosts.connect(c10d.HashStore(), 0, 1, ["x"], 5)
