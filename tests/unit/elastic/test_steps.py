"""What a step refuses, what it says of itself, and what is left of a trainer whose step failed or that was closed."""

import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from esprof.core.errors import UsageError
from tests.cases.elastic import loss_fn
from tests.cases.elastic_job import bits, small_trainer


class Recomputed(nn.Module):
    """Uses a layer twice, and computes it again in backward."""

    reentrant = False

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.head = nn.Linear(64, 5)

    def forward(self, images):
        x = images.flatten(1).requires_grad_()
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=self.reentrant)
        return self.head(x)


class Reentrant(Recomputed):
    reentrant = True


def test_a_gradient_that_comes_twice_is_refused():
    small_trainer(model=Recomputed).step()
    with pytest.raises(
        UsageError, match=r"the gradient of layer.\w+ was computed twice in one backward pass"
    ) as raised:
        small_trainer(model=Reentrant).step()
    assert raised.value.remedy.startswith("Pass use_reentrant=False")


def clearing(model, batch):
    model.zero_grad()
    return loss_fn(model, batch)


def test_clearing_gradients_before_they_are_computed_changes_nothing():
    assert bits(small_trainer(loss=clearing), 3) == bits(small_trainer(), 3)


def test_clearing_gradients_between_steps_changes_nothing():
    trainer, found = small_trainer(), []
    for _ in range(3):
        trainer.state.optimizers[0].zero_grad()
        found += bits(trainer, 1)
    assert found == bits(small_trainer(), 3)


@pytest.mark.parametrize("trained", [True, False])
def test_other_parameters_to_train_than_at_the_start_are_refused(trained):
    def model():
        made = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
        made[1].bias.requires_grad_(not trained)
        return made

    trainer = small_trainer(model=model)
    trainer.step()
    trainer.state.model[1].bias.requires_grad_(trained)
    with pytest.raises(UsageError, match=rf"1.bias was {'un' * trained}frozen after ElasticTrainer was made"):
        trainer.step()
    trainer.state.model[1].bias.requires_grad_(not trained)
    trainer.step()


def failing(losses):
    """A loss that is, call by call, the real one times these, then the real one."""
    factors = iter(losses)

    def loss(model, batch):
        return loss_fn(model, batch) * next(factors, 1)

    return loss


def test_the_loss_of_a_step_is_nan_where_one_of_its_ests_is():
    result = small_trainer(loss=failing([1, math.nan]), prove_every=0).step()
    assert [math.isnan(loss) for loss in result.losses] == [False, True, False, False]
    assert math.isnan(result.loss)


def test_an_est_without_samples_does_not_count_in_the_loss():
    trainer = small_trainer(drop_last=False)
    (*_, last) = trainer.fit(epochs=1)
    assert last.samples == (2, 1, 1, 1)
    trainer = small_trainer(n_est=7, batch_size=3, drop_last=False)
    (*_, last) = trainer.fit(epochs=1)
    assert last.samples == (3, 3, 3, 3, 3, 2, 2)
    trainer = small_trainer(n_est=6, batch_size=2, drop_last=False)
    (*_, last) = trainer.fit(epochs=1)
    assert last.samples == (1, 0, 0, 0, 0, 0)
    assert last.loss == last.losses[0]
    assert all(map(math.isnan, last.losses[1:]))


def test_after_a_step_that_failed_there_is_no_other(tmp_path):
    boom = iter([False, False, True])

    def loss(model, batch):
        if next(boom, False):
            raise RuntimeError("out of memory")
        return loss_fn(model, batch)

    trainer = small_trainer(loss=loss, folder=tmp_path)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.step()
    for call in (trainer.step, trainer.save, lambda: trainer.assign(trainer.assignment)):
        with pytest.raises(UsageError, match="this ElasticTrainer cannot go on: one of its steps failed"):
            call()
    assert not list(tmp_path.iterdir())


def test_a_second_trainer_of_a_model_is_not_disturbed_by_the_first():
    alone = bits(small_trainer(), 3)
    first = small_trainer()
    second = small_trainer(model=lambda: first.state.model)
    with torch.no_grad():
        for parameter, value in zip(
            first.state.model.parameters(), small_trainer().state.model.parameters(), strict=True
        ):
            parameter.copy_(value)
    assert bits(second, 3) == alone


def test_a_backward_pass_of_the_script_s_own_changes_nothing():
    trainer, found = small_trainer(), []
    for _ in range(3):
        found += bits(trainer, 1)
        trainer.state.model.eval()
        loss_fn(trainer.state.model, (torch.ones(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64))).backward()
        trainer.state.model.train()
    assert found == bits(small_trainer(), 3)


def test_a_closed_trainer_lets_go_of_its_model_and_files(tmp_path):
    trainer = small_trainer(folder=tmp_path / "saved", hash_log=tmp_path / "log.jsonl", every=1)
    trainer.step()
    trainer.close()
    trainer.close()
    assert [path.name for path in (tmp_path / "saved").glob("step-*")] == ["step-00000001"]
    assert not any(parameter._post_accumulate_grad_hooks for parameter in trainer.state.model.parameters())
    with pytest.raises(UsageError, match="it was closed"):
        trainer.step()
