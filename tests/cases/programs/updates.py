"""How weights are updated, and what scripts do between steps, alike on all ranks."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR

from esprof.elastic import Gradients
from tests.cases.programs.script import KINDS, WIDTH, Script, either, equal, like, mean_loss, net, refused


def _model(trainer):
    return trainer.state.model


def _optimizer(trainer):
    return trainer.state.optimizers[0]


@equal
def adam_with_groups():
    """Two groups of parameters with a learning rate each."""

    def optimizer(model):
        return torch.optim.AdamW(
            [{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[2].parameters(), "lr": 1e-2}]
        )

    return Script(optimizer=optimizer)


@like("adam_with_groups")
@equal
def scheduler():
    """A learning rate that falls every second step."""
    return Script(scheduler=lambda optimizer: StepLR(optimizer, 2, 0.5))


@equal
def clipped_norm():
    """The step's whole gradient is bounded."""
    return Script(options={"gradients": Gradients(clip_norm=0.1)})


@equal
def bf16():
    """autocast to bf16."""
    return Script(net(nn.Dropout(0.3)), options={"gradients": Gradients(amp="bf16")})


@equal
def fp16():
    """autocast to fp16 with a loss scaler."""
    return Script(options={"gradients": Gradients(amp="fp16")})


@like("bf16")
@equal
def own_autocast():
    """The loss enters autocast itself."""

    def loss(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return mean_loss(model, batch)

    return Script(loss=loss)


@equal
def accumulation():
    """Three batches a step, with BatchNorm and dropout."""
    return Script(net(nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Dropout(0.3))), batches={"accumulate": 3})


@equal
def encoded_gradients():
    """Gradients cut to the largest tenth, with a residual for each EST."""
    return Script(options={"gradients": Gradients(codec="topk:0.1")})


# Between steps, alike on all ranks.


@like("temperature_by_hand")
@equal
def learning_rate_by_hand():
    """The script halves the learning rate after step 2."""

    def between(trainer, step):
        if step == 2:
            for group in _optimizer(trainer).param_groups:
                group["lr"] *= 0.5

    return Script(between=between)


@equal
def temperature_by_hand():
    """The script sets an attribute that forward reads."""

    class Tempered(nn.Module):
        temperature = 1.0

        def forward(self, x):
            return x / self.temperature

    def between(trainer, step):
        _model(trainer)[1].temperature = 1.0 + step

    return Script(net(Tempered()), between=between)


@equal
def evaluation_now_and_then():
    """The script evaluates the model that it trains, and continues."""

    def between(trainer, step):
        _model(trainer).eval()
        with torch.no_grad():
            _model(trainer)(torch.ones(3, WIDTH))
        _model(trainer).train()

    return Script(net(nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Dropout(0.3))), between=between)


@like("evaluation_now_and_then")
@equal
def batch_norm_that_stops():
    """BatchNorm switches to eval mode after step 2, on all ranks."""

    def between(trainer, step):
        if step == 2:
            _model(trainer)[1].eval()

    return Script(net(nn.BatchNorm1d(WIDTH)), between=between)


@like("statistics_reset_by_all")
@equal
def weights_shrunk_by_all():
    """All ranks shrink the weights between steps."""

    def between(trainer, step):
        with torch.no_grad():
            for parameter in _model(trainer).parameters():
                parameter.mul_(0.99)

    return Script(between=between)


@equal
def statistics_reset_by_all():
    """All ranks reset BatchNorm's statistics."""

    def between(trainer, step):
        if step == 2:
            _model(trainer)[1].reset_running_stats()

    return Script(net(nn.BatchNorm1d(WIDTH, momentum=None)), between=between)


@equal
def averaged_teacher():
    """A teacher that is the average of the weights, updated between steps, and distilled from."""
    model = net()
    teacher = copy.deepcopy(model).requires_grad_(False)

    def loss(model, batch):
        return mean_loss(model, batch) + F.mse_loss(model(batch[0]), teacher(batch[0]))

    def between(trainer, step):
        with torch.no_grad():
            for mine, its in zip(teacher.parameters(), _model(trainer).parameters(), strict=True):
                mine.lerp_(its, 0.1)

    return Script(model, loss, between=between)


@like("optimizer_restored_by_all")
@equal
def momentum_reset():
    """The optimizer's state is dropped after step 2, on all ranks."""

    def between(trainer, step):
        if step == 2:
            _optimizer(trainer).state.clear()

    return Script(between=between)


@like("model_that_grows")
@either
def layer_that_joins_the_optimizer():
    """A layer that was frozen trains from step 2 on, in a group of its own."""

    def optimizer(model):
        model[0].requires_grad_(False)
        return torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9)

    def between(trainer, step):
        if step == 2:
            layer = _model(trainer)[0].requires_grad_(True)
            _optimizer(trainer).add_param_group({"params": list(layer.parameters())})

    return Script(optimizer=optimizer, between=between)


@either
def model_that_grows():
    """A new layer is put into the model after step 2, and into the optimizer."""

    def between(trainer, step):
        if step == 2:
            torch.manual_seed(5)
            layer = nn.Linear(KINDS, KINDS)
            _model(trainer).append(layer)
            _optimizer(trainer).add_param_group({"params": list(layer.parameters())})

    return Script(between=between)


@either
def weights_put_in_place_of_the_old():
    """The script gives a layer a new weight, which the optimizer does not know."""

    def between(trainer, step):
        if step == 2:
            layer = _model(trainer)[2]
            layer.weight = nn.Parameter(layer.weight.detach() * 0.5)

    return Script(between=between)


@refused
def layer_frozen_on_the_way():
    """A layer stops to train after step 2."""

    def between(trainer, step):
        if step == 2:
            _model(trainer)[0].requires_grad_(False)

    return Script(between=between)


@refused
def more_threads_on_the_way():
    """Kernels get another thread after step 2."""

    def between(trainer, step):
        if step == 2:
            torch.set_num_threads(2)

    return Script(between=between)


@refused
def kernels_let_loose():
    """The script takes back what keeps kernels deterministic."""

    def between(trainer, step):
        if step == 2:
            torch.use_deterministic_algorithms(False)

    return Script(between=between)


@equal
def optimizer_restored_by_all():
    """All ranks load model and optimizer as they were two steps before."""
    kept = {}

    def between(trainer, step):
        if step == 1:
            kept["model"] = copy.deepcopy(_model(trainer).state_dict())
            kept["optimizer"] = copy.deepcopy(_optimizer(trainer).state_dict())
        if step == 3:
            _model(trainer).load_state_dict(kept["model"])
            _optimizer(trainer).load_state_dict(kept["optimizer"])

    return Script(between=between)
