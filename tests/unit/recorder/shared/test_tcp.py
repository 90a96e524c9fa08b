"""TCP sockets of this process and their congestion control, on the loopback."""

import socket
from pathlib import Path

import pytest

from esprof.recorder.shared import tcp

ALWAYS = "reno"
"""The control that each kernel has and allows."""


@pytest.fixture
def pair():
    """Both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            yield client, accepted


def of(one: socket.socket) -> tcp.TcpSocket:
    return next(found for found in tcp.sockets() if found.descriptor == one.fileno())


def test_the_sockets_of_a_connection_are_found_and_other_files_are_not(pair, tmp_path):
    before = tcp.sockets()
    assert {one.fileno() for one in pair} <= {one.descriptor for one in before}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socketpair()[0], (tmp_path / "file").open("w"):
        assert tcp.sockets() == before


def test_each_end_has_a_control_of_its_own(pair):
    client, accepted = map(of, pair)
    theirs = tcp.control_of(accepted)
    tcp.set_control(client, ALWAYS)
    assert (tcp.control_of(client), tcp.control_of(accepted)) == (ALWAYS, theirs)
    assert pair[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == ALWAYS.encode()


def test_a_control_that_the_kernel_lacks_is_refused(pair):
    before = tcp.control_of(of(pair[0]))
    with pytest.raises(OSError) as refused:
        tcp.set_control(of(pair[0]), "nosuch")
    assert tcp.refusal("nosuch", refused.value) == "the kernel refuses nosuch: No such file or directory"
    assert tcp.control_of(of(pair[0])) == before


def test_a_descriptor_that_now_is_another_file_is_left_alone(pair):
    one = of(pair[0])
    stale = one._replace(inode=one.inode + 1)
    with pytest.raises(OSError, match="closed"):
        tcp.set_control(stale, ALWAYS)
    with pytest.raises(OSError, match="closed"):
        tcp.control_of(stale)


def test_the_controls_of_the_kernel():
    assert ALWAYS in tcp.loaded_controls()
    assert tcp.default_control() in tcp.loaded_controls()


def test_a_kernel_that_tells_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(tcp, "_SETTINGS", str(tmp_path))
    assert (tcp.default_control(), tcp.loaded_controls()) == (None, [])
    Path(tmp_path / "tcp_congestion_control").write_text("cubic\n")
    assert tcp.default_control() == "cubic"
