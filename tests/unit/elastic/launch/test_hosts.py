"""What torchrun is told on hosts that join and leave."""

import socket

import pytest

from esprof.core.errors import UsageError
from esprof.elastic.launch.hosts import HostsMeeting, command, interface_of, is_free_here, own_address


def meet(host="127.0.0.1", port=29400):
    return HostsMeeting(host=host, port=port, least=1, most=4, job="j")


def test_torchrun_s_command():
    words = command(meet(), 2, ["train.py", "--epochs", "3"])
    assert words[1:4] == ["-P", "-m", "torch.distributed.run"]
    assert {"--nnodes=1:4", "--nproc-per-node=2", "--local-addr=127.0.0.1", "--rdzv-endpoint=127.0.0.1:29400"} <= set(
        words
    )
    assert any(word.startswith("--rdzv-conf=is_host=1,") for word in words)
    assert words[-3:] == ["train.py", "--epochs", "3"]


def test_the_second_on_a_machine_does_not_host_the_rendezvous():
    with socket.socket() as first:
        first.bind(("127.0.0.1", 0))
        first.listen()
        port = first.getsockname()[1]
        assert not is_free_here("127.0.0.1", port)
    assert is_free_here("127.0.0.1", port)
    assert not is_free_here("192.0.2.1", port)  # Somebody else's address (RFC 5737).


def test_this_host_s_address_and_its_interface():
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    with pytest.raises(UsageError, match="no network interface"):
        interface_of("192.0.2.1")
    with pytest.raises(UsageError, match="cannot be resolved"):
        own_address("no.such.host.invalid")
