"""By which way tensors travel that a group's backend cannot move from where they are."""

import pytest

from esprof.elastic.transport import _detours


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
