"""Advice on a DataLoader, for a job whose batches take 60 ms and whose steps take 20 ms beside that."""

import pytest

from esprof.analyzers.advisors.job.est_answer import NotRecorded
from esprof.analyzers.advisors.loader import advise
from esprof.analyzers.advisors.loader.advise import advise_loader
from esprof.core.errors import EsprofError
from esprof.core.plan import LoaderBody, check
from esprof.replay import Replayed
from esprof.reports.terminal.advice.loader import draw_loader
from tests.cases.graph import op, run_of, step
from tests.cases.loading import loading_job


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """Predictions of which it is known that they are off by 2 % of a step."""
    monkeypatch.setattr("esprof.replay.whatif.error.intervals.model_error", lambda job, terms: 0.02)


def advised(run, max_error_pct=100):
    return advise_loader(Replayed.of(run, max_error_pct=max_error_pct))


def test_the_fewest_workers_that_keep_up_are_advised():
    """Three workers make a batch every 20 ms; more of them, and batches further ahead, gain nothing."""
    advice = advised(loading_job(cpus=8))
    assert advice.now == LoaderBody(workers=1, prefetch=2)
    assert advice.decision == LoaderBody(workers=3, prefetch=2)
    assert advice.value == pytest.approx(20_000, rel=0.03)
    assert advice.gain_pct == pytest.approx(100 * (1 - 20 / 60), abs=3)
    assert advice.low_us < advice.value < advice.high_us
    assert advice.baselines["now"] == pytest.approx(60_000, rel=0.03)
    assert advice.baselines["no input stall"] == pytest.approx(20_000, rel=0.03)
    assert advice.baselines["2 workers, prefetch 2"] == pytest.approx(30_000, rel=0.03)


def test_the_plan_has_the_decision_and_says_that_bits_change():
    advice = advised(loading_job(cpus=8))
    check(advice.plan)
    section = advice.plan.parts.loader
    assert (section.body, section.applies, section.changes_bits) == (advice.decision, "restart", True)
    assert section.predicted.step_us == advice.value
    assert any("torch seeds each worker" in warning for warning in advice.warnings)


def test_there_are_no_more_workers_than_cpus():
    advice = advised(loading_job(cpus=2))
    assert max(one.loader.workers for one in advice.choices) == 2
    assert advice.decision.workers == 2
    assert advice.value == pytest.approx(30_000, rel=0.03)


def test_without_known_cpus_at_most_twice_as_many_workers_are_tried():
    advice = advised(loading_job())
    assert max(one.loader.workers for one in advice.choices) == 2
    assert any("CPUs of the ranks are unknown" in warning for warning in advice.warnings)


def test_a_rank_that_makes_its_batches_itself_gets_workers_with_torch_s_default_prefetch():
    advice = advised(loading_job(workers=0, cpus=8))
    assert advice.now == LoaderBody(workers=0)
    assert advice.decision == LoaderBody(workers=3, prefetch=2)


def test_a_loader_that_keeps_up_stays():
    advice = advised(loading_job(workers=4, cpus=8))
    assert advice.plan is None
    assert "No change recommended" in draw_loader(advice)


def test_a_gain_below_twice_the_error_makes_no_plan(monkeypatch):
    monkeypatch.setattr("esprof.replay.whatif.error.intervals.model_error", lambda job, terms: 0.4)
    assert advised(loading_job(cpus=8)).plan is None


def test_deeper_prefetching_alone_changes_no_bits(monkeypatch):
    monkeypatch.setattr(advise, "COUNTS", ())
    advice = advised(loading_job(workers=2, cpus=2, scatter=0.9))
    assert advice.decision.workers == 2
    assert not advice.changes_bits


def test_a_job_without_a_recorded_loader_is_refused_with_the_reason():
    rows = [row for n in range(9) for row in (step(n, n * 1000, n * 1000 + 1000), op("forward", n * 1000, 990))]
    with pytest.raises(NotRecorded, match="no DataLoader was recorded") as refused:
        advised(run_of({0: rows}))
    assert "esprof record" in refused.value.remedy


def test_workers_that_wait_for_cpus_are_refused_with_the_reason():
    with pytest.raises(EsprofError, match="waits for a CPU for 15 %"):
        advised(loading_job(cpu_ms=30, ready_ms=9, cpus=8))


def test_the_terminal_shows_each_setting():
    drawn = draw_loader(advised(loading_job(cpus=8)))
    assert "With 3 workers, prefetch 2, a step would take 20" in drawn
    assert "smallest good one" in drawn
    assert "Omits" in drawn
