"""By which way tensors travel, and where they arrive."""

import pytest
import torch

from esprof.elastic.runtime.transport import GroupTransport, _detours, _GuardedWork
from esprof.elastic.verify.rollcall import AloneRollCall
from tests.cases.elastic import on_processes


@pytest.mark.parametrize(
    ("config", "detours"),
    [
        ("cpu:gloo,cuda:gloo", {"cuda": "cpu"}),
        ("cpu:gloo,cuda:nccl", {}),
        ("cuda:nccl", {"cpu": "cuda:3"}),
        ("cpu:gloo", {}),
    ],
)
def test_gloo_goes_through_the_host_and_nccl_through_the_gpu(config, detours):
    assert _detours(config, "cuda:3") == detours


def shared(length):
    """What a rank has after each has put its number plus 1 in its own part."""
    transport = GroupTransport()
    whole = torch.zeros(length)
    whole.chunk(transport.world)[transport.rank].fill_(transport.rank + 1)
    transport.share(whole).wait()
    return whole.tolist()


def test_ranks_share_the_parts_that_each_has_written():
    assert on_processes(3, shared, [(6,)]) == [[[1.0, 1.0, 2.0, 2.0, 3.0, 3.0]] * 3]
    assert on_processes(2, shared, [(4,)]) == [[[1.0, 1.0, 2.0, 2.0]] * 2]


def exchanged():
    """The parts that arrive at a rank, without its own: rank r sends r + 1 times the number 10 r + t to rank t."""
    transport = GroupTransport()
    rank, world = transport.rank, transport.world
    send = torch.tensor([10.0 * rank + target for target in range(world) for _ in range(rank + 1)])
    sizes = [source + 1 for source in range(world)]
    out = torch.empty(sum(sizes))
    transport.exchange(out, sizes, send, [rank + 1] * world).wait()
    return [part.tolist() for source, part in enumerate(out.split(sizes)) if source != rank]


def test_ranks_exchange_the_parts_that_they_have_for_each_other():
    of_three = [[[10.0, 10.0], [20.0] * 3], [[1.0], [21.0] * 3], [[2.0], [12.0, 12.0]]]
    assert on_processes(3, exchanged, [()]) == [of_three]


class Transfer:
    """A transfer over gloo whose first wait times out; `becomes` happens to it before anybody looks again."""

    def __init__(self, becomes):
        self._becomes, self._is_over = becomes, False

    def get_future(self):
        raise NotImplementedError

    def is_completed(self):
        self._is_over = True
        return True

    def wait(self, timeout=None):
        if not self._is_over:
            raise RuntimeError("Operation timed out!")
        if self._becomes is not None:
            raise self._becomes
        return True


def test_a_transfer_that_comes_just_after_its_wait_has_timed_out_has_not_failed():
    assert _GuardedWork(Transfer(None), AloneRollCall()).wait() is True


def test_a_collective_that_has_failed_reports_why():
    with pytest.raises(RuntimeError, match="connection closed"):
        _GuardedWork(Transfer(RuntimeError("connection closed")), AloneRollCall()).wait()
