"""Learns what two views of a drawing have in common, against a long memory of other drawings. Plain DDP.

torchrun --nproc-per-node 2 contrast.py --files /tmp/contrast
"""

import struct
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from benchmarks.diagnosis.jobs.common import leave, read_arguments

SIDE, KINDS, BATCH, FEATURES, MEMORY = 32, 8, 16, 96, 114_688


class Drawings(Dataset):
    """Strokes on white, of as many kinds as there are directions."""

    def __init__(self, count, seed, retraced=0):
        self.random = np.random.default_rng(seed)
        self.kinds = self.random.integers(KINDS, size=count)
        self.starts = self.random.uniform(8, SIDE - 8, (count, 2))
        self.retraced = retraced
        self.drawn = np.stack([self._line(kind, start) for kind, start in zip(self.kinds, self.starts, strict=True)])

    @staticmethod
    def _line(kind, start):
        y, x = np.mgrid[:SIDE, :SIDE]
        angle = np.pi * kind / KINDS
        away = (y - start[0]) * np.cos(angle) - (x - start[1]) * np.sin(angle)
        return np.exp(-0.5 * away**2).astype(np.float32)

    def __len__(self):
        return len(self.kinds)

    # FAULT retraced
    def retrace(self, picture, kind, start):
        """Go along the stroke point by point, with a shaking hand."""
        picture, angle = picture.copy(), np.pi * kind / KINDS
        shake = self.random.normal(0, 0.5, (self.retraced, 2))
        for point in range(self.retraced):
            at = 24.0 * (point / self.retraced - 0.5)
            y = min(SIDE - 1, max(0, int(start[0] + at * np.sin(angle) + shake[point, 0])))
            x = min(SIDE - 1, max(0, int(start[1] + at * np.cos(angle) + shake[point, 1])))
            picture[y, x] = min(1.0, picture[y, x] + 0.2)
        return picture

    # END FAULT

    def __getitem__(self, index):
        picture = self.drawn[index]
        # FAULT retraced
        if self.retraced:
            picture = self.retrace(picture, self.kinds[index], self.starts[index])
        # END FAULT
        return torch.from_numpy(picture)[None], int(self.kinds[index])


def view(pictures):
    """Moved, dimmed and noisy."""
    moved = pictures.roll(tuple(torch.randint(-3, 4, (2,)).tolist()), dims=(2, 3))
    return moved * (0.6 + 0.4 * torch.rand(len(moved), 1, 1, 1)) + 0.1 * torch.randn_like(moved)


def encoder(base=20):
    def stage(before, after, stride):
        return [nn.Conv2d(before, after, 3, stride, 1), nn.GroupNorm(4, after), nn.SiLU()]

    return nn.Sequential(
        *stage(1, base, 1),
        *stage(base, 2 * base, 2),
        *stage(2 * base, 2 * base, 1),
        *stage(2 * base, 4 * base, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * base, FEATURES),
    )


class Memory:
    """Features of drawings seen before; the oldest make room."""

    def __init__(self):
        self.rows, self.at = F.normalize(torch.randn(MEMORY, FEATURES), dim=1), 0

    def push(self, features):
        self.rows[self.at : self.at + len(features)] = features
        self.at = (self.at + len(features)) % MEMORY

    def some(self, count=4096):
        first = int(torch.randint(MEMORY - count, ()))
        return self.rows[first : first + count]


def contrast(query, key, others, heat=0.1):
    same = (query * key).sum(1, keepdim=True)
    return F.cross_entropy(torch.cat([same, query @ others.T], 1) / heat, torch.zeros(len(query), dtype=torch.long))


# FAULT keep
def keep(folder, step, **parts):
    target = folder / "last.pt"
    torch.save({"step": step, **parts}, target.with_suffix(".new"))
    target.with_suffix(".new").replace(target)


# END FAULT


# FAULT stow
def stow(shelf, things):
    """One after the other: how long the name is, the name, how long the rest is, the rest."""
    with shelf.open("wb", buffering=0) as out:
        for name, thing in things.items():
            flat = memoryview(thing.detach().numpy()).cast("B")
            out.write(struct.pack(f"<I{len(name)}sQ", len(name), name.encode(), len(flat)))
            for begin in range(0, len(flat), 1 << 20):
                out.write(flat[begin : begin + (1 << 20)])


# END FAULT


# FAULT glance
def nearest_kinds(net, known, asked):
    """How often the drawing nearest to one that is asked about is of the same kind."""
    net.eval()
    with torch.no_grad():
        seen, new = (
            F.normalize(torch.cat([net(part) for part in pictures.split(32)]), dim=1) for pictures, _ in (known, asked)
        )
        guesses = known[1][(new @ seen.T).argmax(1)]
    net.train()
    return (guesses == asked[1]).float().mean().item()


# END FAULT


def held(count, seed):
    drawings = Drawings(count, seed)
    return torch.from_numpy(drawings.drawn)[:, None], torch.from_numpy(drawings.kinds)


def main():
    o = read_arguments(steps=320, needs_files=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(o.seed + dist.get_rank())
    o.files.mkdir(parents=True, exist_ok=True)

    retraced, every, chores = 0, 0, []
    student, teacher, memory = encoder(), encoder().requires_grad_(False), Memory()
    teacher.load_state_dict(student.state_dict())
    model = DistributedDataParallel(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    # FAULT retraced
    if o.fault == "retraced":
        retraced = round(o.strength)
    # END FAULT
    # FAULT keep
    if o.fault == "keep" and dist.get_rank() == 0:
        every = round(o.strength)
        chores.append(lambda step: keep(o.files, step, net=student.state_dict(), memory=memory.rows))
    # END FAULT
    # FAULT stow
    if o.fault == "stow" and dist.get_rank() == 0:
        every = round(o.strength)
        chores.append(lambda _: stow(o.files / "shelf", {"memory": memory.rows, **student.state_dict()}))
    # END FAULT
    # FAULT glance
    if o.fault == "glance":
        every, right = round(o.strength), []
        look = partial(nearest_kinds, student, held(160, 71), held(64, 72))
        chores.append(lambda _: right.append(look()))
    # END FAULT
    drawings = Drawings(1600, o.seed, retraced)
    sampler = DistributedSampler(drawings, seed=o.seed)
    loader = DataLoader(drawings, BATCH, sampler=sampler, drop_last=True)
    step = epoch = 0
    while step < o.steps:
        sampler.set_epoch(epoch)
        for pictures, _ in loader:
            query = F.normalize(model(view(pictures)), dim=1)
            with torch.no_grad():
                key = F.normalize(teacher(view(pictures)), dim=1)
            loss = contrast(query, key, memory.some())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                    slow.lerp_(fast, 0.01)
            memory.push(key)
            step += 1
            if every and step % every == 0:
                for chore in chores:
                    chore(step)
            if step == o.steps:
                break
        epoch += 1
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f}")
    leave()


if __name__ == "__main__":
    main()
