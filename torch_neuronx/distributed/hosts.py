"""The gloo group that connects the hosts of a group (``csrc/distributed/network.h``)."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from datetime import timedelta
from typing import Any

from torch._C import _distributed_c10d as c10d

from neuronxcc.environment.machine import GLOO_SOCKET_IFNAME

# For documentation (RFC 5737): nobody is there, but routes lead to it.
_ANYWHERE = "192.0.2.1"
_LOOPBACK = "127.0.0.1"
_INTERFACES = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915  # of Linux: an interface's address of IP version 4
_HOST_ID = "TORCH_NEURONX_HOST_ID="


def connect(
    store: Any, rank: int, size: int, hosts: list[str], timeout: float
) -> tuple[Any, list[str]]:
    """Connect all ranks of a group; every rank calls it.

    gloo would listen at the address that this computer's name resolves to, which on many computers
    is a loopback address, and in a network namespace nothing. So the address is the one from which
    this rank reaches the job's store, unless ``GLOO_SOCKET_IFNAME`` names interfaces. If it is not
    set, it is set here: gloo groups that PyTorch makes later (at once, if
    ``TORCH_DISTRIBUTED_DEBUG=DETAIL``) have no other way to learn of that address.

    Args:
        store: of the group.
        rank: of this process.
        size: of the group.
        hosts: by rank, what tells hosts apart.
        timeout: in seconds, for connecting.

    Returns:
        A ``ProcessGroupGloo`` of all ranks, and by rank a name of its host for messages.

    Raises:
        RuntimeError: a rank cannot be reached, or didn't come.
    """
    own = _address_towards(*_master_of(store))
    store.set(f"host/{rank}", f"{own} {socket.gethostname()}")
    told = [store.get(f"host/{r}").decode().split(" ", 1) for r in range(size)]
    addresses, computers = [a for a, _ in told], [c for _, c in told]
    if _is_loopback(own):
        # The store is on this computer. Who came from elsewhere shows which way out is meant.
        elsewhere = [a for a, h in zip(addresses, hosts, strict=True) if h != hosts[rank]]
        outside = [a for a in elsewhere if not _is_loopback(a)]
        if outside:
            own = _address_towards(outside[0], 1)

    # The only way to say where gloo shall listen, other than by the environment.
    options: Any = c10d.ProcessGroupGloo._Options()  # type: ignore[attr-defined] # noqa: SLF001
    options._timeout = timedelta(seconds=timeout)  # noqa: SLF001
    options._threads = 1  # noqa: SLF001 - of collectives, which we don't use
    interfaces = GLOO_SOCKET_IFNAME.get()
    if not interfaces and not _is_loopback(own) and (name := _interface_of(own)):
        GLOO_SOCKET_IFNAME.set(name)
    create = c10d.ProcessGroupGloo.create_device
    devices = [create(interface=name) for name in interfaces] or [create(hostname=own)]
    options._devices = devices  # noqa: SLF001
    gloo = c10d.ProcessGroupGloo(c10d.PrefixStore("gloo", store), rank, size, options)
    return gloo, _names(hosts, addresses, computers)


def _master_of(store: Any) -> tuple[str, int]:
    """Host and port of a store's server."""
    while isinstance(store, c10d.PrefixStore):
        store = store.underlying_store
    if isinstance(store, c10d.TCPStore):
        return store.host, store.port
    return _ANYWHERE, 1  # a file: the way to most of the network will do


def _address_towards(host: str, port: int) -> str:
    """The address of this computer from which packets to `host` would be sent; none is."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return _LOOPBACK  # no name, no route: a computer by itself


def _interface_of(address: str) -> str:
    """The interface with that address; empty if none has, or it is not of IP version 4."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("16s24x", name.encode())
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # it has no such address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.split("%", maxsplit=1)[0]).is_loopback


def _names(hosts: list[str], addresses: list[str], computers: list[str]) -> list[str]:
    """By rank: the name of its computer, with the address if several are called so."""
    names = []
    for host, address, computer in zip(hosts, addresses, computers, strict=True):
        others = [c for h, c in zip(hosts, computers, strict=True) if h != host]
        if host.startswith(_HOST_ID):
            names.append(host.removeprefix(_HOST_ID))
        else:
            names.append(f"{computer} at {address}" if computer in others else computer)
    return names
