"""The hook in a job of one process: what it refuses, and models of which a part is frozen."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from esprof import apply_plan
from esprof.core.errors import UsageError
from esprof.core.plan import BucketChoice, CompressionBody
from esprof.elastic.compress import compress
from tests.cases.plans import plan_of


@pytest.fixture(autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model(*, frozen=False):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 1))
    layers[0].requires_grad_(not frozen)
    return layers


def trained(ddp, steps=3):
    optimizer = torch.optim.SGD([one for one in ddp.parameters() if one.requires_grad], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        ddp(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()


def test_a_plan_lists_no_frozen_parameters():
    """They have no gradients, and are in no bucket."""
    ddp = DistributedDataParallel(model(frozen=True))
    body = CompressionBody(buckets=(BucketChoice(codec="int8", index=0, elements=(40, 1)),))
    compression = compress(ddp, body)
    trained(ddp)
    assert [one.choice.codec for one in compression.buckets.known.values()] == ["int8"]
    compression.close()


def test_gradients_in_buckets_are_not_sharded():
    with pytest.raises(UsageError, match="sharded gradients"):
        compress(DistributedDataParallel(model()), CompressionBody(sharded="bf16"))
    with pytest.raises(UsageError, match="no module of this model is sharded"):
        apply_plan(model(), plan_of(codec=CompressionBody(sharded="bf16"), world=1))


@pytest.mark.parametrize(
    ("parts", "says"), [({"every": 7}, "saves every 7 steps"), ({"ests": [[0]], "n_est": 1}, "needs .*ElasticTrainer")]
)
def test_parts_that_a_model_cannot_adopt_are_left_out_with_a_warning(parts, says):
    with pytest.warns(UserWarning, match=says):
        assert isinstance(apply_plan(model(), plan_of(**parts, world=1)), DistributedDataParallel)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda state: {}, "is not a state of compressed gradients"),
        (lambda state: None, "is not a state of compressed gradients"),
        (lambda state: state | {"step": "x"}, "is not a state of compressed gradients"),
        (lambda state: state | {"body": "{"}, "is not a state of compressed gradients"),
        (lambda state: state | {"rank": 1, "world": 3}, "to rank 1 of 3; this is rank 0 of 1"),
    ],
)
def test_what_is_no_state_of_this_rank_is_refused_and_nothing_changes(change, reason):
    ddp = DistributedDataParallel(model())
    compression = compress(ddp, "topk:0.1")
    trained(ddp)
    before = compression.state_dict()
    with pytest.raises(UsageError, match=reason):
        compression.load_state_dict(change(before))
    assert str(compression.state_dict()) == str(before)
    compression.close()
