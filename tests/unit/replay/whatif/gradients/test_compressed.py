"""Compressed buckets between CPUs: encoded by the backward pass, sent, and concurrent work slowed down."""

import pytest

from esprof.core.plan import AssignmentBody, BucketChoice, CodecChoice, CompressionBody, write_plan
from esprof.replay.whatif.gradients.compressed import Compressible, costs_of
from esprof.replay.whatif.pricing import what_if
from tests.cases.compression import MIB, exchange, part, planned
from tests.cases.gloo_buckets import ELEMENTS, run_with
from tests.cases.graph import build
from tests.cases.probed import link, probes, slowing

PER_BYTE = 20e6 / MIB


def answered(run, spec, *sweeps):
    run.probes = probes(link(0, PER_BYTE), *sweeps)
    (answer,) = what_if(run, build(run), [spec])
    return answer


def step_ms(run, spec, *sweeps):
    answer = answered(run, spec, *sweeps)
    assert answer.answered, answer.reason
    return answer.predicted_us / 1e3


def test_each_bucket_is_encoded_by_the_backward_pass_and_sent_when_that_is_done():
    """Gradients come every 10 ms and take 2 more; 10 ms later all ranks have the mean."""
    run = run_with((1, 1, 1, 1), (1, 1, 1, 1))
    assert step_ms(run, "network=1x") == pytest.approx(96, abs=0.5)
    assert step_ms(run, "compress=half", *exchange("half", 2, 12)) == pytest.approx(48 + 10 + 1 + 5, abs=0.5)


def test_a_dear_codec_makes_the_step_longer():
    run = run_with((1, 1, 1, 1), (1, 1, 1, 1))
    assert step_ms(run, "compress=dear", *exchange("dear", 30, 60)) == pytest.approx(4 * 40 + 30 + 1 + 5, abs=0.5)


def test_decoding_overlaps_the_communication_of_the_next_bucket():
    """Of 30 ms the link takes 20: four times 20 from 12 ms on, then 8 ms for the last bucket."""
    run = run_with((1, 1, 1, 1), (1, 1, 1, 1))
    predicted = step_ms(run, "compress=parts", *exchange("parts", 2, 30, coding_ms=8))
    assert predicted == pytest.approx(12 + 4 * 20 + 8 + 1 + 5, abs=0.5)


def test_decoding_slows_concurrent_work():
    """Four exchanges with 4 ms more of CPU time each; three overlap the backward pass."""
    run = run_with((1, 1, 1, 1), (1, 1, 1, 1))
    beside = slowing(PER_BYTE, 0.0)
    quick = step_ms(run, "compress=half", *beside, *exchange("half", 2, 12, cpu_ms=2))
    slow = step_ms(run, "compress=half", *beside, *exchange("half", 2, 12, cpu_ms=6))
    assert slow - quick == pytest.approx(3 * 4, rel=0.2)


def test_buckets_that_stay_are_as_recorded():
    run = run_with((1, 1, 1, 1), (1, 1, 1, 1))
    run.probes = probes(link(0, PER_BYTE), *exchange("half", 2, 12))
    dfg = build(run)
    buckets = Compressible.of(run, dfg)
    assert [bucket.elements for bucket in buckets.buckets] == [(ELEMENTS,)] * 4
    changed, taken = buckets.compressed(costs_of(buckets, {1: "half"}))
    assert changed.dur_ns[buckets.all_reduces[1]].tolist() == pytest.approx([10_000_000] * 2, abs=1)
    assert changed.dur_ns[buckets.all_reduces[0]].tolist() == [20_000_000] * 2
    assert (taken >= 0).sum() == 2  # The all-reduces of one bucket, one per rank.


def test_a_plan_says_it_for_each_bucket(tmp_path):
    run = run_with((1, 1, 1, 1), (1, 1, 1, 1))
    sweeps = exchange("half", 2, 12)
    every = [BucketChoice(codec="half", index=number, elements=(ELEMENTS,)) for number in range(4)]
    path = tmp_path / "plan.json"
    write_plan(path, planned(compression=part(CompressionBody(buckets=tuple(every)))))
    assert step_ms(run, f"compress={path}", *sweeps) == step_ms(run, "compress=half", *sweeps)
    write_plan(path, planned(compression=part(CompressionBody(buckets=tuple(every[:3])))))
    assert "other buckets than this run" in answered(run, f"compress={path}", *sweeps).reason
    for other in (
        CodecChoice(codec="half", exchange="all_gather"),
        CodecChoice(codec="half", encoded_by="beside"),
        CodecChoice(codec="half", topology="hierarchical"),
    ):
        write_plan(path, planned(compression=part(CompressionBody(default=other))))
        assert "default exchange" in answered(run, f"compress={path}", *sweeps).reason
    write_plan(
        path, planned(assignment=part(AssignmentBody(ests=((0,), (1,)), devices=(), compute_us=1, ests_below=1)))
    )
    assert "compresses no gradients" in answered(run, f"compress={path}", *sweeps).reason


def test_unmeasured_costs_are_declined():
    run = run_with((1, 1), (1, 1))
    answer = answered(run, "compress=other", *exchange("half", 2, 12))
    assert "was not measured; measured codecs: half" in answer.reason


def test_without_a_probe_it_is_declined():
    run = run_with((1, 1), (1, 1))
    (answer,) = what_if(run, build(run), ["compress=bf16"])
    assert "esprof probe" in answer.reason
    assert "no codec was measured" in answered(run, "compress=bf16").reason
    too_large = answered(run, "compress=half", *exchange("half", 2, 12, sizes=(MIB // 8,)))
    assert "more than a factor of 2" in too_large.reason
