"""Plans that are tried in blocks of steps with and without them, by turns."""

import random

import pytest

from esprof.core.errors import UsageError
from esprof.core.plan import Fallback, check
from esprof.elastic import Assignment
from esprof.elastic.plans.adoption import Adoption
from esprof.elastic.plans.judgement import TrialJudge
from esprof.elastic.plans.trial import TrialSchedule, TrialSteps
from esprof.run.logs import HISTORY, Tail
from tests.cases.elastic import on_threads
from tests.cases.elastic_job import bits, small_trainer
from tests.cases.plans import QueuedPlans, plan_of

EVEN, BETTER, WORSE = ((0, 1), (2, 3)), ((0, 1, 2), (3,)), ((), (0, 1, 2, 3))
TRIAL = Fallback(margin=0.2, window=4, blocks=2)


def verdict(step_us, *, window=10, blocks=4, margin=0.02, first=100, earlier=True):
    """(the verdict on a job whose steps take `step_us(step, whether the plan holds)`, the step that it came after)."""
    schedule = TrialSchedule(first, window, blocks)
    before = [step_us(step, False) for step in range(first - window, first)] if earlier else []
    plan = plan_of(BETTER, fallback=Fallback(margin=margin, window=window, blocks=blocks))
    judge = TrialJudge(plan, schedule, before)
    for step in range(first, schedule.end):
        if (found := judge.step_ended(step, step_us(step, schedule.has_plan(step)))) is not None:
            return found, step
    return None, schedule.end


def test_blocks_with_and_without_the_plan_alternate():
    schedule = TrialSchedule(first=5, window=2, blocks=2)
    assert [step for step in range(20) if schedule.has_plan(step)] == [5, 6, 9, 10]
    assert [step for step in range(20) if schedule.starts_block(step)] == [7, 9, 11]
    assert schedule.end == 13


def test_a_gain_is_reported_with_its_interval():
    draw = random.Random(1)
    found, step = verdict(lambda _, with_plan: (90.0 if with_plan else 100.0) + draw.gauss(0, 1))
    assert (found.outcome, step) == ("kept", 179)
    assert found.gain_low_us < 10 < found.gain_high_us
    assert found.before_us - found.after_us == pytest.approx(10, abs=1.5)


@pytest.mark.parametrize("drift", [-0.2, 0.2])
def test_a_steady_drift_is_no_gain_and_hides_none(drift):
    found, _ = verdict(lambda step, _: 100.0 + drift * step)
    assert found.outcome == "reverted"
    assert found.gain_low_us == pytest.approx(0, abs=1e-9)
    found, _ = verdict(lambda step, with_plan: (95.0 if with_plan else 100.0) + drift * step)
    assert found.outcome == "kept"
    assert found.before_us - found.after_us == pytest.approx(5)


def test_of_plans_without_a_gain_few_are_kept():
    draw = random.Random(2)
    kept = sum(verdict(lambda *_: 100 + draw.gauss(0, 5))[0].outcome != "reverted" for _ in range(400))
    assert kept <= 20  # 10 are expected of a one-sided 2.5 %.


def test_a_plan_that_plainly_makes_steps_longer_ends_with_its_first_block():
    found, step = verdict(lambda _, with_plan: 200.0 if with_plan else 100.0)
    assert (found.outcome, step) == ("reverted", 109)
    assert "longer than every step before" in found.reason
    _, step = verdict(lambda _, with_plan: 200.0 if with_plan else 100.0, earlier=False)
    assert step == 179  # There is nothing to hold it against.


def test_without_steps_before_it_the_blocks_after_it_tell():
    found, _ = verdict(lambda _, with_plan: 90.0 if with_plan else 100.0, earlier=False)
    assert (found.outcome, found.before_us, found.after_us) == ("kept", 100, 90)


def test_blocks_of_too_few_steps_tell_nothing():
    found, _ = verdict(lambda *_: 1.0, window=2)
    assert found.outcome == "reverted"
    assert "too few steps" in found.reason


def test_each_block_s_first_step_is_left_out():
    measured = TrialSteps(TrialSchedule(0, 3, 1), 0.1, [])
    for step in range(7):
        measured.note(step, float(step))
    assert measured.took_us == {0: [1.0, 2.0], 1: [4.0, 5.0]}


def tried(plan, steps, run, monkeypatch):
    """(what a job tells of the plan, the assignment of each step). A step takes as long as rank 1 has ESTs, by the clock."""
    source, found, judge = QueuedPlans(*[None] * 8, plan), [], Adoption.step_ended

    def step_ended(adoption, step, took_us):
        judge(adoption, step, 10.0 * Tail(run).read()[-1].ests[1])

    monkeypatch.setattr(Adoption, "step_ended", step_ended)

    def body(transport):
        trainer = small_trainer(
            transport=transport, plan=source, assignment=Assignment.of(EVEN), telemetry=run, prove_every=0
        )
        for _ in range(steps):
            trainer.step()
            if transport.rank == 0:
                found.append(trainer.assignment.ests)

    on_threads(2, body)
    return source, found


def test_a_job_tries_a_plan_in_alternating_blocks_and_accepts_it(tmp_path, monkeypatch):
    source, found = tried(plan_of(BETTER, fallback=TRIAL), 28, tmp_path, monkeypatch)
    assert source.states == ["trying", "kept"]
    blocks = [*[BETTER] * 4, *[EVEN] * 4] * 2
    started = source.statuses[0]["step"]
    assert found[started:] == [*blocks, EVEN, *[BETTER] * (28 - started - len(blocks) - 1)]
    assert source.statuses[1]["gain_low_us"] > 0
    assert [event.what for event in HISTORY.read(tmp_path)][-2:] == ["trying", "kept"]


def test_a_job_leaves_a_bad_plan_after_one_block_and_hears_of_the_next(tmp_path, monkeypatch):
    source, found = tried(plan_of(WORSE, fallback=TRIAL), 20, tmp_path, monkeypatch)
    assert source.states == ["trying", "reverted"]
    assert found.count(WORSE) == 4
    assert found[-1] == EVEN


def test_a_plan_that_comes_during_a_trial_waits():
    source, found = QueuedPlans(plan_of(BETTER, fallback=TRIAL), *[None] * 2, plan_of(WORSE, version=2)), []

    def body(transport):
        trainer = small_trainer(transport=transport, plan=source)
        for _ in range(22):
            trainer.step()
            if transport.rank == 0:
                found.append(trainer.assignment.ests)

    on_threads(2, body)
    assert [(status["version"], status["state"]) for status in source.statuses][-1] == (2, "adopted")
    assert source.statuses[-1]["step"] >= 16
    assert found[-1] == WORSE


def test_a_trial_changes_no_bit():
    static = bits(small_trainer(), 12)

    def body(transport):
        return bits(
            small_trainer(transport=transport, plan=QueuedPlans(None, None, plan_of(BETTER, fallback=TRIAL))), 12
        )

    assert on_threads(2, body) == [static, static]


def test_what_changes_bits_cannot_be_tried_in_blocks():
    with pytest.raises(UsageError, match="cannot have an interleaved trial"):
        check(plan_of(codec="bf16", fallback=TRIAL))
