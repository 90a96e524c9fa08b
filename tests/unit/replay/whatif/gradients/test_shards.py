"""FSDP2's gradients between CPUs as bf16: each reduce-scatter takes its measured time."""

import pytest

from esprof.core.plan import CodecChoice, CompressionBody, write_plan
from esprof.replay.whatif.gradients.shards import Shards
from esprof.replay.whatif.pricing import what_if
from tests.cases.compression import MIB, exchange, narrow_scatter, part, planned
from tests.cases.gloo_buckets import run_with
from tests.cases.graph import build
from tests.cases.probed import link, probes
from tests.cases.shards import shards_run

PER_BYTE = 20e6 / MIB
AS_IT_IS = 2 * (10 + 20) + 1 + 5


def answered(run, spec, *sweeps):
    run.probes = probes(link(0, PER_BYTE), *sweeps)
    (answer,) = what_if(run, build(run), [spec])
    return answer


def step_ms(run, spec, *sweeps):
    answer = answered(run, spec, *sweeps)
    assert answer.answered, answer.reason
    return answer.predicted_us / 1e3


def test_the_backward_pass_waits_for_cast_communication_and_sum():
    run = shards_run((1, 1))
    assert step_ms(run, "compress=none") == pytest.approx(AS_IT_IS, abs=0.5)
    predicted = step_ms(run, "compress=bf16", *narrow_scatter(1, 8, add_ms=2))
    assert predicted == pytest.approx(2 * (10 + 8) + 1 + 5, abs=0.5)


def test_where_casting_is_dear_the_step_gets_longer():
    predicted = step_ms(shards_run((1, 1)), "compress=bf16", *narrow_scatter(20, 32, add_ms=2))
    assert predicted == pytest.approx(2 * (10 + 32) + 1 + 5, abs=0.5)


def test_the_loss_is_no_gradient():
    """Gloo carries out both by all-reduces."""
    run = shards_run((1, 0.5))
    shards = Shards.of(run, build(run))
    assert shards.sizes == (MIB, MIB // 2)
    assert [len(one) for one in shards.collectives] == [2, 2]  # One a rank.


def test_gradients_in_buckets_are_no_shards():
    run = run_with((1, 1), (1, 1))
    assert Shards.of(run, build(run)) is None


def test_a_plan_says_it(tmp_path):
    run, path = shards_run((1, 1)), tmp_path / "plan.json"
    sweeps = (*narrow_scatter(1, 8), *exchange("half", 2, 12))
    write_plan(path, planned(compression=part(CompressionBody(sharded="bf16"))))
    assert step_ms(run, f"compress={path}", *sweeps) == step_ms(run, "compress=bf16", *sweeps)
    in_buckets = run_with((1, 1), (1, 1))
    assert "the plan compresses sharded gradients" in answered(in_buckets, f"compress={path}", *sweeps).reason
    write_plan(path, planned(compression=part(CompressionBody(default=CodecChoice(codec="half")))))
    assert "the plan compresses gradient buckets" in answered(run, f"compress={path}", *sweeps).reason


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"dtype": "c10::BFloat16"}, "already send 16-bit floats, so nothing can be saved"),
        ({"dtype": "double"}, "send other types than 32-bit floats: double"),
        ({"of_ddp": True}, "both reduce-scatters and all-reduces"),
    ],
)
def test_others_are_declined(how, reason):
    assert reason in answered(shards_run((1, 1), **how), "compress=bf16", *narrow_scatter(1, 8)).reason


def test_unmeasured_costs_are_declined():
    run = shards_run((1, 1))
    assert "a reduce-scatter whose gradients travel as bf16 was not measured" in answered(run, "compress=bf16").reason
    too_large = answered(run, "compress=bf16", *narrow_scatter(1, 8, sizes=(MIB // 8,)))
    assert "more than a factor of 2" in too_large.reason
    assert "not by topk" in answered(run, "compress=topk:0.01", *narrow_scatter(1, 8)).reason
    (without,) = what_if(shards_run((1, 1)), build(shards_run((1, 1))), ["compress=bf16"])
    assert "esprof probe" in without.reason
