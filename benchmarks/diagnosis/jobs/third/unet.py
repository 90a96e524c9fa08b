"""Segments blobs in noisy pictures with a small U-Net. Plain DDP.

torchrun --nproc-per-node 2 unet.py
"""

import lzma
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from benchmarks.diagnosis.jobs.common import leave, read_arguments

SIDE, BATCH, COUNT = 40, 6, 240


def blobs(count, rng):
    """Pictures with a disc each, and where the disc is."""
    y, x = np.mgrid[:SIDE, :SIDE]
    centres = rng.uniform(10, SIDE - 10, (count, 2, 1, 1))
    radii = rng.uniform(4, 10, (count, 1, 1))
    masks = (y - centres[:, 0]) ** 2 + (x - centres[:, 1]) ** 2 < radii**2
    return (masks + rng.normal(0, 0.5, masks.shape)).astype(np.float32), masks.astype(np.float32)


class Scans(Dataset):
    def __init__(self, args, rank):
        self.args, self.is_hit = args, rank == args.rank
        self.pictures, self.masks = blobs(COUNT, np.random.default_rng(args.seed))
        self.rng = np.random.default_rng(rank)
        # FAULT packed_scans
        if args.fault == "packed_scans" and self.is_hit:
            self.packed = lzma.compress(self.pictures[: round(args.strength)].tobytes(), preset=0)
        # END FAULT

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        picture, mask = self.pictures[index], self.masks[index]
        # FAULT packed_scans
        if self.args.fault == "packed_scans" and self.is_hit:
            unpacked = np.frombuffer(lzma.decompress(self.packed), dtype=np.float32)
            picture = picture + 0 * unpacked[: picture.size].reshape(picture.shape)
        # END FAULT
        # FAULT elastic
        if self.args.fault == "elastic":
            picture = self.warped(picture, round(self.args.strength))
        # END FAULT
        return torch.from_numpy(picture)[None], torch.from_numpy(mask)[None]

    # FAULT elastic
    def warped(self, picture, smoothings):
        """The picture, displaced by a smooth random field."""
        field = self.rng.normal(0, 9, (2, SIDE, SIDE))
        for _ in range(smoothings):
            field = sum(np.roll(field, shift, axis) for shift in (-1, 1) for axis in (1, 2)) / 4
        y, x = np.clip(np.rint(np.mgrid[:SIDE, :SIDE] + field), 0, SIDE - 1).astype(int)
        return picture[y, x]

    # END FAULT


# FAULT equalise
class Equalise:
    """Puts samples together, after it has spread the grey values of each over its ranks."""

    def __init__(self, times):
        self.times = times

    def __call__(self, samples):
        pictures = np.stack([picture.numpy() for picture, _ in samples])
        for _ in range(self.times):
            order = pictures.reshape(len(samples), -1).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
            pictures = (order / order.shape[1]).astype(np.float32).reshape(pictures.shape)
        return torch.from_numpy(pictures), torch.stack([mask for _, mask in samples])


# END FAULT


def double(before, after):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1),
        nn.GroupNorm(4, after),
        nn.LeakyReLU(0.1),
        nn.Conv2d(after, after, 3, padding=1),
        nn.LeakyReLU(0.1),
    )


class UNet(nn.Module):
    def __init__(self, base=12):
        super().__init__()
        self.down1, self.down2 = double(1, base), double(base, 2 * base)
        self.bottom = double(2 * base, 4 * base)
        self.up2, self.up1 = nn.ConvTranspose2d(4 * base, 2 * base, 2, 2), nn.ConvTranspose2d(2 * base, base, 2, 2)
        self.merge2, self.merge1 = double(4 * base, 2 * base), double(2 * base, base)
        self.out = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(nn.functional.max_pool2d(first, 2))
        x = self.bottom(nn.functional.max_pool2d(second, 2))
        x = self.merge2(torch.cat([self.up2(x), second], 1))
        x = self.merge1(torch.cat([self.up1(x), first], 1))
        return self.out(x)


# FAULT overlap_check
def overlap(net, pictures, masks):
    """Intersection over union, on all of the pictures."""
    with torch.inference_mode():
        guesses = torch.cat([net(part) > 0 for part in pictures.split(16)])
    return ((guesses & masks).sum() / (guesses | masks).sum()).item()


# END FAULT


def loader_of(args, rank):
    scans = Scans(args, rank)
    sampler = DistributedSampler(scans, shuffle=True, seed=args.seed)
    more = {}
    # FAULT equalise
    if args.fault == "equalise":
        more["collate_fn"] = Equalise(round(args.strength))
    # END FAULT
    # FAULT forked_again
    if args.fault == "forked_again":
        more |= {"num_workers": 1, "worker_init_fn": lambda _: time.sleep(args.strength)}
    # END FAULT
    return DataLoader(scans, BATCH, sampler=sampler, drop_last=True, **more), sampler


def fit(args):
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    loader, sampler = loader_of(args, rank)
    held_out, truth = (torch.from_numpy(part)[:, None] for part in blobs(48, np.random.default_rng(99)))
    net = UNet()
    ddp = DDP(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.NAdam(ddp.parameters(), lr=1e-3)
    step, scores = 0, []
    for epoch in range(1 + args.steps):
        sampler.set_epoch(epoch)
        for pictures, masks in loader:
            logits = ddp(pictures)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, masks)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            # FAULT overlap_check
            if args.fault == "overlap_check" and not step % round(args.strength):
                scores.append(overlap(net, held_out, truth > 0))
            # END FAULT
            if step == args.steps:
                return loss.item()
    return None


if __name__ == "__main__":
    dist.init_process_group("gloo")
    last = fit(read_arguments(steps=60))
    if dist.get_rank() == 0:
        print(f"last loss {last:.4f}")
    leave()
