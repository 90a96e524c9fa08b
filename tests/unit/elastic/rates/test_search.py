"""A search for the learning rate: trials leave no trace, and its choices do not depend on where ESTs run."""

import math

import pytest
import torch

from esprof.core.errors import UsageError
from esprof.elastic import Assignment, LearningRateSearch
from esprof.elastic.rates.rewind import mark, rewind, trial
from esprof.elastic.rates.search import RateTrial, _close_to_best
from esprof.run.logs import HISTORY
from tests.cases.elastic import loss_fn, on_threads, state_hash
from tests.cases.elastic_job import bits, small_trainer

OPTIONS = {"low": 1e-4, "high": 1e-1, "candidates": 3, "trial_steps": 8, "stage_steps": 10}


def state_of(trainer) -> str:
    return state_hash(trainer.state.model, trainer.state.optimizers[0])


def searched(transport=None, parts=((0, 1, 2, 3),), epochs=2, **options):
    """(bits of each step that counts, stages) of a search."""
    trainer = small_trainer(transport=transport, assignment=Assignment.of([list(part) for part in parts]), **options)
    search = LearningRateSearch(trainer, **OPTIONS)
    found = [(result.losses, state_of(trainer)) for result in search.fit(epochs)]
    return found, search.stages


def test_steps_after_a_rewind_have_the_bits_of_the_first_time():
    trainer = small_trainer()
    trainer.step()
    start = mark(trainer)
    first = bits(trainer, 4)
    assert trainer.state.proof.proven == 1
    rewind(trainer, start)
    assert trainer.next_step == 1
    assert trainer.state.proof.proven == 0
    assert bits(trainer, 4) == first
    rewind(trainer, start)
    assert bits(trainer, 4) == first


@pytest.mark.slow
def test_a_search_trains_as_the_same_rates_do_without_trials():
    found, stages = searched()
    assert [stage.step for stage in stages] == [0]
    trainer = small_trainer()
    alone = []
    for number in range(len(found)):
        for stage in stages:
            if stage.step == number:
                trainer.state.optimizers[0].param_groups[0]["lr"] = stage.rate
        alone += bits(trainer, 1)
    assert found == alone


@pytest.mark.slow
def test_three_ranks_choose_and_train_like_one():
    alone, stages = searched()
    for found, chosen in on_threads(3, lambda transport: searched(transport, ((0,), (1, 2), (3,)))):
        assert found == alone
        assert chosen == stages


def test_all_groups_keep_the_ratio_of_their_rates():
    def optimizer(parameters):
        first, *rest = parameters
        return torch.optim.SGD([{"params": [first], "lr": 0.2}, {"params": rest, "lr": 0.1}])

    trainer = small_trainer(optimizer=optimizer)
    search = LearningRateSearch(trainer, **OPTIONS)
    next(search.fit(2))
    first, second = (group["lr"] for group in trainer.state.optimizers[0].param_groups)
    assert first == search.stages[0].rate == pytest.approx(2 * second)


def test_a_rate_with_which_the_loss_becomes_infinite_is_not_chosen():
    trainer = small_trainer(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), clip_norm=None)
    search = LearningRateSearch(trainer, **OPTIONS | {"high": 1e30})
    next(search.fit(2))
    (stage,) = search.stages
    assert math.isinf(max(one.score for one in stage.trials))
    assert stage.rate == 1e-4
    assert stage.tried_steps < 3 * 8


def infinite(model, batch):
    return loss_fn(model, batch) * math.inf


def test_infinite_losses_with_all_rates_are_an_error():
    search = LearningRateSearch(small_trainer(loss=infinite, clip_norm=None), **OPTIONS)
    with pytest.raises(UsageError, match=r"the loss became infinite with all learning rates from 0\.0001 to 0\.1"):
        next(search.fit(2))


def test_too_few_steps_are_trained_without_a_search():
    trainer = small_trainer()
    search = LearningRateSearch(trainer, **OPTIONS | {"trial_steps": 40, "stage_steps": 40})
    assert len(list(search.fit(1))) == trainer.order.steps_per_epoch < 40
    assert search.stages == ()


@pytest.mark.slow
def test_trials_are_in_neither_the_hash_log_nor_the_result(tmp_path):
    trainer = small_trainer(hash_log=tmp_path / "log.jsonl")
    results = list(LearningRateSearch(trainer, **OPTIONS).fit(2))
    trainer.close()
    assert [result.step for result in results] == list(range(len(results)))
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 1 + len(results)


@pytest.mark.slow
def test_the_history_of_the_job_has_what_was_tried(tmp_path):
    trainer = small_trainer(telemetry=tmp_path / "run")
    next(LearningRateSearch(trainer, **OPTIONS).fit(2))
    trainer.close()
    (event,) = [event for event in HISTORY.read(tmp_path / "run") if event.what == "searched"]
    assert event.step == 0
    assert "mean loss by rate: 0.0001: " in event.reason


def test_a_job_whose_ests_have_moved_does_not_go_back():
    def body(transport):
        trainer = small_trainer(transport=transport, assignment=Assignment.of([[0, 1], [2, 3]]))
        start = mark(trainer)
        with pytest.raises(UsageError, match="ESTs have moved since step 0"), trial(trainer, start):
            trainer.assign(Assignment.of([[0], [1, 2, 3]]))
        return True

    assert all(on_threads(2, body))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"low": 0.0}, "are no range"),
        ({"high": math.inf}, "are no range"),
        ({"low": 1.0}, "are no range"),
        ({"candidates": 1}, "cannot be searched"),
        ({"trial_steps": 7}, "cannot be searched"),
        ({"stage_steps": 7}, "cannot be searched"),
    ],
)
def test_values_out_of_range_are_refused(options, reason):
    with pytest.raises(UsageError, match=reason):
        LearningRateSearch(small_trainer(), **OPTIONS | options)


def test_a_scheduler_and_periodic_checkpoints_are_refused(tmp_path):
    with pytest.raises(UsageError, match="the trainer has a scheduler"):
        LearningRateSearch(
            small_trainer(scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2)), **OPTIONS
        )
    with pytest.raises(UsageError, match="writes checkpoints by itself"):
        LearningRateSearch(small_trainer(folder=tmp_path, every=2), **OPTIONS)
    LearningRateSearch(small_trainer(folder=tmp_path), **OPTIONS)


def test_candidates_are_close_if_noise_that_they_share_does_not_part_them():
    noise = [0.3, -0.2, 0.1, -0.4, 0.2, 0.0, -0.1, 0.3]

    def tried(rate, losses):
        return RateTrial(rate, tuple(losses), None)

    best = tried(0.1, [1 + one for one in noise])
    shifted = tried(0.2, [1.01 + one for one in noise])
    mixed = tried(0.3, [1.01 + one for one in [*noise[:4], *reversed(noise[4:])]])
    dead = tried(0.4, [math.nan])
    assert _close_to_best([shifted, best, dead]) == [0.1]
    assert _close_to_best([mixed, best]) == [0.1, 0.3]
    assert _close_to_best([dead]) == []
