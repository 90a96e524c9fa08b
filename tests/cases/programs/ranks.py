"""Ranks that differ from the others, and ranks that communicate outside the runtime."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn

from tests.cases.programs.script import (
    WIDTH,
    Points,
    Script,
    either,
    equal,
    like,
    mean_loss,
    net,
    rank,
    refused,
    reported,
    sgd,
)


def _on_rank_1(edit, after=2):
    """What edits the trainer's job on that rank alone, after one step."""

    def between(trainer, step):
        if rank() == 1 and step == after:
            edit(trainer.state.model, trainer.state.optimizers[0])

    return between


@torch.no_grad()
def _shrink(model, optimizer):
    model[0].weight.mul_(0.9)


# The rank's number.


@refused
def rank_in_the_loss():
    """The loss is weighted by the rank."""
    return Script(loss=lambda model, batch: mean_loss(model, batch) * (1 + rank()))


@like("rank_in_the_loss")
@refused
def rank_in_forward():
    """Dropout's probability depends on the rank."""

    class Dropped(nn.Dropout):
        def forward(self, x):
            return x * (1 + rank())

    return Script(net(Dropped()))


@like("other_samples_on_a_rank")
@refused
def rank_in_the_samples():
    """The dataset adds the rank to its points."""

    class Ranked(Points):
        def __getitem__(self, index):
            point, kind = super().__getitem__(index)
            return point + rank(), kind

    return Script(data=Ranked())


@refused
def noise_by_rank():
    """The loss seeds its noise by the rank, as scripts for DDP do."""

    def loss(model, batch):
        torch.manual_seed(rank())
        return mean_loss(model, batch)

    return Script(net(nn.Dropout(0.3)), loss)


# What the ranks were made of.


class Shifted(Points):
    """Points that are elsewhere on rank 1, as where a file is another version there."""

    def __getitem__(self, index):
        point, kind = super().__getitem__(index)
        return point + self.shift, kind

    def __init__(self):
        self.shift = 0.5 * rank()


@refused
def other_samples_on_a_rank():
    """Rank 1 has read another version of the data."""
    return Script(data=Shifted())


@refused
def fewer_samples_on_a_rank():
    """Rank 1 lacks some of the data."""

    class Fewer(Points):
        def __len__(self):
            return 40 - 9 * here

    here = rank()
    return Script(data=Fewer())


@either
def other_weights_on_a_rank():
    """Each rank has started with a different seed."""
    torch.manual_seed(rank())
    return Script(net())


@refused
def other_model_on_a_rank():
    """Rank 1 has another activation."""
    return Script(net(nn.ReLU() if rank() else nn.Tanh()))


@like("other_seed_on_a_rank")
@refused
def other_learning_rate_on_a_rank():
    """Rank 1 begins with another learning rate."""
    return Script(optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1 + rank(), momentum=0.9))


@refused
def other_seed_on_a_rank():
    """Rank 1 passes another seed."""
    return Script(net(nn.Dropout(0.3)), batches={"seed": rank()})


@refused
def other_loss_on_a_rank():
    """Rank 1 has another loss function."""
    if rank():
        return Script(loss=lambda model, batch: 2 * mean_loss(model, batch))
    return Script()


# What one rank does between steps.


@like("weights_edited_on_a_rank_at_the_end")
@refused
def weights_edited_on_a_rank():
    """Rank 1 shrinks a weight after step 2."""
    return Script(between=_on_rank_1(_shrink))


@refused
def weights_edited_on_a_rank_at_the_end():
    """Rank 1 shrinks a weight before the last step."""
    return Script(between=_on_rank_1(_shrink, after=4))


@either
def statistics_edited_on_a_rank():
    """Rank 1 resets BatchNorm's statistics after step 2."""
    return Script(
        net(nn.BatchNorm1d(WIDTH).eval()), between=_on_rank_1(lambda model, optimizer: model[1].running_var.fill_(2.0))
    )


@like("momentum_edited_on_a_rank")
@refused
def learning_rate_changed_on_a_rank():
    """Rank 1 halves the learning rate after step 2."""

    def halve(model, optimizer):
        optimizer.param_groups[0]["lr"] *= 0.5

    return Script(between=_on_rank_1(halve))


@refused
def momentum_edited_on_a_rank():
    """Rank 1 drops the optimizer's state after step 2."""
    return Script(between=_on_rank_1(lambda model, optimizer: optimizer.state.clear()))


@refused
def eval_mode_on_a_rank():
    """Rank 1 forgets to train after it has evaluated."""
    return Script(net(nn.Dropout(0.3)), between=_on_rank_1(lambda model, optimizer: model.eval()))


@refused
def attribute_changed_on_a_rank():
    """Rank 1 changes dropout's probability after step 2."""
    return Script(net(nn.Dropout(0.3)), between=_on_rank_1(lambda model, optimizer: setattr(model[1], "p", 0.6)))


@either
def draws_on_a_rank():
    """Rank 1 draws random numbers between steps, for a sample that it prints."""
    return Script(net(nn.Dropout(0.3)), between=_on_rank_1(lambda model, optimizer: torch.randn(3)))


# Ranks that talk to each other.


@equal
def reduced_between_steps():
    """All ranks add up a figure for the log after each step."""
    return Script(between=lambda trainer, step: dist.all_reduce(torch.ones(1)))


@like("reduced_between_steps")
@equal
def barrier_between_steps():
    """All ranks wait for each other after each step."""
    return Script(between=lambda trainer, step: dist.barrier())


def _talking(talk):
    def loss(model, batch):
        value = mean_loss(model, batch)
        talk(value)
        return value

    return Script(loss=loss)


@refused
def reduced_in_the_loss():
    """The loss is added up over ranks, for the log: ranks with unlike numbers of ESTs call unlike often."""
    return _talking(lambda value: dist.all_reduce(value.detach().clone()))


@like("reduced_in_the_loss")
@refused
def barrier_in_the_loss():
    """The loss waits for the other ranks."""
    return _talking(lambda value: dist.barrier())


@refused
def gathered_in_the_loss():
    """Contrastive learning: the other ranks' outputs are negatives."""

    def loss(model, batch):
        points, _ = batch
        mine = model(points)
        all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(all_of_them, mine.detach())
        return (mine @ torch.cat(all_of_them).T).logsumexp(1).mean()

    return Script(loss=loss)


@refused
def functional_collective_in_the_loss():
    """The same as an operator that torch.compile knows."""
    return _talking(lambda value: functional.all_reduce(value.detach(), "sum", dist.group.WORLD).wait())


@reported
def world_size_in_the_loss():
    """The loss is divided by the number of ranks, as DDP's users do who add gradients up."""
    return Script(loss=lambda model, batch: mean_loss(model, batch) / dist.get_world_size())


@like("world_size_in_the_loss")
@reported
def world_size_in_the_learning_rate():
    """The learning rate grows with the number of ranks."""

    def optimizer(model):
        made = sgd(model)
        made.param_groups[0]["lr"] *= dist.get_world_size()
        return made

    return Script(optimizer=optimizer)
