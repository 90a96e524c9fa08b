"""TCP sockets of this process, and their congestion control.

The kernel lets a process change the control of an open socket at any time (tcp(7), TCP_CONGESTION). Without CAP_NET_ADMIN it
takes only the names in `/proc/sys/net/ipv4/tcp_allowed_congestion_control`.
"""

import ctypes
import os
import socket
from contextlib import suppress
from typing import NamedTuple

_SETTINGS = "/proc/sys/net/ipv4"
_MAX_NAME = 16
"""Bytes of a control's name, with the zero at its end (TCP_CA_NAME_MAX)."""

_libc = ctypes.CDLL(None, use_errno=True)
"""Python's `socket` would make the sockets of others block or not, as its default timeout says."""


class TcpSocket(NamedTuple):
    """A TCP socket of this process. Once it is closed, its descriptor may be that of another file."""

    descriptor: int
    inode: int


def default_control() -> str | None:
    """Control of new sockets in this network namespace; None if the kernel does not tell it."""
    return next(iter(_setting("tcp_congestion_control")), None)


def loaded_controls() -> list[str]:
    """Names of the controls that the kernel has loaded."""
    return _setting("tcp_available_congestion_control")


def sockets() -> set[TcpSocket]:
    """The TCP sockets of this process."""
    found = set[TcpSocket]()
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                one = TcpSocket(int(name), os.fstat(int(name)).st_ino)
                control_of(one)
                found.add(one)
    return found


def control_of(one: TcpSocket) -> str:
    """The control of the socket. Raises OSError if it is closed or no TCP socket."""
    _check(one)
    name, size = ctypes.create_string_buffer(_MAX_NAME), ctypes.c_uint32(_MAX_NAME)
    done = _libc.getsockopt(one.descriptor, socket.IPPROTO_TCP, socket.TCP_CONGESTION, name, ctypes.byref(size))
    _raise_unless(done == 0)
    return name.value.decode("ascii", "replace")


def set_control(one: TcpSocket, control: str) -> None:
    """Set the control of the socket. Raises OSError if it is closed, or if the kernel lacks or refuses the control."""
    _check(one)
    name = control.encode()
    _raise_unless(_libc.setsockopt(one.descriptor, socket.IPPROTO_TCP, socket.TCP_CONGESTION, name, len(name)) == 0)


def refusal(control: str, error: OSError) -> str:
    """Why the kernel refused a control, in words."""
    return f"the kernel refuses {control}: {error.strerror}"


def _setting(name: str) -> list[str]:
    with suppress(OSError), open(f"{_SETTINGS}/{name}", encoding="ascii", errors="replace") as file:
        return file.read().split()
    return []


def _check(one: TcpSocket) -> None:
    if os.fstat(one.descriptor).st_ino != one.inode:
        raise OSError("the socket is closed")


def _raise_unless(is_done: bool) -> None:
    if not is_done:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
