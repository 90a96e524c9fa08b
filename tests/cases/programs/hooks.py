"""Hooks on modules, tensors and gradients, and autograd functions of one's own."""

import torch
from torch import nn

from tests.cases.programs.script import Script, either, equal, like, mean_loss, net, refused


class Halved(torch.autograd.Function):
    """Identity whose gradient is half."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


class Applied(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def _hooked(register, batches=None):
    """A script whose model has had hooks registered before the trainer is made."""
    model = net()
    register(model)
    return Script(model, batches=batches or {})


@like("noise_in_a_hook")
@equal
def own_function():
    """An autograd function that halves gradients."""
    return Script(net(Applied(Halved.apply)))


@equal
def own_function_with_class_state():
    """One whose class counts its calls, and lets gradients fade with them."""

    class Fading(Halved):
        calls = 0

        @staticmethod
        def backward(ctx, gradient):
            Fading.calls += 1
            return gradient * 0.95**Fading.calls

    return Script(net(Applied(Fading.apply)))


@like("features_by_a_hook")
@equal
def forward_hook():
    """A hook that scales a layer's output."""
    return _hooked(lambda model: model[0].register_forward_hook(lambda module, args, out: 2 * out))


@like("gradient_hook")
@equal
def backward_hook():
    """A hook that scales gradients on their way back."""
    return _hooked(
        lambda model: model[1].register_full_backward_hook(lambda module, inputs, outputs: (0.5 * inputs[0],))
    )


@equal
def features_by_a_hook():
    """A hook leaves a layer's output in a dict, where the loss of the same call takes it."""
    model, seen = net(), {}
    model[0].register_forward_hook(lambda module, args, out: seen.update(features=out))
    return Script(model, lambda model, batch: mean_loss(model, batch) + seen["features"].square().mean())


@equal
def noise_in_a_hook():
    """Gradient noise from torch's own generator."""
    return _hooked(
        lambda model: model[1].register_full_backward_hook(
            lambda module, inputs, outputs: (inputs[0] + 0.01 * torch.randn_like(inputs[0]),)
        )
    )


@either
def statistics_in_a_hook():
    """A hook that divides by a running mean which it keeps in the module."""

    def normalise(module, args, out):
        module.scale = 0.9 * module.scale + 0.1 * out.detach().abs().mean()
        return out / module.scale

    model = net()
    model[0].scale = torch.ones(())
    model[0].register_forward_hook(normalise)
    return Script(model)


def _halve_gradients(model):
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: 0.5 * gradient)


@equal
def gradient_hook():
    """Hooks on the parameters' gradients, from before the trainer."""
    return _hooked(_halve_gradients)


@either
def gradient_hook_afterwards():
    """The same, once the trainer is made."""
    return Script(prepare=lambda trainer: _halve_gradients(trainer.state.model))


@refused
def gradient_hook_with_a_counter():
    """Gradients that fade with the number of calls."""
    calls = []

    def fade(gradient):
        calls.append(None)
        return gradient * 0.99 ** len(calls)

    return _hooked(lambda model: model[0].weight.register_hook(fade))


def _halve_accumulated(model):
    def halve(parameter):
        parameter.grad.mul_(0.5)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(halve)


@like("accumulated_gradient_hook_of_two_batches")
@either
def accumulated_gradient_hook():
    """Hooks on what is accumulated, from before the trainer."""
    return _hooked(_halve_accumulated)


@either
def accumulated_gradient_hook_of_two_batches():
    """The same with two batches a step, of which the first is halved twice."""
    return _hooked(_halve_accumulated, {"accumulate": 2})


@like("gradient_hook_afterwards")
@either
def accumulated_gradient_hook_afterwards():
    """The same, once the trainer is made."""
    return Script(prepare=lambda trainer: _halve_accumulated(trainer.state.model))


@refused
def optimizer_in_backward():
    """Each parameter has an optimizer that steps as soon as its gradient is there, and drops it."""
    model = net()
    for parameter in model.parameters():
        own = torch.optim.SGD([parameter], lr=0.1)

        def step(_, own=own):
            own.step()
            own.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    return Script(model)


@equal
def optimizer_hooks():
    """Hooks before the optimizer's step that bound each gradient, and after it that round weights."""

    def bound(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.clamp_(-0.05, 0.05)

    def rounded(optimizer, args, kwargs):
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.copy_((parameter * 4096).round() / 4096)

    def optimizer(model):
        made = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        made.register_step_pre_hook(bound)
        made.register_step_post_hook(rounded)
        return made

    return Script(optimizer=optimizer)
