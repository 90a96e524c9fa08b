"""Addresses at which other hosts can reach this one."""

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

_SIOCGIFADDR = 0x8915
_ANY_PORT = 9
_FAR_AWAY = "2001:db8::1"
"""An address for documentation, which no host has: the interface on its route leads to other networks."""
_MAX_ADDRESSES = 8


def loopback() -> str:
    return "127.0.0.1"


def is_one_machine() -> bool:
    """Whether the launcher's variables say that all ranks of the job are on this machine."""
    world, local = os.environ.get("WORLD_SIZE"), os.environ.get("LOCAL_WORLD_SIZE")
    if world is not None and world == local:
        return True
    master = os.environ.get("MASTER_ADDR", "")
    return master in ("localhost", "::1") or master.startswith("127.")


def own_addresses() -> list[str]:
    """The addresses of this host: first the one on the route to the job's master, then all others."""
    candidates = [*_towards(os.environ.get("MASTER_ADDR", "")), *_of_interfaces(), *_towards(_FAR_AWAY)]
    # Debian resolves a host's own name to an address such as 127.0.1.1, which other hosts cannot use.
    outside = [a for a in dict.fromkeys(candidates) if not a.startswith(("127.", "::1", "fe80"))]
    return outside[:_MAX_ADDRESSES] or [loopback()]


def _towards(host: str) -> Iterator[str]:
    """This host's address on the route to `host`. Sends nothing."""
    if not host:
        return
    with suppress(OSError):  # The name is unknown.
        for family, kind, protocol, _, address in socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:  # No route.
                probe.connect(address)
                yield str(probe.getsockname()[0])


def _of_interfaces() -> Iterator[str]:
    """The first IPv4 address of each network interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # It has none.
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                yield socket.inet_ntoa(answer[20:24])
