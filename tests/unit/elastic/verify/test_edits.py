"""Weights that change where only an update may change them."""

import pytest
import torch
from torch import nn

from esprof.core.errors import MismatchError, UsageError
from tests.cases.elastic import loss_fn, on_threads
from tests.cases.elastic_job import Net, adamw, bits, small_trainer


class Bounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 64, max_norm=1.0)
        self.head = nn.Linear(64, 5)

    def forward(self, batch):
        return self.head(batch.flatten(1) + self.embed(torch.zeros(len(batch), dtype=torch.long)))


class Edits(Net):
    by_data = False

    def forward(self, images):
        if self.by_data:
            self.head.bias.data += 0.1
        else:
            with torch.no_grad():
                self.head.bias += 0.1
        return super().forward(images)


class EditsData(Edits):
    by_data = True


def test_weights_that_forward_changes_are_refused():
    with pytest.raises(UsageError, match=r"^head.bias changed while EST 0 computed its gradient"):
        small_trainer(model=lambda: Edits(5)).step()
    with pytest.raises(UsageError, match=r"^embed.weight changed while EST 0 computed its gradient"):
        small_trainer(model=Bounded).step()


def test_changes_that_torch_does_not_note_show_when_the_step_is_run_again():
    with pytest.raises(UsageError, match="of EST 3 differed when step 0 was run a second time"):
        small_trainer(model=lambda: EditsData(5)).step()


def stepping(parameters):
    """An optimizer in the backward pass: each parameter is updated as its gradient is there."""
    parameters = list(parameters)
    for parameter in parameters:
        own = torch.optim.SGD([parameter], 0.1)
        parameter.register_post_accumulate_grad_hook(lambda _, own=own: own.step())
    return torch.optim.SGD(parameters, 0.0)


def test_an_optimizer_within_the_backward_pass_is_refused():
    with pytest.raises(UsageError, match="changed while EST 0 computed its gradient"):
        small_trainer(optimizer=stepping).step()


def test_a_hook_on_a_parameter_counts_before_the_trainer_and_is_refused_after_it():
    def hooked(parameters):
        parameters = list(parameters)
        parameters[0].register_post_accumulate_grad_hook(halve)
        return adamw(parameters)

    def halve(parameter):
        parameter.grad.mul_(0.5)

    assert bits(small_trainer(optimizer=hooked), 2) != bits(small_trainer(), 2)
    trainer = small_trainer()
    trainer.step()
    trainer.state.model.conv.bias.register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(UsageError, match=r"a hook on conv.bias .* was registered after the trainer was made"):
        trainer.step()


def test_parameters_that_an_optimizer_gets_later_are_refused():
    trainer = small_trainer()
    trainer.step()
    trainer.state.optimizers[0].add_param_group({"params": nn.Linear(2, 2).parameters()})
    with pytest.raises(UsageError, match="group 1 of AdamW has parameters that the model did not have"):
        trainer.step()


def edited(ranks, edit):
    """What each of two ranks is told, or comes to, where `ranks` make `edit` between the second and the third step."""

    def body(transport):
        trainer = small_trainer(transport=transport)
        found = bits(trainer, 2)
        if transport.rank in ranks:
            with torch.no_grad():
                edit(trainer.state.model)
        try:
            return found + bits(trainer, 2)
        except MismatchError as error:
            return error.reason

    return on_threads(2, body)


@pytest.mark.parametrize(
    ("edit", "name"),
    [
        (lambda model: model.head.weight.mul_(0.5), "head.weight"),
        (lambda model: model.norm.running_mean.zero_(), "norm.running_mean"),
    ],
)
def test_a_rank_that_changes_the_model_alone_is_reported_and_all_ranks_may(edit, name):
    first, second = edited([1], edit)
    assert first == second
    assert f"step 2.change of {name} is" in first
    first, second = edited([0, 1], edit)
    assert first == second
    assert len(first) == 4


def test_a_rank_that_changes_the_model_unnoticed_is_reported_when_a_step_is_verified():
    def body(transport):
        trainer = small_trainer(transport=transport, prove_every=4)
        bits(trainer, 3)
        if transport.rank:
            trainer.state.model.head.weight.data[0] += 1
        trainer.step()
        with pytest.raises(MismatchError, match=r"step 4.value of \S+ is \w+ on rank 0 and \w+ on rank 1"):
            trainer.step()

    on_threads(2, body)


@pytest.mark.parametrize("to_none", [True, False])
def test_clearing_gradients_between_two_micro_batches_is_refused(to_none):
    def clearing(model, batch):
        model.zero_grad(set_to_none=to_none)
        return loss_fn(model, batch)

    with pytest.raises(UsageError, match=r"(was replaced while|changed while its loss)") as raised:
        small_trainer(loss=clearing, accumulate=2).step()
    assert raised.value.remedy.startswith("Leave zero_grad()")


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (lambda model, batch: None, "NoneType"),
        (lambda model, batch: {"loss": loss_fn(model, batch)}, "dict"),
        (lambda model, batch: loss_fn(model, batch).item(), "float"),
        (lambda model, batch: model(batch[0]), r"a tensor of shape \[2, 5\]"),
        (lambda model, batch: loss_fn(model, batch).detach(), "a tensor without a gradient"),
    ],
)
def test_what_a_loss_function_must_return_is_said(loss, found):
    with pytest.raises(UsageError, match=f"the loss function returned {found}") as raised:
        small_trainer(loss=loss).step()
    assert "scalar tensor" in raised.value.remedy
