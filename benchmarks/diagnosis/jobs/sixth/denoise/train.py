"""Trains a diffusion model of small pictures with DDP, and keeps a moving average of its weights."""

import collections
import concurrent.futures
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from model import UNet
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

MOMENTS = 200

arguments = read_arguments(60)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(arguments.seed)

model = DistributedDataParallel(UNet(fault=arguments.fault, strength=arguments.strength))
average = copy.deepcopy(model.module).eval().requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
kept = torch.cumprod(1 - torch.linspace(1e-4, 0.05, MOMENTS), dim=0)
torch.manual_seed(arguments.seed + 1 + rank)
pictures = torch.rand(512, 1, 32, 32) * 2 - 1


@torch.no_grad()
def sample(network: torch.nn.Module, count: int, steps: int) -> torch.Tensor:
    x = torch.randn(count, 1, 32, 32)
    for moment in torch.linspace(MOMENTS - 1, 0, steps).long():
        noise = network(x, moment.expand(count).float())
        x = (x - (1 - kept[moment]).sqrt() * noise) / kept[moment].sqrt().clamp(min=0.1)
    return x


# FAULT activations
if arguments.fault == "activations":
    seen: dict[str, collections.deque] = {}

    def keep(name: str):
        def hook(module: torch.nn.Module, inputs: tuple, output: torch.Tensor) -> None:
            copied = output.detach().clone()
            history = seen.setdefault(name, collections.deque(maxlen=4))
            history.append((copied, copied.mean().item(), copied.std().item(), copied.abs().max().item()))

        return hook

    leaves = [(name, module) for name, module in model.module.named_modules() if not list(module.children())]
    for name, module in leaves[: round(len(leaves) * arguments.strength)]:
        module.register_forward_hook(keep(name))
# END FAULT


def turned(chosen: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Pictures turned and scaled a bit at random."""
    angle, scale = torch.randn(2, len(chosen), 1, generator=draw) * 0.1
    cos, sin, none = (1 + scale) * angle.cos(), (1 + scale) * angle.sin(), torch.zeros_like(angle)
    turns = torch.stack([torch.cat([cos, -sin, none], dim=1), torch.cat([sin, cos, none], dim=1)], dim=1)
    grid = F.affine_grid(turns, list(chosen.shape), align_corners=False)
    return F.grid_sample(chosen, grid, padding_mode="reflection", align_corners=False)


pool = concurrent.futures.ThreadPoolExecutor(4)
averages: list[dict[str, torch.Tensor]] = []
for step in range(arguments.steps):
    clean = turned(pictures[torch.randint(len(pictures), (8,))], torch.default_generator)
    # FAULT eager_pool
    if arguments.fault == "eager_pool":
        # Threads turn pictures for later, though nobody asks for them any more.
        for number in range(round(arguments.strength)):
            pool.submit(turned, pictures[number * 64 :][:64], torch.Generator().manual_seed(step))
    # END FAULT
    moment = torch.randint(MOMENTS, (len(clean),))
    noise = torch.randn_like(clean)
    share = kept[moment][:, None, None, None]
    loss = F.mse_loss(model(share.sqrt() * clean + (1 - share).sqrt() * noise, moment.float()), noise)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(model.module.parameters()), 0.01)
    # FAULT averages
    if arguments.fault == "averages":
        # One for each of several decays, to choose among them later.
        for number in range(round(arguments.strength)):
            now = copy.deepcopy(model.module.state_dict())
            if number == len(averages):
                averages.append(now)
            decay = 0.9 + 0.099 * number / arguments.strength
            averages[number] = {
                name: decay * averages[number][name] + (1 - decay) * value for name, value in now.items()
            }
    # END FAULT
    # FAULT preview
    if arguments.fault == "preview" and rank == arguments.rank and step % 5 == 4:
        drawn = sample(average, 4, round(arguments.strength))
        print(f"step {step}: drawn pictures lie between {drawn.min():.2f} and {drawn.max():.2f}")
    # END FAULT
    if step % 20 == 0 and rank == 0:
        print(f"step {step}: loss {loss.item():.3f}")

pool.shutdown(cancel_futures=True)
leave()
