"""Ways to step: two optimizers in turn, one for each parameter inside the backward pass, a closure called repeatedly."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from pattern_parts import CLASSES, WIDTH, batches, loss_of, mlp, parallel
from torch import Tensor, nn


def adversarial(steps: int) -> Iterator[float]:
    """A discriminator and a generator, each with its own optimizer."""
    critic = parallel(nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 1)))
    generator = parallel(nn.Sequential(nn.Linear(CLASSES, 256), nn.ReLU(), nn.Linear(256, WIDTH)))
    critic_optimizer, generator_optimizer = (torch.optim.AdamW(model.parameters()) for model in (critic, generator))
    for inputs, labels in batches(steps):
        noise = nn.functional.one_hot(labels, CLASSES).float()
        critic_optimizer.zero_grad()
        critic_loss = critic(torch.cat([generator(noise).detach(), inputs])).square().mean()
        critic_loss.backward()
        critic_optimizer.step()
        generator_optimizer.zero_grad()
        generator_loss = (1 - critic(generator(noise))).square().mean()
        generator_loss.backward()
        generator_optimizer.step()
        yield critic_loss.item() + generator_loss.item()


def in_backward(steps: int) -> Iterator[float]:
    """Each parameter is stepped, and its gradient freed, as soon as the gradient is there."""
    model = mlp()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for batch in batches(steps):
        loss = loss_of(model, batch)
        loss.backward()
        yield loss.item()


def closure(steps: int) -> Iterator[float]:
    """L-BFGS: several forward and backward passes a step, as many as its line search wants. It looks at the loss, which has
    to be the same on all ranks: else one of them may want a pass more, which the others never make."""
    model = parallel(nn.Linear(WIDTH, CLASSES))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    for batch in batches(steps):

        def evaluate(batch: tuple[Tensor, Tensor] = batch) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            mean = loss.detach()
            if dist.is_initialized():
                dist.all_reduce(mean)
            return mean / (dist.get_world_size() if dist.is_initialized() else 1)

        yield optimizer.step(evaluate).item()
