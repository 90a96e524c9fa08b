"""Learn to draw small faces: a generator, a critic, an optimizer for each, hinge loss. DDP for both.

torchrun --nproc-per-node 2 train.py --files /tmp/faces
"""

import copy
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from nets import NOISE, SIDE, Critic, Generator
from PIL import Image
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

BATCH, FACES = 32, 800


def faces(seed: int) -> torch.Tensor:
    """Ovals with two eyes, on grounds of all colours."""
    chance = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    at = torch.rand(FACES, 4, 1, 1, generator=chance)
    oval = ((x - 0.4 * at[:, 0] + 0.2) / (0.4 + 0.3 * at[:, 1])) ** 2 + (y / (0.6 + 0.3 * at[:, 2])) ** 2 < 1
    eyes = ((x.abs() - 0.25) ** 2 + (y + 0.2) ** 2 < 0.01).expand_as(oval)
    colours = torch.rand(FACES, 2, 3, 1, 1, generator=chance) * 2 - 1
    drawn = torch.where(oval[:, None], colours[:, 0], colours[:, 1])
    return torch.where(eyes[:, None], -torch.ones(()), drawn)


# FAULT shadow
class Shadow:
    """A slow average of the generator, to draw with. Its copies are kept, to choose the best of them later."""

    def __init__(self, model: nn.Module, copies: int) -> None:
        self.averages = [copy.deepcopy(model.state_dict()) for _ in range(copies)]

    def follow(self, model: nn.Module) -> None:
        for number, average in enumerate(self.averages):
            now = copy.deepcopy(model.state_dict())
            decay = 1 - 0.1 ** (2 + number)
            for name, value in now.items():
                if value.is_floating_point():
                    average[name] = decay * average[name] + (1 - decay) * value
                else:
                    average[name] = value


# END FAULT


# FAULT gallery
@torch.no_grad()
def hang(generator: nn.Module, noise: torch.Tensor, file: Path) -> None:
    """Draw a sheet of samples, four times as large as they are."""
    generator.eval()
    drawn = F.interpolate(generator(noise), scale_factor=4, mode="bicubic")
    generator.train()
    rows = [torch.cat(list(row), 2) for row in drawn.split(6)]
    sheet = (torch.cat(rows, 1).clamp(-1, 1) * 127.5 + 127.5).byte().permute(1, 2, 0).contiguous()
    Image.fromarray(sheet.numpy()).save(file, optimize=True)


# END FAULT


# FAULT smoothness
def steepness(critic: nn.Module, batch: Tensor) -> Tensor:
    some = batch.clone().requires_grad_()
    (slope,) = torch.autograd.grad(critic(some).sum(), some, create_graph=True)
    return slope.square().sum((1, 2, 3)).mean()


# END FAULT


def improve(generator: nn.Module, critic: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> Tensor:
    """A step of the generator, by what the critic says of new faces."""
    critic.requires_grad_(False)
    loss = -critic.module(generator(torch.randn(BATCH, NOISE))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    critic.requires_grad_(True)
    return loss


def main() -> None:
    options = read_arguments(60, needs_files=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    fault, strength = options.fault, options.strength
    torch.manual_seed(options.seed + rank)
    options.files.mkdir(parents=True, exist_ok=True)

    bucket_mb = 25.0
    # FAULT small_change
    if fault == "small_change":
        bucket_mb = 0.001
    # END FAULT
    generator = DistributedDataParallel(Generator(), bucket_cap_mb=bucket_mb)
    critic = DistributedDataParallel(Critic(), bucket_cap_mb=bucket_mb)
    for_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.99))
    for_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.99))
    shadow = Shadow(generator.module, round(strength)) if fault == "shadow" else None
    real = faces(rank)
    wall = torch.randn(6 * round(strength) if fault == "gallery" else 24, NOISE)

    for step in range(options.steps):
        batch = real[torch.randint(0, FACES, (BATCH,))]
        noise = torch.randn(BATCH, NOISE)

        # FAULT undetached
        if fault == "undetached":
            drawn = generator(noise)
        # END FAULT
        else:
            with torch.no_grad():
                drawn = generator(noise)
        judged = critic(torch.cat([batch, drawn]))
        critic_loss = F.relu(1 - judged[:BATCH]).mean() + F.relu(1 + judged[BATCH:]).mean()
        # FAULT smoothness
        if fault == "smoothness":
            critic_loss = critic_loss + 5 * steepness(critic.module, batch[: round(strength)])
        # END FAULT
        for_critic.zero_grad()
        critic_loss.backward()
        for_critic.step()

        generator_loss = improve(generator, critic, for_generator)

        # FAULT shadow
        if shadow:
            shadow.follow(generator.module)
        # END FAULT
        # FAULT gallery
        if fault == "gallery" and rank == options.rank and step % 6 == 5:
            hang(generator.module, wall, options.files / f"{step}.png")
        # END FAULT
    if rank == 0:
        print(f"critic {critic_loss.item():.3f}, generator {generator_loss.item():.3f}")
    leave()


if __name__ == "__main__":
    main()
