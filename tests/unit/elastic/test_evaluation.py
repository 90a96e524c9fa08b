"""What a script does between two steps, on one rank or all, leaves the training's bits alone; ranks are threads."""

import random
from functools import cache

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from esprof.core.errors import MismatchError
from esprof.elastic import Assignment
from tests.cases.elastic import Samples, loss_fn, on_threads
from tests.cases.elastic_job import bits, small_trainer

STEPS = 5
PARTS = [[1, 2], [0, 3]]
"""Buffers follow EST 0, which is not on the first rank."""


def evaluate(trainer):
    model = trainer.state.model
    model.eval()
    with torch.no_grad():
        for batch in DataLoader(Samples(9, tokens=False), batch_size=4, shuffle=True):
            loss_fn(model, batch)
    model.train()


def evaluate_with_gradients(trainer):
    model = trainer.state.model
    model.eval()
    loss_fn(model, next(iter(DataLoader(Samples(9, tokens=False), batch_size=4)))).backward()
    model.train()


def evaluate_under_autocast(trainer):
    model = trainer.state.model
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        model.eval()
        model(torch.rand(2, 1, 8, 8))
        model.train()


def evaluate_at_random(trainer):
    """Dropout alone stays on, as for estimates of uncertainty."""
    model = trainer.state.model
    model.eval()
    model.drop.train()
    with torch.no_grad():
        for _ in range(3):
            model(torch.rand(2, 1, 8, 8))
    model.train()


def draw(trainer):
    for _ in range(700):  # Beyond the words that a generator makes at once.
        random.random()
        np.random.rand()
    torch.rand(700), torch.randperm(9), random.gauss(), np.random.randn()


def seed(trainer):
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)


def load_with_workers(trainer):
    list(DataLoader(Samples(9, tokens=False), batch_size=4, shuffle=True, num_workers=1))


def forget_gradients(trainer):
    trainer.state.model.zero_grad(set_to_none=True)


MEDDLING = [
    evaluate,
    evaluate_with_gradients,
    evaluate_under_autocast,
    evaluate_at_random,
    draw,
    seed,
    load_with_workers,
    forget_gradients,
]


@cache
def undisturbed():
    return bits(small_trainer(), STEPS)


RANKS = [
    pytest.param({0}, id="rank 0", marks=pytest.mark.slow),
    pytest.param({1}, id="rank 1"),
    pytest.param({0, 1}, id="all"),
]


@pytest.mark.parametrize("who", RANKS)
@pytest.mark.parametrize("what", MEDDLING)
def test_the_bits_are_as_without(what, who):
    def body(transport):
        trainer, found = small_trainer(transport=transport, assignment=Assignment.of(PARTS)), []
        for step in range(STEPS):
            if step == 3:
                trainer.assign(Assignment.of([[0, 1, 2], [3]]))
            if transport.rank in who:
                what(trainer)
            found += bits(trainer, 1)
        return found

    assert on_threads(len(PARTS), body) == [undisturbed()] * len(PARTS)


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"codec": "topk:0.2"}, {"amp": "bf16"}, {"num_workers": 1}])
def test_nor_do_they_change_with_other_options(options):
    expected, trainer, found = bits(small_trainer(**options), STEPS), small_trainer(**options), []
    for _ in range(STEPS):
        for what in MEDDLING:
            what(trainer)
        found += bits(trainer, 1)
    assert found == expected


def test_a_job_that_goes_on_evaluates_first_or_not(tmp_path):
    first = small_trainer(folder=tmp_path)
    seen = bits(first, 2)
    evaluate(first)
    first.save()
    second = small_trainer(folder=tmp_path)
    for what in MEDDLING:
        what(second)
    assert seen + bits(second, STEPS - 2) == undisturbed()


def test_what_an_evaluation_finds_does_not_depend_on_the_ranks():
    """Generators are seeded by the step between two of them, and buffers are those of EST 0 on all ranks."""

    def found(trainer):
        model = trainer.state.model
        trainer.step()
        model.eval()
        model.drop.train()
        return [model(torch.rand(2, 1, 8, 8)).tolist(), random.random(), np.random.rand()]

    def body(transport):
        return found(small_trainer(transport=transport, assignment=Assignment.of(PARTS)))

    assert on_threads(len(PARTS), body) == [found(small_trainer())] * len(PARTS)


def test_a_model_that_one_rank_leaves_in_eval_mode_is_reported():
    def body(transport):
        trainer = small_trainer(transport=transport, assignment=Assignment.of(PARTS))
        trainer.step()
        if transport.rank == 1:
            trainer.state.model.norm.eval()
        trainer.step()

    with pytest.raises(MismatchError, match=r"step 1.eval is \[\] on rank 0 and \['norm'\] on rank 1"):
        on_threads(2, body)


def test_what_is_in_eval_mode_on_all_ranks_stays_so():
    def body(transport):
        trainer = small_trainer(transport=transport, assignment=Assignment.of(parts))
        trainer.state.model.norm.eval()
        return bits(trainer, 2)

    parts = [[0, 1, 2, 3]]
    (alone,) = on_threads(1, body)
    parts = PARTS
    assert on_threads(2, body) == [alone] * 2
