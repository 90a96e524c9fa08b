"""Plans that a running job is given: all ranks adopt one at the same border, or none does, and no bit changes."""

import json
import random
import time

import msgspec
import pytest

from esprof.core.errors import MismatchError, OutputError
from esprof.core.plan import BucketChoice, CompressionBody, Fallback
from esprof.elastic import Assignment, Drain
from esprof.elastic.checkpoint import checkpoint
from esprof.elastic.plans import memory
from esprof.elastic.plans.adoption import Adoption
from esprof.elastic.plans.signature import model_signature
from esprof.run.logs import HISTORY
from tests.cases.elastic import loss_fn, on_threads
from tests.cases.elastic_job import Net, bits, small_trainer
from tests.cases.plans import QueuedPlans, plan_of

STEPS = 6
EVEN = ((0, 1), (2, 3))


def trained(source, steps=STEPS, world=2, **options):
    """The bits of each rank after each step."""

    def body(transport):
        return bits(small_trainer(transport=transport, plan=source, **options), steps)

    return on_threads(world, body)


@pytest.fixture(scope="module")
def static():
    return bits(small_trainer(), STEPS)


def places(source, steps=STEPS, **options):
    """The assignment of each step."""
    found = []

    def body(transport):
        trainer = small_trainer(transport=transport, plan=source, **options)
        for _ in range(steps):
            trainer.step()
            if transport.rank == 0:
                found.append(trainer.assignment.ests)

    on_threads(2, body)
    return found


def test_a_plan_moves_ests_and_changes_no_bit(static):
    source = QueuedPlans(None, None, plan_of(((3,), (0, 1, 2))))
    assert trained(source) == [static, static]
    assert source.states == ["adopted"]


def test_a_plan_that_comes_in_a_step_is_adopted_before_the_next():
    after = ((3,), (0, 1, 2))
    source = QueuedPlans(None, None, plan_of(after))  # It is asked as the trainer is made, and then in each step.
    found = places(source)
    assert found == [EVEN] * 2 + [after] * 4
    assert source.statuses[0]["step"] == 2


def test_a_plan_that_is_there_at_the_start_comes_before_the_first_step():
    after = ((3,), (0, 1, 2))
    assert places(QueuedPlans(plan_of(after)), steps=2) == [after, after]


def test_a_plan_may_name_its_step():
    after = ((3,), (0, 1, 2))
    source = QueuedPlans(plan_of(after, apply_at=3))
    assert places(source) == [EVEN] * 3 + [after] * 3
    assert source.states == ["pending", "adopted"]
    assert source.statuses[1]["step"] == 3


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))])
def test_any_number_of_plans_leave_the_bits(static, seed):
    draw = random.Random(seed)
    world, plans = draw.randint(2, 3), []
    for version in range(1, STEPS):
        parts = [[] for _ in range(world)]
        for est in draw.sample(range(4), 4):
            parts[draw.randrange(world)].append(est)
        plans.append(plan_of([sorted(part) for part in parts], version=version) if draw.random() < 0.8 else None)
    source = QueuedPlans(*plans)
    assert trained(source, world=world) == [static] * world
    assert set(source.states) <= {"adopted"}


def test_a_codec_comes_at_its_step_wherever_ests_run():
    def events_of_one():
        trainer = small_trainer()
        trainer.set_codec("topk:0.1", from_step=3)
        return bits(trainer, STEPS)

    static = events_of_one()
    first = QueuedPlans(plan_of(codec="topk:0.1", apply_at=3), None, plan_of(((3,), (0, 1, 2)), version=2))
    # The second is agreed on before the first one's step comes, and takes its place: it has both parts.
    second = QueuedPlans(plan_of(((0,), (1, 2, 3))), plan_of(((1,), (0, 2, 3)), "topk:0.1", apply_at=3, version=2))
    assert trained(second) == [static, static]
    assert second.states == ["adopted", "pending", "adopted"]
    third = QueuedPlans(plan_of(((0, 1, 2, 3), ())), None, plan_of(codec="topk:0.1", apply_at=3, version=2))
    assert trained(third) == [static, static]
    assert trained(first) != [static, static]  # A newer plan without the codec has taken the older one's place.


def test_a_plan_changes_the_interval_of_checkpoints_and_no_bit(static, tmp_path):
    source = QueuedPlans(None, None, plan_of(every=2, world=1))
    trainer = small_trainer(plan=source, folder=tmp_path, every=1000)
    assert bits(trainer, STEPS) == static
    trainer.close()
    assert source.states == ["adopted"]
    assert [path.name for path in checkpoint.in_folder(tmp_path)] != []


MIXED = CompressionBody(
    buckets=(BucketChoice(codec="int8", index=0, elements=(3,)), BucketChoice(codec="none", index=1, elements=(4,)))
)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (b"", "is not a plan"),
        (b"\xff\xfe", "is not a plan"),
        (b'{"schema": "esprof.plan/9"}', "is not a plan"),
        (plan_of(((0, 1), (2,)), n_est=3), "3 ESTs"),
        (plan_of(((0, 1), (2,), (3,))), "for 3 processes"),
        (plan_of(((0, 1), (2, 3)), signature="other"), "another model"),
        (plan_of(codec="zip"), "zip"),
        (plan_of(codec=MIXED), "int8, none"),
        (plan_of(), "no section"),
        (plan_of(every=5), "no checkpoint folder"),
    ],
)
def test_what_does_not_fit_is_refused_and_training_goes_on(static, plan, says):
    source = QueuedPlans(None, None, plan)
    assert trained(source) == [static, static]
    assert source.states == ["refused"]
    assert says in source.statuses[0]["reason"]


@pytest.mark.slow
def test_a_plan_torn_at_any_place_is_refused():
    """As a file that is written while the job reads it."""
    whole = msgspec.json.encode(plan_of(((0, 1, 2, 3),), signature=model_signature(Net(5))))
    source = QueuedPlans(None, *(whole[:offset] for offset in range(len(whole))), whole)
    trainer = small_trainer(plan=source, prove_every=0)
    for _ in range(len(whole) + 2):
        trainer.step()
    assert source.states == ["refused"] * len(whole) + ["adopted"]


def test_a_stale_version_is_refused():
    source = QueuedPlans(plan_of(((3,), (0, 1, 2)), version=5), plan_of(EVEN, version=5), plan_of(EVEN, version=4))
    found = places(source)
    assert source.states == ["adopted", "refused", "refused"]
    assert "not above 5" in source.statuses[1]["reason"]
    assert found[-1] == ((3,), (0, 1, 2))


@pytest.mark.parametrize("more", [{"version": 10**30}, {"fallback": {"window": 100_000, "blocks": 100}}])
def test_a_plan_that_would_lock_out_later_ones_is_refused(static, more):
    raw = json.dumps(msgspec.to_builtins(plan_of(((3,), (0, 1, 2)), version=6)) | more).encode()
    source = QueuedPlans(plan_of(EVEN, version=5), raw, plan_of(((3,), (0, 1, 2)), version=6))
    assert trained(source) == [static, static]
    assert source.states == ["adopted", "refused", "adopted"]
    assert [status["newest"] for status in source.statuses] == [5, 5, 6]


def test_a_step_that_is_over_is_too_late_for_a_codec_and_not_for_ests():
    source = QueuedPlans(
        None, None, None, None, plan_of(((3,), (0, 1, 2)), apply_at=1), plan_of(codec="bf16", apply_at=1, version=2)
    )
    found = places(source)
    assert source.states == ["adopted", "refused"]
    assert "is over" in source.statuses[1]["reason"]
    assert found[-1] == ((3,), (0, 1, 2))


def test_at_level_d0_ests_stay():
    source = QueuedPlans(None, None, plan_of(((3,), (0, 1, 2))))
    assert places(source, determinism="D0") == [EVEN] * STEPS
    assert "D0" in source.statuses[0]["reason"]


def test_ests_for_which_there_is_no_memory_stay(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 100)
    source = QueuedPlans(None, None, plan_of(((3,), (0, 1, 2))))
    assert places(source) == [EVEN] * STEPS
    assert "100 are available" in source.statuses[0]["reason"]
    assert "rank 0" in source.statuses[0]["reason"]


def judged(plan, steps, tmp_path, slow_rank=1):
    """What a job tells of a plan that comes after some steps, and its last assignment; on one rank turns take long."""
    source, ends = QueuedPlans(*[None] * 8, plan), []

    def body(transport):
        def loss(model, batch):
            if transport.rank == slow_rank:
                time.sleep(0.02)
            return loss_fn(model, batch)

        trainer = small_trainer(
            transport=transport,
            plan=source,
            loss=loss,
            assignment=Assignment.of(EVEN),
            telemetry=tmp_path,
            prove_every=0,
        )
        for _ in range(steps):
            trainer.step()
        ends.append(trainer.assignment.ests)

    on_threads(2, body)
    assert len(set(ends)) == 1
    return source, ends[0]


def test_a_plan_that_makes_steps_longer_is_taken_back_within_its_window(tmp_path):
    bad = plan_of(((), (0, 1, 2, 3)), fallback=Fallback(margin=0.2, window=5))
    source, last = judged(bad, 16, tmp_path)
    assert last == EVEN
    assert source.states == ["adopted", "reverted"]
    adopted, reverted = source.statuses
    assert reverted["step"] == adopted["step"] + 1 + 5  # One step settles.
    assert reverted["after_us"] > 1.2 * reverted["before_us"]
    assert [event.what for event in HISTORY.read(tmp_path)][-2:] == ["adopted", "reverted"]


def test_a_plan_that_was_taken_back_is_not_adopted_by_the_job_that_goes_on(tmp_path):
    bad = plan_of(((), (0, 1, 2, 3)), fallback=Fallback(margin=0.2, window=5))
    source, _ = judged(bad, 16, tmp_path)
    source.given = [msgspec.json.encode(bad)]
    assert places(source, steps=3) == [EVEN] * 3
    source.given = [msgspec.json.encode(plan_of(((3,), (0, 1, 2)), version=2))]
    assert places(source, steps=1) == [((3,), (0, 1, 2))]


def test_a_plan_that_brings_less_than_promised_is_accepted_and_reported(tmp_path):
    better = ((0, 1, 2), (3,))
    source, last = judged(plan_of(better, promised_us=1.0, fallback=Fallback(window=5, margin=0.2)), 16, tmp_path)
    assert last == better
    assert source.states == ["adopted", "missed"]
    assert source.statuses[1]["promised_us"] == 1.0


def test_a_plan_that_keeps_its_promise_is_kept(tmp_path):
    source, _ = judged(plan_of(((0, 1, 2), (3,)), fallback=Fallback(window=5, margin=0.2)), 16, tmp_path)
    assert source.states == ["adopted", "kept"]
    assert not source.statuses[1]["reason"]


def test_without_steps_before_it_a_plan_is_not_judged():
    source = QueuedPlans(plan_of(((3,), (0, 1, 2)), fallback=Fallback(window=2)))
    places(source, steps=8)
    assert source.states == ["adopted", "kept"]
    assert "too few steps" in source.statuses[1]["reason"]


def test_a_place_that_takes_no_status_does_not_stop_training(static):
    class Full(QueuedPlans):
        def report_status(self, status):
            raise OutputError("no room")

    with pytest.warns(UserWarning, match="no room"):
        assert trained(Full(None, None, plan_of(((3,), (0, 1, 2))))) == [static, static]


def test_a_codec_that_fp16_cannot_have_is_refused():
    source = QueuedPlans(None, None, plan_of(codec="topk:0.1"))
    assert places(source, amp="fp16")
    assert source.states == ["refused"]


def test_all_ranks_watch_for_plans_or_none_does():
    def body(transport):
        small_trainer(transport=transport, plan=None if transport.rank else QueuedPlans())

    with pytest.raises(MismatchError, match="plan"):
        on_threads(2, body)


def test_a_codec_that_is_taken_back_goes_although_a_newer_plan_waits_for_its_step(tmp_path, monkeypatch):
    judge, codecs = Adoption.step_ended, []
    monkeypatch.setattr(Adoption, "step_ended", lambda one, step, _: judge(one, step, 100.0 if step < 8 else 200.0))
    bad = plan_of(codec="bf16", fallback=Fallback(margin=0.1, window=5))
    later = plan_of(((3,), (0, 1, 2)), version=2, apply_at=20)
    source = QueuedPlans(*[None] * 8, bad, None, later)

    def body(transport):
        trainer = small_trainer(transport=transport, plan=source, prove_every=0)
        for _ in range(24):
            trainer.step()
            if transport.rank == 0:
                codecs.append(trainer.state.codec_spec(trainer.next_step - 1))

    on_threads(2, body)
    assert source.states == ["adopted", "pending", "reverted", "adopted"]
    # At one the guard looks, one settles, five are judged, and what came of them is settled a step later.
    assert codecs.count("bf16") == 8
    assert codecs[-1] == "none"


def known(state, plan, **job):
    """What a job that starts anew makes of a plan that it has told this of before."""
    source = QueuedPlans(plan)
    status = {"state": state, "plan": plan.id, "version": plan.version, "step": 3}
    source.status = lambda: json.dumps(status).encode()
    return places(source, steps=6, **job), source


def test_a_plan_for_other_processes_that_the_job_had_is_not_asked_for_again(monkeypatch):
    monkeypatch.setenv("ESPROF_LAUNCH", '{"folder": "nowhere", "most": 4}')
    plan = plan_of(((0, 1, 2, 3),))  # For one process, and here are two.
    for state in ("kept", "missed"):
        found, source = known(state, plan, drain=Drain())
        assert (found, source.statuses) == ([EVEN] * 6, [])
    # Whoever waits for what comes of it is told.
    for state in ("adopted", "trying"):
        found, source = known(state, plan, drain=Drain())
        assert (found, source.states) == ([EVEN] * 6, ["reverted"])
        assert source.statuses[0]["reason"] == "the job goes on with 2 processes"
    found, source = known("adopted", plan_of(((0, 1, 2, 3),), codec="bf16"), drain=Drain())
    assert source.states == ["kept"]


def test_a_plan_that_the_job_has_kept_is_not_tried_again():
    plan = plan_of(((3,), (0, 1, 2)), fallback=Fallback(window=2, blocks=2))
    found, source = known("kept", plan)
    assert found == [((3,), (0, 1, 2))] * 6
    assert source.states[0] == "adopted"
    found, source = known("trying", plan)
    assert source.states[0] == "trying"


@pytest.mark.parametrize("raw", [b"[" * 100_000, b'{"a":' * 100_000])
def test_a_plan_nested_too_deeply_is_refused(static, raw):
    source = QueuedPlans(None, raw)
    assert trained(source) == [static, static]
    assert source.states == ["refused"]
