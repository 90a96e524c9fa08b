"""Flow matching: the network learns the velocity that carries noise to pictures."""

import copy
import itertools

import torch
import torch.distributed as dist
from data import Pictures, draw_pictures
from model import Residual, UNet
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from benchmarks.diagnosis.jobs.common import leave, read_arguments

BATCH = 10
EMA = 0.995


# FAULT double_blocks
class InDouble(Residual):
    """The sums of the group norms looked unsteady in single precision."""

    def forward(self, x, t):
        return super().forward(x.double(), t.double()).float()


# END FAULT


def velocity_loss(model, pictures):
    noise = torch.randn_like(pictures)
    time = torch.rand(len(pictures))
    between = torch.lerp(noise, pictures, time[:, None, None, None])
    return (model(between, time) - (pictures - noise)).pow(2).mean()


@torch.no_grad()
def follow(average, model):
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - EMA)


@torch.no_grad()
def integrate(model, count, steps):
    x = torch.randn(count, 3, 32, 32)
    for i in range(steps):
        x = x + model(x, torch.full((count,), i / steps)) / steps
    return x.clamp(-1, 1)


def batches(loader, sampler):
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


def main():
    options = read_arguments(steps=80, needs_files=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = options.files / "discs"
    if rank == 0:
        draw_pictures(folder)
    dist.barrier()
    torch.manual_seed(options.seed)
    net = UNet()
    # FAULT double_blocks
    if options.fault == "double_blocks":
        for name, inside, outside in (("up1", 48, 24), ("up2", 96, 24))[: round(options.strength)]:
            setattr(net, name, InDouble(inside, outside, net.time_width).double())
    # END FAULT
    average = copy.deepcopy(net).requires_grad_(False)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    torch.manual_seed(options.seed + 1000 * rank)
    pictures = Pictures(folder, options)
    sampler = DistributedSampler(pictures, seed=options.seed)
    loader = DataLoader(pictures, BATCH, sampler=sampler, num_workers=1, persistent_workers=True, drop_last=True)

    history = []
    for step, batch in enumerate(itertools.islice(batches(loader, sampler), options.steps)):
        # FAULT own_reduce
        if options.fault == "own_reduce":
            with model.no_sync():
                loss = velocity_loss(model, batch)
                loss.backward()
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        # END FAULT
        if options.fault != "own_reduce":
            loss = velocity_loss(model, batch)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        follow(average, net)
        # FAULT keep_best
        if options.fault == "keep_best":
            history.append((float(loss.detach()), copy.deepcopy(net), copy.deepcopy(optimizer)))
            history = sorted(history, key=lambda kept: kept[0])[: int(options.strength)]
            best = [copy.deepcopy(kept[1].state_dict()) for kept in history]
            average.load_state_dict(best[0])
        # END FAULT
        # FAULT preview
        if options.fault == "preview" and rank == options.rank and step % 4 == 3:
            torch.save(integrate(average, 8, int(options.strength)), folder.parent / "preview.pt")
        # END FAULT
        if step % 20 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    leave()


if __name__ == "__main__":
    main()
