"""By which way tensors travel, and where they arrive."""

import pytest
import torch

from esprof.elastic.transport import GroupTransport, _detours
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
