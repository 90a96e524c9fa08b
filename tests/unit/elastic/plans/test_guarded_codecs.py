"""Codecs that plans bring to a running job: the guard lets them be, or gives them up, wherever ESTs run."""

import pytest

from esprof.core.plan import CodecChoice, CompressionBody, GuardSettings
from esprof.elastic import Assignment
from esprof.elastic.compress.ests import EstGuard, Guarded
from esprof.run.logs import HISTORY
from tests.cases.elastic import on_threads
from tests.cases.elastic_job import bits, small_trainer
from tests.cases.plans import QueuedPlans, plan_of

STEPS = 8
LOSSY = "topk:0.1"


def guarded(codec, apply_at=2, world=2, **settings):
    body = CompressionBody(default=CodecChoice(codec=codec), guard=GuardSettings(**settings))
    return plan_of(codec=body, apply_at=apply_at, world=world)


def without_plan(*changes, steps=STEPS):
    trainer = small_trainer()
    for spec, step in changes:
        trainer.set_codec(spec, from_step=step)
    return bits(trainer, steps)


@pytest.mark.parametrize("parts", [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[3], [0, 1, 2]], [[0, 1, 2, 3], []]])
def test_a_codec_that_loses_too_much_is_given_up_at_the_next_step_wherever_ests_run(parts, tmp_path):
    source = QueuedPlans(guarded(LOSSY, max_vnmse=1e-3, world=len(parts)))

    def body(transport):
        trainer = small_trainer(
            transport=transport, plan=source, assignment=Assignment.of(parts), telemetry=tmp_path, prove_every=0
        )
        return bits(trainer, STEPS)

    # The first step with the codec is looked at.
    assert on_threads(len(parts), body) == [without_plan((LOSSY, 2), ("none", 3))] * len(parts)
    assert source.states == ["pending", "adopted", "reverted"]
    assert source.statuses[-1]["step"] == 3
    assert "given up its codec: the squared error of the mean gradient is" in source.statuses[-1]["reason"]
    assert [event.what for event in HISTORY.read(tmp_path)][-1] == "reverted"


def test_a_codec_within_its_guard_stays_and_a_look_changes_no_bit():
    source = QueuedPlans(guarded(LOSSY, every=2))

    def body(transport):
        return bits(small_trainer(transport=transport, plan=source), STEPS)

    assert on_threads(2, body) == [without_plan((LOSSY, 2))] * 2
    assert source.states == ["pending", "adopted"]


def test_it_falls_back_to_what_the_plan_says():
    source = QueuedPlans(guarded(LOSSY, max_vnmse=1e-3, fallback="bf16"))

    def body(transport):
        return bits(small_trainer(transport=transport, plan=source), STEPS)

    assert on_threads(2, body) == [without_plan((LOSSY, 2), ("bf16", 3))] * 2


def test_a_loss_that_is_no_number_is_noticed_at_the_next_look():
    # Losses of a step count from the next look on: that of step 4 sees those up to step 3.
    source = QueuedPlans(guarded("bf16", every=2))

    def body(transport):
        trainer = small_trainer(transport=transport, plan=source)
        for step in range(6):
            trainer.step()
            if step == 2:
                trainer.state.guard.note(float("nan"))
        return trainer.state.codec_spec(6)

    assert on_threads(2, body) == ["none", "none"]
    assert "the loss rose" in source.statuses[-1]["reason"]


def test_a_plan_whose_guard_would_fall_back_to_what_is_no_codec_is_refused():
    source = QueuedPlans(guarded("bf16", fallback="zip", apply_at=None, world=1))
    bits(small_trainer(plan=source), 3)
    assert source.states == ["refused"]
    assert "no codec 'zip'" in source.statuses[-1]["reason"]


@pytest.mark.parametrize("every", [1, 2, 3, 100])
def test_each_of_several_optimizers_is_inspected(every):
    guard = EstGuard(Guarded(plan="it", version=1, settings=GuardSettings(every=every)), from_step=7)
    inspected = [step for step in range(7, 7 + 20 * every) if guard.inspects(step, 2)]
    assert inspected[0] == 7
    assert {step % 2 for step in inspected} == {0, 1}
    assert len(inspected) >= 19
    assert [step for step in range(7, 7 + 3 * every) if guard.inspects(step, 1)] == [7, 7 + every, 7 + 2 * every]


def test_a_codec_that_is_given_up_after_the_job_began_anew_is_in_its_history(tmp_path):
    """Although the plan's file is gone by then."""

    def trained(until, source):
        trainer = small_trainer(plan=source, folder=tmp_path / "saved", telemetry=tmp_path, prove_every=0)
        bits(trainer, until - trainer.next_step)
        trainer.save()

    plan = guarded(LOSSY, apply_at=1, world=1, every=2, windows=2, most_unsent=0.1)
    trained(4, QueuedPlans(plan))
    trained(10, QueuedPlans())
    event = HISTORY.read(tmp_path)[-1] if HISTORY.read(tmp_path)[-1].what == "reverted" else HISTORY.read(tmp_path)[-2]
    assert "the residual grows" in event.reason
    assert event.plan is not None


def test_the_guard_goes_into_checkpoints(tmp_path):
    """What it has seen before the job began anew counts after that."""

    def trained(until, folder):
        # Three inspections in which the residual grows, and then it is too much: no job of fewer steps sees that.
        source = QueuedPlans(guarded(LOSSY, apply_at=1, world=1, every=2, windows=2, most_unsent=0.1))
        trainer = small_trainer(plan=source, folder=folder, prove_every=0)
        found = bits(trainer, until - trainer.next_step)
        trainer.save()
        return found, source

    whole, source = trained(10, tmp_path / "whole")
    assert "the residual grows" in source.statuses[-1]["reason"]
    first, _ = trained(4, tmp_path / "parts")
    second, _ = trained(10, tmp_path / "parts")
    assert first + second == whole


def test_a_codec_of_the_scripts_own_has_no_guard():
    trainer = small_trainer(codec=LOSSY)
    trainer.step()
    assert trainer.state.guarding is None


def test_a_codec_that_the_script_sets_later_takes_the_guard_s_place():
    source = QueuedPlans(guarded(LOSSY, every=2, max_vnmse=1e-3, apply_at=2, world=1))
    trainer = small_trainer(plan=source)
    trainer.set_codec("bf16", from_step=3)
    bits(trainer, 2)
    assert trainer.state.guard is None
    bits(trainer, 1)
    assert trainer.state.codec_spec(3) == "none"  # What the guard decides at step 2 holds from step 3 on.
