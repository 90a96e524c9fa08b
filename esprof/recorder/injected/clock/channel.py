"""UDP packets between rank 0 and the other ranks: rank 0's time, and the first steps of windows.

A packet is accepted if it is signed with the job's token, which rank 0 puts into the job's own store. An answer is never
larger than its question. No side waits: the kernel stores the arrival time of a packet, so it may be read much later.
"""

import errno
import hmac
import itertools
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from .addresses import loopback, own_addresses

MAX_ORDERS = 4

_SIGNATURE_BYTES = 16
_FIELDS = 4 + MAX_ORDERS
"""Fields of a packet: its kind, the number of the question, when the question arrived and was answered, and the orders or
the request."""
_BODY = struct.Struct(f"!B{_FIELDS - 1}q")
_ASK, _ANSWER = 1, 2

_SO_TIMESTAMPNS = 35
"""Socket option of asm-generic/socket.h, without a name in Python: the kernel then reports when each packet arrived."""
_TIMESPEC = struct.Struct("@ll")
_RECEIVE_BUFFER_BYTES = 4 << 20
"""Size of the buffer for unread packets, bytes: a thousand ranks may ask at the same time."""
_MAX_PACKETS_AT_ONCE = 2_000
_MAX_FOREIGN_AT_ONCE = 100
"""Most packets without the job's signature that are read at a step: anybody may send some."""
_MAX_UNANSWERED_ASKS = 64


class WindowRequest(NamedTuple):
    """A request for a window: `asked_ns`, which identifies it on all ranks, and its first step, 0 for soon."""

    asked_ns: int
    at: int


class ChannelReading(NamedTuple):
    """Offset of this clock from rank 0's: `offset_ns` ahead at `at_ns`, with an error of at most half of `rtt_ns`."""

    at_ns: int
    offset_ns: int
    rtt_ns: int


class ChannelServer:
    """Rank 0's end of the channel."""

    def __init__(self, *, one_machine: bool) -> None:
        """`one_machine` says that all ranks are on this machine, so that no other needs to reach the server."""
        self._token = secrets.token_bytes(16)
        self._socket = _listening(one_machine)
        self._addresses = [loopback()] if one_machine else own_addresses()

    @property
    def address(self) -> str:
        """Token, port and addresses for the clients, as JSON for the job's store."""
        port = self._socket.getsockname()[1]
        address_card = {"token": self._token.hex(), "port": port, "addresses": self._addresses, "machine": machine()}
        return json.dumps(address_card)

    def answer(self, orders: Sequence[int]) -> list[WindowRequest]:
        """Answer all questions that have arrived, and return their requests."""
        requests = []
        for packet, body in _arrived(self._socket, self._token):
            if body[0] != _ASK:
                continue
            _, number, _, _, requested_ns, at, *_ = body
            if requested_ns:
                requests.append(WindowRequest(requested_ns, at))
            reply = _signed(self._token, _ANSWER, number, packet.came_ns, time.time_ns(), *orders[-MAX_ORDERS:])
            with suppress(OSError):  # The other rank is gone, or cannot be reached: it will ask again.
                self._socket.sendto(reply, packet.sender)
        return requests

    def close(self) -> None:
        self._socket.close()


class Client:
    """The end of the channel on a rank other than rank 0."""

    def __init__(self, address: str) -> None:
        """`address` is rank 0's `ChannelServer.address`. Raises ValueError if it is invalid."""
        address_card = json.loads(address)
        self.is_same_machine: bool = address_card["machine"] == machine()
        self._token = bytes.fromhex(address_card["token"])
        self._socket = _socket("")
        local = [loopback()] if self.is_same_machine else []
        self._ways = [(host, int(address_card["port"])) for host in dict.fromkeys([*local, *address_card["addresses"]])]
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Question] = {}
        self.was_answered = False

    def ask(self, request: WindowRequest | None) -> None:
        """Send a question to all addresses of rank 0 or, once one has answered, to that one."""
        self._socket.check()
        for way in self._ways:
            number = next(self._numbers)
            packet = _signed(self._token, _ASK, number, 0, 0, *(request or ()))
            self._asked[number] = _Question(way, time.time_ns())
            with suppress(OSError):  # No route from this host.
                self._socket.sendto(packet, _as_seen_by(self._socket, way))
        for old in list(self._asked)[:-_MAX_UNANSWERED_ASKS]:
            del self._asked[old]

    def hear(self) -> tuple[list[ChannelReading], list[int]]:
        """Read the answers that have arrived: clock readings, and first steps of windows."""
        readings, orders = [], []
        for packet, body in _arrived(self._socket, self._token):
            if body[0] != _ANSWER or body[1] not in self._asked:
                continue
            _, number, came_ns, answered_ns, *orders = body
            question = self._asked.pop(number)
            self._ways, self.was_answered = [question.way], True
            own_ns, its_ns = (question.sent_ns + packet.came_ns) // 2, (came_ns + answered_ns) // 2
            rtt_ns = packet.came_ns - question.sent_ns - (answered_ns - came_ns)
            readings.append(ChannelReading(own_ns, own_ns - its_ns, max(rtt_ns, 0)))
        return readings, [order for order in orders if order]

    def close(self) -> None:
        self._socket.close()


def machine() -> str:
    """An identifier of this machine: processes on one kernel share its clock, even with different host names."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return socket.gethostname()


class _Question(NamedTuple):
    way: tuple[str, int]
    sent_ns: int


class _Packet(NamedTuple):
    data: bytes
    sender: tuple[str, int]
    came_ns: int


class _Socket(socket.socket):
    """A socket that notices when the job has closed it and opened a file of its own under the same number."""

    _inode = 0

    def mark(self) -> None:
        self._inode = os.fstat(self.fileno()).st_ino

    def check(self) -> None:
        """Raise OSError if the descriptor belongs to the job now: its packets are not for the recorder."""
        if os.fstat(self.fileno()).st_ino != self._inode:
            raise OSError(errno.EBADF, "the job has closed the recorder's socket")


def _listening(one_machine: bool) -> _Socket:
    bound = _socket(loopback() if one_machine else "")
    with suppress(OSError):
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    return bound


def _socket(address: str) -> _Socket:
    """A socket that never blocks, on a port of its own, for IPv4 and, where there is IPv6, for that too."""
    both = not address and socket.has_dualstack_ipv6()
    made = _Socket(socket.AF_INET6 if both else socket.AF_INET, socket.SOCK_DGRAM)
    if both:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    with suppress(OSError):  # Without it readings are as coarse as our ticks, which their round trip shows.
        made.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    made.setblocking(False)
    made.bind((address, 0))
    made.mark()
    return made


def _as_seen_by(end: socket.socket, way: tuple[str, int]) -> tuple[str, int]:
    address, port = way
    return (f"::ffff:{address}" if end.family == socket.AF_INET6 and ":" not in address else address), port


def _arrived(end: _Socket, token: bytes) -> Iterator[tuple[_Packet, tuple[int, ...]]]:
    """The packets of the job that have arrived, with their bodies. Others may send as many: the rank returns to its step."""
    foreign = 0
    for _ in range(_MAX_PACKETS_AT_ONCE):
        packet = _received(end)
        if packet is None or foreign == _MAX_FOREIGN_AT_ONCE:
            return
        body = _verified(token, packet.data)
        if body is None:
            foreign += 1
        else:
            yield packet, body


def _received(end: _Socket) -> _Packet | None:
    end.check()
    try:
        data, notes, _, sender = end.recvmsg(_SIGNATURE_BYTES + _BODY.size + 1, socket.CMSG_SPACE(_TIMESPEC.size))
    except OSError:  # Nothing has come in, or an earlier packet of ours was refused.
        return None
    for level, kind, value in notes:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            seconds, ns = _TIMESPEC.unpack(value)
            return _Packet(data, sender, seconds * 1_000_000_000 + ns)
    return _Packet(data, sender, time.time_ns())


def _signed(token: bytes, *body: int) -> bytes:
    """A signed packet of `body`, padded with zeros to the common size."""
    packed = _BODY.pack(*body, *[0] * (_FIELDS - len(body)))
    return _signature(token, packed) + packed


def _verified(token: bytes, data: bytes) -> tuple[int, ...] | None:
    """Body of a packet; None if it is not from this job."""
    signature, packed = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
    if len(packed) != _BODY.size or not hmac.compare_digest(signature, _signature(token, packed)):
        return None
    return _BODY.unpack(packed)


def _signature(token: bytes, packed: bytes) -> bytes:
    return hmac.digest(token, packed, "sha256")[:_SIGNATURE_BYTES]
