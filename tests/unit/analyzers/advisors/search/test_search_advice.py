"""Advice on changes together, for a job whose slow DataLoader hides its slow link."""

import pytest

from esprof.analyzers.advisors.search.advise import advise_changes
from esprof.analyzers.advisors.search.answer import ALL_IDEAL
from esprof.analyzers.advisors.search.branch import KnownSteps, SearchTerm
from esprof.analyzers.advisors.search.limit import PeakLimit
from esprof.core.errors import EsprofError
from esprof.core.plan import LoaderBody, check
from esprof.replay import Replayed
from esprof.reports.terminal.advice.search import draw_search
from tests.cases import layered
from tests.cases.compression import MIB, exchange
from tests.cases.graph import op, run_of, step
from tests.cases.loading import loading_job
from tests.cases.masked import masked_job
from tests.cases.memory import job as allocating_job

HALF = exchange("half", 0.5, 3, sent=MIB // 2, vnmse=1e-6)


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """Predictions of which it is known that they are off by 2 % of a step."""
    monkeypatch.setattr("esprof.replay.whatif.error.intervals.model_error", lambda job, terms: 0.02)


def advised(run, *tries, **wanted):
    return advise_changes(Replayed.of(run, max_error_pct=100), tries, **{"max_vnmse": 0.01} | wanted)


@pytest.fixture(scope="module")
def masked():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("esprof.replay.whatif.error.intervals.model_error", lambda job, terms: 0.02)
        return advised(masked_job(HALF))


def test_a_slow_loader_above_a_slow_link_yields_both(masked):
    """Steps wait for 150 ms for batches; three workers leave 96 ms, 80 of them on the link."""
    loader, codec = masked.decision
    assert (loader.change, codec.change) == ("loader.workers=3", "compress=half")
    assert masked.baselines["now"] == pytest.approx(150_000, rel=0.01)
    assert masked.value == pytest.approx(51_000, rel=0.02)
    assert masked.what_if == "loader.workers=3,compress=half"
    assert masked.is_worth_it
    assert masked.low_us < masked.value < masked.high_us


def test_gains_alone_and_given_the_others(masked):
    loader, codec = masked.decision
    assert codec.alone_us == 0
    assert codec.given_others_us == pytest.approx(45_000, rel=0.02)
    assert loader.alone_us == pytest.approx(54_000, rel=0.02)
    assert loader.given_others_us == pytest.approx(99_000, rel=0.02)
    assert [one.step_after_us for one in masked.decision] == pytest.approx([96_000, masked.value], rel=0.02)


def test_the_hidden_term_is_marked(masked):
    assert {term.term for term in masked.terms if term.masked} == {"compress", "bucket_mb"}
    assert all(term.searched for term in masked.terms)


def test_the_optimum_is_proven(masked):
    assert masked.complete
    assert masked.lower_bound_us == masked.shortest_us <= masked.value
    assert masked.gap_pct == pytest.approx(100 * (1 - masked.shortest_us / masked.value), abs=0.001)


def test_the_plan_holds_both_parts_with_their_common_promise(masked):
    check(masked.plan)
    loader, compression = masked.plan.parts.loader, masked.plan.parts.compression
    assert loader.body == LoaderBody(workers=3, prefetch=2)
    assert compression.body.default.codec == "half"
    assert loader.predicted == compression.predicted
    assert loader.predicted.step_us == masked.value


def test_the_terminal_shows_the_order_and_the_proof(masked):
    drawn = draw_search(masked)
    assert "With these 2 changes together, a step would take 51" in drawn
    assert "hidden by others now" in drawn
    assert "complete, by" in drawn
    assert "esprof replay RUN --what-if loader.workers=3,compress=half" in drawn


def test_no_codec_is_allowed_to_lose_anything():
    advice = advised(masked_job(HALF), max_vnmse=0)
    assert "loses 1e-06" in advice.left_out["compress=half"]
    assert advice.what_if == "loader.workers=3"
    assert advice.plan.parts.compression is None


def test_without_replays_of_sets_the_bound_is_that_of_all_ideals():
    advice = advised(masked_job(HALF), max_replays=0)
    assert not advice.complete
    assert advice.lower_bound_us == advice.baselines["all terms ideal"]
    assert advice.what_if == "loader.workers=3,compress=half"  # The descent finds it here.
    assert "not complete" in draw_search(advice)


def test_a_change_is_offered_by_the_user():
    advice = advised(loading_job(cpus=8), "storage=4x", "decode=2x")
    assert "no decoding was recognised" in advice.left_out["decode"]
    assert "storage" in {term.term for term in advice.terms}
    assert advice.what_if == "loader.workers=3"
    assert "bucket_mb" in advice.left_out


def test_the_cpus_limit_the_workers():
    advice = advised(masked_job(HALF, cpus=3))
    assert "CPUs for the present number" in advice.left_out["loader.workers"]
    assert advice.what_if is None  # A codec alone gains nothing behind this loader.
    assert advice.lower_bound_us == pytest.approx(advice.value, rel=1e-4)


def test_a_set_that_a_plan_cannot_express():
    advice = advised(loading_job(cpus=1), "storage=4x")
    assert advice.what_if == "storage=4x"
    assert advice.is_worth_it
    assert advice.plan is None


def test_a_job_that_no_change_makes_faster():
    advice = advised(loading_job(workers=4, cpus=8))
    assert advice.decision == ()
    assert (advice.what_if, advice.plan) == (None, None)
    assert "No change recommended" in draw_search(advice)


def test_a_gain_within_the_error_is_uncertain(monkeypatch):
    monkeypatch.setattr("esprof.replay.whatif.error.intervals.model_error", lambda job, terms: 0.6)
    advice = advised(loading_job(cpus=8))
    assert (advice.is_worth_it, advice.plan) == (False, None)
    assert "a step might take 20.0 ms" in draw_search(advice)


def test_a_job_without_any_evidence_is_refused_with_the_reasons():
    rows = [row for n in range(9) for row in (step(n, n * 1000, n * 1000 + 1000), op("forward", n * 1000, 990))]
    with pytest.raises(EsprofError, match="no change can be predicted: loader: no DataLoader was recorded"):
        advised(run_of({0: rows}))


def test_a_job_that_must_fit_into_less_memory_computes_its_layers_again():
    """The job of `tests.cases.memory`: 4,410 bytes, with recomputation 3,410."""
    advice = advised(allocating_job(), max_memory=4_000)
    assert (advice.what_if, advice.is_worth_it) == ("recompute=full", True)
    assert (advice.peak_now.peak, advice.peak.peak, advice.max_memory) == (4_410, 3_410, 4_000)
    assert advice.gain_pct < 0
    drawn = " ".join(draw_search(advice).split())
    assert "and a rank would need 3.3 KiB of memory instead of 4.3 KiB" in drawn
    assert "the limit is 3.9 KiB" in drawn
    # No all-reduces: its states cannot be shared.
    assert "zero" in advice.left_out


def test_a_job_that_fits_is_not_made_slower():
    advice = advised(allocating_job(), max_memory=5_000)
    assert (advice.what_if, advice.is_worth_it) == (None, False)
    assert advice.peak == advice.peak_now


def test_a_limit_below_all_sets_is_refused():
    with pytest.raises(EsprofError, match=r"with recompute=full, more than 2\.9 KiB"):
        advised(allocating_job(), max_memory=3_000)


def test_of_the_sets_that_fit_one_with_a_price_is_found():
    """Both together have the least peak, but no known step."""
    limit = PeakLimit.of(Replayed.of(allocating_job(), max_error_pct=100), 4_000)
    values = {"recompute": "recompute=full", "accumulate": "accumulate=2"}
    terms = [SearchTerm(name, (value,), (), needed=True) for name, value in values.items()]
    steps = KnownSteps(lambda sets: [None if len(one) == 2 else 1.0 for one in sets])
    assert limit.start(terms, steps) == ("accumulate=2",)
    with pytest.raises(EsprofError, match="the step of no set that fits"):
        limit.start(terms, KnownSteps(lambda sets: [None for _ in sets]))


def test_a_limit_needs_recorded_allocations():
    with pytest.raises(EsprofError, match="allocations of some ranks were not recorded"):
        advised(masked_job(HALF), max_memory=3_000)


def test_schedules_of_a_pipeline_are_searched_without_a_bound():
    advice = advised(run_of(layered.rows()))
    (pipeline,) = (one for one in advice.terms if one.term == "pipeline")
    assert pipeline.ideal is None
    assert "pipeline=1f1b" in pipeline.values
    assert advice.complete
    assert ALL_IDEAL not in advice.baselines
    assert "no bound known" in draw_search(advice)
