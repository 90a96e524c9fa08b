"""Batches still have to be made if nobody waits for them: the CPUs of the hosts bound the gain of `data=0`."""

import numpy as np
import pytest

from esprof.analyzers import diagnose
from esprof.core.errors import UsageError
from esprof.replay import Replayed, answer
from esprof.replay.whatif.host.host_cpus import cpus_of, least_ns
from tests.cases.graph import EPOCH_NS, gloo, load_call, op, run_of, stage, step
from tests.cases.step_runs import step_table

MS = 1_000_000
STEPS = (1, 2, 3, 4, 5)


def job(
    batch_cpu_ms: float | None,
    cpus: tuple[int, ...] = (0, 1),
    step_cpu_ms: int = 20,
    more_stages=(),
    ready_ms: int = 0,
    **more,
):
    """Two ranks, steps of 100 ms: 70 ms of waiting for a batch, of whose making `batch_cpu_ms` ran on a CPU, then 20 ms of
    work and an all-reduce."""
    rows, stages = [], []
    for n in STEPS:
        at = n * 100_000.0
        rows += [
            step(n, at, at + 100_000),
            load_call(at, at + 70_000),
            op("forward", at + 70_010, 20_000),
            *gloo(at + 90_020, at + 90_025, at + 99_000),
            op("Optimizer.step", at + 99_010, 980),
        ]
        made = {"cpu_ns": None if batch_cpu_ms is None else round(batch_cpu_ms * MS), "ready_ns": ready_ms * MS}
        stages += [
            stage("fetch", n, at - 29_000, at + 69_900, prefetch=1) | made,
            stage("next", n, at, at + 70_000, prefetch=1) | {"cpu_ns": None, "ready_ns": None},
        ]
    stages += more_stages
    steps = step_table([100] * 5, start_ns=EPOCH_NS + 100 * MS, phase="timed", first=1, cpu_ns=[step_cpu_ms * MS] * 5)
    both = (0, 1)
    return run_of(
        dict.fromkeys(both, rows), stages=dict.fromkeys(both, stages), steps=dict.fromkeys(both, steps),
        cpus=dict.fromkeys(both, cpus), **more,
    )  # fmt: skip


def test_the_cpu_time_of_ranks_and_batches_on_the_cpus_that_they_share():
    assert least_ns(job(60), STEPS) == pytest.approx([80 * MS] * 5)
    assert least_ns(job(60, cpus=tuple(range(8))), STEPS) == pytest.approx([20 * MS] * 5)


def test_hosts_and_quotas_count():
    apart = job(60, hosts={0: "a", 1: "b"})
    assert least_ns(apart, STEPS) == pytest.approx([40 * MS] * 5)
    assert (cpus_of(job(60), 0), cpus_of(apart, 0)) == (1, 2)
    assert cpus_of(job(60, cpus=tuple(range(8)), quotas={0: 1.0, 1: 2.0}), 1) == 1.5
    assert cpus_of(job(60, quotas={0: 1.0}), 1) == 1


def test_busy_cpus_have_a_larger_error_for_communication_and_codecs():
    busy, idle = Replayed.of(job(60)).pricer, Replayed.of(job(60, cpus=tuple(range(8)))).pricer
    for term in ("compress", "bucket_mb"):
        assert busy.error.of_terms([term]) > 1.5 * idle.error.of_terms([term])
    assert busy.error.of_terms(["data"]) == idle.error.of_terms(["data"])


def test_unrecorded_cpu_time_bounds_nothing():
    assert least_ns(job(None, step_cpu_ms=0), STEPS) is None
    assert least_ns(job(60, cpus=()), STEPS) is None
    assert cpus_of(job(60, cpus=()), 0) is None


@pytest.mark.parametrize(
    ("batch_cpu_ms", "predicted_ms", "is_limit"), [(60, 80, True), (2, 30, False), (500, 100, True)]
)
def test_no_step_is_shorter_than_the_cpus_need(batch_cpu_ms, predicted_ms, is_limit):
    (found,) = answer(job(batch_cpu_ms), ["data=0"]).what_if
    assert found.predicted_us == pytest.approx(1000 * predicted_ms, abs=100)
    assert ("limited by the host" in (found.note or "")) == is_limit


def test_batches_that_are_ready_need_no_cpu():
    made, ready = answer(job(500), ["data=0", "data[ready]=0"]).what_if
    assert made.predicted_us == pytest.approx(100_000, abs=100)
    assert ready.predicted_us == pytest.approx(30_000, abs=100)
    assert "ready before training" in (ready.note or "")


def test_where_cpus_are_the_limit_the_price_is_that_of_batches_that_nobody_makes():
    (limited,) = (one for one in diagnose(job(60)).findings if one.id == "ESP101")
    assert limited.title.endswith("the CPUs are the bottleneck")
    assert limited.saving_us == pytest.approx(70_000, abs=200)
    assert limited.evidence["saving_with_more_workers"].value == pytest.approx(20 * MS, abs=MS)
    assert "data[ready]=0" in limited.command
    (free,) = (one for one in diagnose(job(2)).findings if one.id == "ESP101")
    assert "limit" not in free.title
    assert free.command.endswith("data=0")


def test_nothing_else_stands_in_brackets():
    with pytest.raises(UsageError, match="not a kind of input data"):
        answer(job(60), ["data[cold]=0"])


def test_more_workers_are_no_advice_where_the_cpus_are_taken():
    def advice(*job_of, **more) -> str:
        (finding,) = (one for one in diagnose(job(*job_of, **more)).findings if one.id.startswith("ESP1"))
        return finding.advice

    assert "more workers would save at most 20.0 ms" in advice(60)
    # The batch is made for 98.9 ms.
    assert "For 40 % of that time the batches wait for a CPU" in advice(5, ready_ms=40)
    assert "num_workers=4" in advice(5, ready_ms=20)
    assert "num_workers=4" in advice(5)
    assert np.isclose(least_ns(job(5), STEPS), 25 * MS).all()


def test_batches_not_made_by_workers_are_not_counted():
    """A second loader, whose batches the rank makes itself in no time."""
    own = [stage("next", n, n * 100_000 + 500, n * 100_000 + 501) | {"loader": 1, "workers": 0} for n in STEPS]
    assert least_ns(job(60, more_stages=own), STEPS) == pytest.approx([80 * MS] * 5)


def test_a_faster_cpu_is_bounded_by_nothing_that_a_slower_one_took():
    both, alone = answer(job(30), ["data=0,cpu=2x", "data=0"]).what_if
    assert both.predicted_us < alone.predicted_us
    assert "limited by the host" not in (both.note or "")
