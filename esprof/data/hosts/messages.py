"""Messages between a process that lacks samples and the server of another host's cache, over TCP.

A connection begins with a proof by both sides that they belong to the job. A request is a count and so many numbers of
samples; the answer has, for each, its length and its bytes, or a length of -1.
"""

import hmac
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Sequence

_NONCE_BYTES, _PROOF_BYTES = 16, 32
_COUNT = struct.Struct("!I")
_LENGTH = struct.Struct("!q")
_NOT_HELD = -1
_MAX_ITEMS = 1 << 20


class PeerLine:
    """An end of a connection, on which each message has to be complete within `timeout_s`."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._connection, self._timeout_s = connection, timeout_s
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def close(self) -> None:
        self._connection.close()

    def introduce(self, token: bytes, *, is_server: bool) -> None:
        """Prove to the other side that this one has `token`, and check that the other has it. Raises OSError."""
        mine = secrets.token_bytes(_NONCE_BYTES)
        self._send(mine)
        other = self._receive(_NONCE_BYTES)
        self._send(_proof(token, other, is_server))
        if not hmac.compare_digest(self._receive(_PROOF_BYTES), _proof(token, mine, not is_server)):
            raise ConnectionError("the other side does not belong to the job")

    def ask(self, items: Sequence[int]) -> None:
        """Send a request. Raises OSError."""
        self._send(_COUNT.pack(len(items)) + struct.pack(f"!{len(items)}Q", *items))

    def answers(self, count: int, most: int) -> Iterator[bytes | None]:
        """Receive `count` samples of at most `most` bytes each; None for one that is not held. Raises OSError."""
        for _ in range(count):
            (length,) = _LENGTH.unpack(self._receive(_LENGTH.size))
            if not _NOT_HELD <= length <= most:
                raise ConnectionError(f"the other side announces a sample of {length} bytes")
            yield None if length == _NOT_HELD else self._receive(length)

    def asked(self) -> tuple[int, ...]:
        """Receive a request, for which there is no time limit. Raises OSError."""
        self._connection.settimeout(None)
        first = self._connection.recv(1)
        (count,) = _COUNT.unpack(first + self._receive(_COUNT.size - len(first)))
        if count > _MAX_ITEMS:
            raise ConnectionError(f"the other side asks for {count} samples")
        return struct.unpack(f"!{count}Q", self._receive(8 * count))

    def answer(self, data: bytes | None) -> None:
        """Send a sample. Raises OSError."""
        if data is None:
            self._send(_LENGTH.pack(_NOT_HELD))
        else:
            self._send(_LENGTH.pack(len(data)))
            self._send(data)

    def _send(self, data: bytes) -> None:
        self._connection.settimeout(self._timeout_s)
        self._connection.sendall(data)

    def _receive(self, size: int) -> bytes:
        deadline_s = time.monotonic() + self._timeout_s
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            self._connection.settimeout(max(deadline_s - time.monotonic(), 0.001))
            received = self._connection.recv_into(rest)
            if not received:
                raise ConnectionError("the other side has closed the connection")
            rest = rest[received:]
        return bytes(data)


def _proof(token: bytes, nonce: bytes, is_server: bool) -> bytes:
    return hmac.digest(token, (b"server" if is_server else b"client") + nonce, "sha256")
