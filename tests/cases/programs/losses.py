"""Loss functions: what they return, what they remember, and what they do to gradients and batches."""

import copy
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from tests.cases.programs.script import Points, Script, either, equal, like, mean_loss, net, refused

# What they return.


@like("loss_with_options")
@equal
def label_smoothing():
    """Cross entropy with smoothed labels."""
    return Script(loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1))


@like("loss_in_a_dict")
@refused
def loss_that_is_none():
    """A forgotten return."""
    return Script(loss=lambda model, batch: (mean_loss(model, batch), None)[1])


@refused
def loss_in_a_dict():
    """Lightning's way: {"loss": …}."""
    return Script(loss=lambda model, batch: {"loss": mean_loss(model, batch)})


@like("loss_in_a_dict")
@refused
def loss_as_a_float():
    """An .item() too early."""
    return Script(loss=lambda model, batch: mean_loss(model, batch).item())


@refused
def loss_of_each_sample():
    """reduction="none": a vector."""
    return Script(loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"))


@refused
def loss_without_a_graph():
    """A loss that was detached."""
    return Script(loss=lambda model, batch: mean_loss(model, batch).detach())


@either
def loss_of_one_element():
    """A loss of shape (1,), which backward takes."""
    return Script(loss=lambda model, batch: mean_loss(model, batch).view(1))


# What they remember from one call to the next.


@equal
def schedule_by_calls():
    """A weight that falls with the number of calls: a process that runs more ESTs is further on."""
    calls = []

    def loss(model, batch):
        calls.append(None)
        return mean_loss(model, batch) * 0.95 ** len(calls)

    return Script(loss=loss)


@equal
def schedule_by_steps():
    """The same by the trainer's number of the step."""
    made = []
    return Script(loss=lambda model, batch: mean_loss(model, batch) * 0.95 ** made[0].next_step, prepare=made.append)


@equal
def calls_counted_for_the_log():
    """A counter that nothing reads."""
    calls = []

    def loss(model, batch):
        calls.append(None)
        return mean_loss(model, batch)

    return Script(loss=loss)


@like("schedule_by_calls")
@equal
def batch_of_the_call_before():
    """Points are contrasted with those of the call before."""
    last = [torch.zeros(2, 8)]

    def loss(model, batch):
        points, kinds = batch
        before, last[0] = last[0], points
        return F.cross_entropy(model(points - 0.1 * before), kinds)

    return Script(loss=loss)


@like("schedule_by_calls")
@equal
def running_baseline():
    """The loss is divided by a running mean of losses, as reinforcement learning has it."""
    mean = [1.0]

    def loss(model, batch):
        value = mean_loss(model, batch)
        mean[0] = 0.9 * mean[0] + 0.1 * value.item()
        return value / mean[0]

    return Script(loss=loss)


@equal
def state_of_a_callable():
    """A loss that is an object with a counter which matters."""

    class Annealed:
        calls = 0

        def __call__(self, model, batch):
            self.calls += 1
            return mean_loss(model, batch) * 0.95**self.calls

    return Script(loss=Annealed())


@refused
def teacher_that_follows_each_call():
    """An average of the weights that is updated in the loss, once a call."""
    model = net()
    teacher = copy.deepcopy(model).requires_grad_(False)

    def loss(model, batch):
        with torch.no_grad():
            teacher[0].weight.lerp_(model[0].weight, 0.1).mul_(0.99)
        return mean_loss(model, batch) + F.mse_loss(model(batch[0]), teacher(batch[0]))

    return Script(model, loss)


@equal
def loss_with_options():
    """A partial of a function."""
    return Script(loss=partial(_tempered, temperature=2.0))


def _tempered(model, batch, temperature):
    points, kinds = batch
    return F.cross_entropy(model(points) / temperature, kinds)


@like("loss_with_options")
@equal
def loss_that_is_a_module():
    """A criterion with constants of its own."""
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))
    return Script(loss=lambda model, batch: criterion(model(batch[0]), batch[1]))


# What they do to gradients, weights and batches.


def _zeroing(set_to_none, accumulate):
    def loss(model, batch):
        model.zero_grad(set_to_none=set_to_none)
        return mean_loss(model, batch)

    return Script(loss=loss, batches={"accumulate": accumulate})


@refused
def zero_grad_in_the_loss():
    """zero_grad() before each forward: what was accumulated is lost."""
    return _zeroing(set_to_none=True, accumulate=2)


@either
def zeros_in_the_loss():
    """zero_grad(set_to_none=False) before each forward: what was accumulated is lost, on all assignments alike."""
    return _zeroing(set_to_none=False, accumulate=2)


@refused
def backward_in_the_loss():
    """The loss calls backward itself, as the loop that it was taken from did."""

    def loss(model, batch):
        value = mean_loss(model, batch)
        value.backward(retain_graph=True)
        return value

    return Script(loss=loss)


@equal
def optimizer_in_the_loss():
    """The loss begins with the optimizer's step, for the batch before; the trainer has taken those gradients away."""
    made = []

    def loss(model, batch):
        made[0].state.optimizers[0].step()
        return mean_loss(model, batch)

    return Script(loss=loss, prepare=made.append)


@equal
def gradient_penalty():
    """autograd.grad with a graph of its own."""

    def loss(model, batch):
        points, kinds = batch
        points = points.requires_grad_()
        value = F.cross_entropy(model(points), kinds)
        (slope,) = torch.autograd.grad(value, points, create_graph=True)
        return value + slope.square().sum()

    return Script(loss=loss)


@equal
def batch_in_place():
    """The loss normalises its batch in place."""

    def loss(model, batch):
        points, kinds = batch
        return F.cross_entropy(model(points.sub_(points.mean()).mul_(2)), kinds)

    return Script(loss=loss)


@refused
def samples_in_place():
    """The loss writes into tensors that the dataset keeps: what a process has seen is changed for good."""

    class Kept(Points):
        def __init__(self):
            self.points = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))

        def __getitem__(self, index):
            return self.points[index], index % 3

    def loss(model, batch):
        points = torch.stack([point.mul_(1.1) for point, _ in batch])
        return F.cross_entropy(model(points), torch.tensor([kind for _, kind in batch]))

    return Script(loss=loss, data=Kept(), batches={"collate_fn": list})


@like("gradient_penalty")
@equal
def loss_over_the_weights():
    """Weight decay as a term of the loss."""
    return Script(
        loss=lambda model, batch: mean_loss(model, batch) + 0.01 * sum(p.square().sum() for p in model.parameters())
    )


@equal
def two_forwards():
    """R-Drop: the same batch twice, with two dropouts."""

    def loss(model, batch):
        points, kinds = batch
        first, second = model(points), model(points)
        return F.cross_entropy(first, kinds) + F.mse_loss(first, second)

    return Script(net(nn.Dropout(0.3)), loss)
