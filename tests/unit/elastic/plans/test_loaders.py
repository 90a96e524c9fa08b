"""Plans for the loaders of a running job: workers come and go between two steps, and no bit changes."""

import random

import pytest
import torch
from msgspec.structs import replace
from torchdata.stateful_dataloader import StatefulDataLoader

from esprof.core.errors import UsageError
from esprof.core.plan import Fallback, LoaderBody, check
from esprof.elastic import Loaders
from esprof.elastic.plans.adoption import Adoption
from esprof.reports.live.decisions import plan_back
from esprof.run.logs import HISTORY
from tests.cases.elastic import Samples
from tests.cases.elastic_job import bits, small_trainer
from tests.cases.plans import QueuedPlans, plan_of

STEPS = 8
ALONE, TWO = LoaderBody(workers=0), LoaderBody(workers=2, prefetch=3)


class Augmented(Samples):
    """Samples with noise from two generators, which each worker has of its own."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image + torch.randn_like(image) * random.random(), label


def loader(est, n_est):
    return StatefulDataLoader(Samples(61, tokens=False), batch_size=2)


def augmented():
    return Augmented(61, tokens=False)


def loaders_of(source, steps=STEPS, **options):
    """(bits, the loader) of each step."""
    trainer, found = small_trainer(plan=source, samples=augmented(), **options), []
    for _ in range(steps):
        found.append((*bits(trainer, 1), trainer._placement.loader))
    trainer.close()
    return found


def test_workers_come_and_go_between_two_steps_and_no_bit_changes():
    static = bits(small_trainer(samples=augmented()), STEPS)
    source = QueuedPlans(*[None] * 2, plan_of(workers=2, world=1), *[None] * 2, plan_of(workers=0, world=1, version=2))
    found = loaders_of(source)
    assert [loader for _, loader in found] == [ALONE] * 2 + [TWO] * 3 + [ALONE] * 3
    assert [one for one, _ in found] == static
    assert source.states == ["adopted", "adopted"]


def test_loaders_of_the_script_stay_and_the_plan_is_refused_with_the_reason():
    source = QueuedPlans(None, plan_of(workers=2, world=1))
    trainer = small_trainer(plan=source, samples=Loaders(loader))
    for _ in range(3):
        trainer.step()
    assert source.states == ["refused"]
    assert "Loaders of the script" in source.statuses[0]["reason"]


def test_a_trial_takes_the_workers_back_and_forth(monkeypatch):
    judge = Adoption.step_ended

    def step_ended(adoption, step, took_us):
        workers = trainer[0]._placement.loader.workers
        judge(adoption, step, 10.0 + step % 2 - 5 * (workers > 0))

    monkeypatch.setattr(Adoption, "step_ended", step_ended)
    plan = plan_of(workers=2, world=1, fallback=Fallback(window=4, blocks=2))
    source, trainer = QueuedPlans(*[None] * 8, plan), []
    trainer.append(small_trainer(plan=source))
    found = []
    for _ in range(28):
        trainer[0].step()
        found.append(trainer[0]._placement.loader)
    first = source.statuses[0]["step"]
    assert source.states == ["trying", "kept"]
    assert found[first : first + 16] == ([TWO] * 4 + [ALONE] * 4) * 2
    assert found[-1] == TWO


def test_workers_that_make_steps_longer_go_again(tmp_path, monkeypatch):
    judge = Adoption.step_ended

    def step_ended(adoption, step, took_us):
        judge(adoption, step, 10.0 if found._placement.loader == ALONE else 20.0)

    monkeypatch.setattr(Adoption, "step_ended", step_ended)
    source = QueuedPlans(*[None] * 8, plan_of(workers=2, world=1, fallback=Fallback(window=5)))
    found = small_trainer(plan=source, telemetry=tmp_path)
    for _ in range(20):
        found.step()
    assert source.states == ["adopted", "reverted"]
    assert found._placement.loader == ALONE


def test_a_user_can_take_the_workers_back(tmp_path):
    source = QueuedPlans(None, plan_of(workers=2, world=1))
    trainer = small_trainer(plan=source, telemetry=tmp_path)
    for _ in range(3):
        trainer.step()
    (adopted,) = [event for event in HISTORY.read(tmp_path) if event.what == "adopted"]
    assert plan_back(tmp_path, adopted, adopted.was).parts.loader.body == ALONE


def test_a_plan_that_prefetches_without_workers_is_inconsistent():
    plan = plan_of(workers=0)
    check(plan)
    section = replace(plan.parts.loader, body=LoaderBody(workers=0, prefetch=2))
    with pytest.raises(UsageError, match="without workers"):
        check(replace(plan, parts=replace(plan.parts, loader=section)))
