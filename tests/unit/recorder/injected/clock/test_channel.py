"""What the recorder's channel accepts from other processes of the host."""

import json
import socket
import threading

import pytest

from esprof.recorder.injected.clock import channel
from esprof.recorder.injected.clock.channel import ChannelServer, Client, WindowRequest


@pytest.fixture
def ends():
    server = ChannelServer(one_machine=True)
    client = Client(server.address)
    yield server, client
    client.close()
    server.close()


def exchange(server, client, orders=(7,)):
    """The orders that the client gets for its question."""
    client.ask(WindowRequest(1, 2))
    server.answer(orders)
    return client.hear()[1]


def test_a_packet_without_the_jobs_signature_is_neither_answered_nor_believed(ends):
    server, client = ends
    address = ("127.0.0.1", json.loads(server.address)["port"])
    question = channel._signed(bytes(16), channel._ASK, 1, 0, 0, 5, 6)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.settimeout(0.2)
        for packet in (b"", b"x", question, question * 50):
            stranger.sendto(packet, address)
        assert server.answer([]) == []
        with pytest.raises(TimeoutError):
            stranger.recv(1)
    assert exchange(server, client) == [7]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("whom", ["server", "client"])
def test_a_flood_holds_up_no_step(ends, whom, monkeypatch):
    server, client = ends
    target = server if whom == "server" else client
    port, stop, verified, verify = target._socket.getsockname()[1], threading.Event(), [], channel._verified

    def flood():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            while not stop.is_set():
                stranger.sendto(b"x", ("127.0.0.1", port))

    monkeypatch.setattr(channel, "_verified", lambda token, data: verified.append(data) or verify(token, data))
    threads = [threading.Thread(target=flood) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            server.answer([]) if whom == "server" else client.hear()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(verified) <= 20 * channel._MAX_FOREIGN_AT_ONCE
