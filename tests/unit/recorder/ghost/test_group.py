"""Collectives of a process group with replayed peers: what each gives, and which the schedule sees."""

import pytest
import torch

from esprof.recorder.ghost.completer import Completer
from esprof.recorder.ghost.group import GhostGroup
from esprof.recorder.ghost.peers import Call

WORLD = (0, 1)


class Seen:
    """Peers that let each collective end at once, or after a while."""

    def __init__(self, late_ns=0):
        self.calls = []
        self._late_ns = late_ns

    def launch(self, call, now_ns):
        self.calls.append(call)
        return now_ns + self._late_ns


@pytest.fixture
def seen():
    return Seen()


@pytest.fixture
def group(seen):
    return GhostGroup(WORLD, 1, Completer(seen))


def numbers(*values):
    return torch.tensor(values, dtype=torch.float32)


def test_a_sum_is_what_the_rank_gave(group, seen):
    mine = numbers(1, 2)
    group.allreduce([mine]).wait()
    group.broadcast([mine]).wait()
    group.reduce([mine]).wait()
    group.barrier().wait()
    assert mine.tolist() == [1, 2]
    assert seen.calls == [Call(kind, WORLD, size) for kind, size in
                          (("all_reduce", 8), ("broadcast", 8), ("reduce", 8), ("barrier", 0))]  # fmt: skip


def test_what_is_received_are_copies_of_what_is_sent(group, seen):
    parts, whole, share, mixed = [numbers(0), numbers(0)], numbers(0, 0), numbers(0), numbers(0, 0)
    group.allgather([parts], [numbers(3)]).wait()
    group._allgather_base(whole, numbers(4)).wait()
    group._reduce_scatter_base(share, numbers(5, 6)).wait()
    group.alltoall_base(mixed, numbers(7, 8), [], []).wait()
    assert [part.item() for part in parts] == [3, 3]
    assert (whole.tolist(), share.tolist(), mixed.tolist()) == ([4, 4], [6], [7, 8])
    # gloo runs a reduce-scatter as an all-reduce, and so it is recorded.
    kinds = ("all_gather", "all_gather", "all_reduce", "all_to_all")
    assert seen.calls == [Call(kind, WORLD, 8) for kind in kinds]


def test_roots_and_messages(group):
    parts, share, message = [numbers(0), numbers(0)], numbers(0), numbers(9)
    group.gather([parts], [numbers(3)]).wait()
    group.scatter([share], [[numbers(1), numbers(2)]]).wait()
    group.scatter([share], []).wait()
    group.send([message], 0, 0).wait()
    group.recv([message], 0, 0).wait()
    assert ([part.item() for part in parts], share.item(), message.item()) == ([3, 3], 2, 9)


def test_an_uneven_exchange_gives_zeros(group):
    output = numbers(1, 2, 3)
    group.alltoall_base(output, numbers(7), [1, 2], [1, 0]).wait()
    assert output.tolist() == [0, 0, 0]


def test_a_collective_ends_when_the_peers_let_it():
    work = GhostGroup(WORLD, 1, Completer(Seen(late_ns=10**15))).allreduce([numbers(1)])
    assert not work.is_completed()
    soon = GhostGroup(WORLD, 1, Completer(Seen(late_ns=10**6))).allreduce([numbers(1)])
    assert soon.wait()
    assert soon.get_future().value()[0].item() == 1
