"""Trials of the host's name and loopback, which process groups of one host use."""

import socket

from esprof.recorder.doctor.health import HealthCheck, ok, warn

_MAX_WAIT_S = 2.0


def check_name(host: str | None = None) -> HealthCheck:
    """Whether the host's own name has an address."""
    host = host or socket.gethostname()
    means = "gloo listens on the address of the host's name unless GLOO_SOCKET_IFNAME is set."
    try:
        address = socket.getaddrinfo(host, None)[0][4][0]
    except OSError as error:
        remedy = "Add the name to /etc/hosts, or set GLOO_SOCKET_IFNAME to an interface."
        return warn("host name", f"{host} has no address: {error.strerror}", means, remedy)
    return ok("host name", f"{host} is {address}", means)


def check_loopback(address: str = "127.0.0.1") -> HealthCheck:
    """Whether a UDP packet arrives on loopback."""
    means = "Rank 0 answers the other ranks by UDP, which aligns clocks and windows."
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there, socket.socket(type=socket.SOCK_DGRAM) as here:
            there.bind((address, 0))
            there.settimeout(_MAX_WAIT_S)
            here.sendto(b"esprof", there.getsockname())
            there.recv(16)
    except OSError as error:
        remedy = "Allow UDP on loopback. Windows scheduled by steps work without it."
        return warn("UDP", f"no packet arrives on {address}: {error}", means, remedy)
    return ok("UDP", f"a packet arrives on {address}", means)
