"""What the probe runs on the hosts: a spinning process, and the two ends of a transfer. Needs nothing but Python.

load.py spin SECONDS
load.py receive
load.py send ADDRESS MESSAGES PAUSE
"""

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from statistics import median

PORT = 5001
MESSAGE = 1_000_000
"""Bytes. The receiver answers each message with one byte."""
PATIENCE_S = 30.0


def spin(seconds: float) -> float:
    """Keep one core busy; returns the share of it that this process got, user and system time over wall time."""
    started, used = time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - started) < seconds:
        pass
    return (time.process_time() - used) / elapsed


def receive() -> None:
    """Take one sender's messages, to the end."""
    with socket.create_server(("", PORT)) as server:
        server.settimeout(PATIENCE_S)
        connection, _ = server.accept()
    with connection:
        while _receive_message(connection):
            connection.sendall(b"x")


def stream(address: str, messages: int) -> float:
    """Send messages back to back; returns the rate in bit/s between the first quarter's end and the last answer."""
    with _connected(address) as connection:
        threading.Thread(target=connection.sendall, args=(bytes(MESSAGE * messages),), daemon=True).start()
        answers = list(_answers(connection, messages))
    skipped = messages // 4
    return 8 * MESSAGE * (messages - 1 - skipped) / (answers[-1] - answers[skipped])


def single(address: str, messages: int, pause: float) -> float:
    """Send messages one by one, with a pause in seconds between them; returns the median of their rates in bit/s."""
    rates = []
    data = bytes(MESSAGE)
    with _connected(address) as connection:
        for _ in range(messages):
            time.sleep(pause)
            started = time.perf_counter()
            connection.sendall(data)
            (answered,) = _answers(connection, 1)
            rates.append(8 * MESSAGE / (answered - started))
    return median(rates)


def _receive_message(connection: socket.socket) -> bool:
    """Receive one message; False at the end."""
    buffer = bytearray(1 << 16)
    missing = MESSAGE
    while missing:
        got = connection.recv_into(buffer, min(missing, len(buffer)))
        if not got:
            return False
        missing -= got
    return True


def _answers(connection: socket.socket, count: int) -> Iterator[float]:
    """When each of `count` answers came, in seconds."""
    for _ in range(count):
        if not connection.recv(1):
            raise ConnectionError("the receiver has gone")
        yield time.perf_counter()


def _connected(address: str) -> socket.socket:
    """A connection to the receiver, which may be about to start."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            connection = socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection


def main(action: str, *arguments: str) -> None:
    if action == "spin":
        print(json.dumps(spin(float(arguments[0]))))
    elif action == "receive":
        receive()
    else:
        address, messages, pause = arguments
        rate = single(address, int(messages), float(pause)) if float(pause) else stream(address, int(messages))
        print(json.dumps(rate))


if __name__ == "__main__":
    main(*sys.argv[1:])
