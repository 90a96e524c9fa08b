"""Compressed gradients in real jobs of plain DistributedDataParallel, over gloo."""

import json
import math
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

from esprof import apply_plan
from esprof.core.errors import UsageError
from esprof.core.plan import BucketChoice, CompressionBody, write_plan
from esprof.elastic.compress.codecs.registry import codec
from esprof.elastic.plans.signature import model_signature
from tests.cases.plans import plan_of
from tests.cases.record import JOBS, environment

pytestmark = pytest.mark.integration

CODECS = [
    "bf16",
    "fp16",
    "int8",
    "int4",
    "sign",
    "topk:0.1",
    "topk:0.1@all_to_all",
    "randk:0.25",
    "powersgd:4",
    "sign@all_gather",
]


def train(folder, world, *arguments, script="compressed.py"):
    """What each rank came to."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world)]
    job = [str(JOBS / script), str(folder), *arguments]
    ended = subprocess.run(
        [*launch, *job], env=environment(PYTHONPATH="."), capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("codecs"), 3, "codecs", *CODECS)


@pytest.mark.parametrize("spec", CODECS)
def test_replicas_stay_equal_for_300_steps(trained, spec):
    bits, losses = {rank[spec][0] for rank in trained}, [rank[spec][1] for rank in trained]
    assert len(bits) == 1
    assert all(math.isfinite(loss) and loss < 3.0 for loss in losses)  # It begins above 3.


@pytest.mark.parametrize("spec", CODECS)
def test_each_rank_sends_the_bytes_of_its_encoded_gradients(trained, spec):
    name, _, exchange = spec.partition("@")
    _, _, sent, sizes, _ = trained[0][spec]
    assert len(sizes) == 2
    assert sent == sum(wires(name, exchange, numel, len(trained)) for numel in sizes)


def wires(name, exchange, numel, world):
    """Bytes that each of `world` ranks has to send of a bucket."""
    if name == "none":
        return 2 * 4 * numel * (world - 1) // world
    made, part = codec(name), part_size(numel, world)
    if name in ("fp16", "bf16"):
        return 2 * made.wire_bytes(numel) * (world - 1) // world
    if name.startswith("randk"):
        return 2 * (made.wire_bytes(numel) - 8) * (world - 1) // world  # The step's number need not travel.
    if name.startswith("powersgd"):
        return 2 * (2 * (made.wire_bytes(numel) // 2) * (world - 1) // world)
    if exchange == "all_to_all" or (name in ("int8", "int4", "sign") and not exchange):
        return 2 * (world - 1) * made.wire_bytes(part)
    return (world - 1) * made.wire_bytes(numel)


def part_size(numel, ranks):
    return -(-numel // (ranks * 256)) * 256


def test_without_a_codec_the_result_equals_that_without_a_hook(tmp_path):
    for rank in train(tmp_path, 2, "without"):
        for plain, hooked in rank.values():
            assert plain == hooked


def test_codecs_change_during_the_run_and_a_checkpoint_resumes_bit_identically(tmp_path):
    ranks = train(tmp_path, 3, "swapped")
    assert len({rank["first"] for rank in ranks} | {rank["again"] for rank in ranks}) == 1
    assert ranks[0]["events"] == []


def test_a_plan_sets_a_codec_per_bucket_and_a_jump_of_the_loss_reverts_it(tmp_path):
    for rank in train(tmp_path, 2, "planned"):
        assert rank["codecs"][0] == ["none"]  # Torch's first bucket has all.
        assert rank["codecs"][1] == ["none", "none"]
        assert rank["codecs"][2] == rank["codecs"][-1] == ["none", "int8"]
        assert rank["then"] == ["none", "bf16"]
        assert rank["events"] == ["int8 is given up for bf16: the loss rose by more than 6 standard deviations"]
        assert "for another model: that has 1,681 elements, this one 2,521" in rank["other"]


def test_residuals_are_sent_after_a_change_of_codec(tmp_path):
    assert all(rank["off"] < 1e-5 for rank in train(tmp_path, 2, "nothing_is_lost", "sign", "none", "topk:0.05"))


def test_all_ranks_revert_a_harmful_codec(tmp_path):
    ranks = train(tmp_path, 2, "guarded")
    assert ranks[0] == ranks[1] or str(ranks[0]) == str(ranks[1])  # NaN is not equal to itself.
    assert all(
        "topk:0.05 is given up for none: the squared error of the mean gradient is" in what
        for what in ranks[0]["lossy"]
    )
    assert len(ranks[0]["lossy"]) == 3  # The one bucket of the first step, and the two that DDP made of it.
    assert ranks[0]["nan"] == ["topk:0.05 is given up for none: a gradient is not finite"]


def test_invalid_codecs_are_refused_and_the_job_continues(tmp_path):
    for rank in train(tmp_path, 2, "wrong"):
        assert "the ranks ask for different gradient compression" in rank["differ"]
        assert "no codec 'zip'" in rank["unknown"]
        assert "does not support all_reduce" in rank["cannot"]
        assert "already has a communication hook" in rank["twice"]
        assert "step 1 is over" in rank["over"]


def test_the_loss_scale_and_accumulation_change_nothing(tmp_path):
    for rank in train(tmp_path, 2, "accumulated"):
        assert rank["False"] == rank["True"]
        assert rank["True"][1] == 40


def test_gradients_of_fsdp2_are_sent_as_bf16_and_summed_in_32_bits(tmp_path):
    for rank in train(tmp_path, 3, script="compressed_shards.py"):
        assert rank["equal"] == [True] * 4
        assert rank["sent"] == 2 * rank["elements"] * 2 // 3
        assert "no module of this model is sharded" in rank["plain"]


def test_a_canary_distinguishes_harmless_from_harmful_compression(tmp_path):
    first, second = train(tmp_path, 2, "tried")
    assert first == second
    assert first["bf16"][0]
    passed, gaps, (low, high), steps = first["topk:0.05"]
    assert not passed
    assert min(gaps) > 0.02
    assert low <= sum(gaps) / 2 <= high
    assert steps == 40
    assert not first["nan"]
    assert "one seed" in first["seeds"]
    assert "[1, 2] steps" in first["lengths"]


def test_a_plan_wraps_a_bare_model(tmp_path):
    """In buckets of 0.005 MiB: one of the last three layers, and one of the first."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))
    first = BucketChoice(codec="none", index=0, elements=(1, 40, 40, 1600))
    second = BucketChoice(codec="int8", index=1, elements=(40, 800))
    body = CompressionBody(buckets=(first, second), bucket_mb=0.005)
    plan = plan_of(((0,), (1,)), body, n_est=2, signature=model_signature(layers))
    write_plan(tmp_path / "plan.json", plan)
    one, other = train(tmp_path, 2, "wrapped", str(tmp_path / "plan.json"))
    assert one == other
    assert one["codecs"] == ["none", "int8"]
    assert one["cap"] == int(0.005 * 1024 * 1024)
    assert ["ElasticTrainer" in text for text in one["said"]] == [True]
    assert "already wrapped" in one["wrapped"]
    assert "another model" in one["model"]
    with pytest.raises(UsageError, match="for 2 processes"):
        raise_for_world(layers, tmp_path / "plan.json")


def raise_for_world(model, plan):
    """In a job of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        apply_plan(model, plan)
    finally:
        dist.destroy_process_group()
