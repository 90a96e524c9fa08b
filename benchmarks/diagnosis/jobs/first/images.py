"""Trains a small convolutional network on JPEG pictures in files, by DDP.

torchrun --nproc-per-node 2 images.py --files /tmp/pictures
"""

import itertools
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate

from benchmarks.diagnosis.jobs.common import leave, read_arguments

CLASSES = 8
SIDE = 48
PICTURES = 800
BATCH = 16


def make_pictures(folder):
    rng = np.random.default_rng(0)
    for size, name in ((SIDE, "small"), (512, "large")):
        (folder / name).mkdir(parents=True)
        for index in range(PICTURES if name == "small" else 64):
            noise = rng.integers(0, 255, (size // 4, size // 4, 3), dtype=np.uint8)
            Image.fromarray(noise).resize((size, size)).save(folder / name / f"{index % CLASSES}-{index:04d}.jpg")
    np.savez_compressed(folder / "shard.npz", rng.standard_normal(12_000_000, dtype=np.float32))


class Pictures(Dataset):
    def __init__(self, folder, options, rank):
        self.paths = sorted((folder / "small").glob("*.jpg"))
        self.large = sorted((folder / "large").glob("*.jpg"))
        self.shard = folder / "shard.npz"
        self.fault, self.strength = options.fault, options.strength
        self.is_slow = rank == options.rank
        self.read = 0

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        self.read += 1
        # FAULT slow_files
        if self.fault == "slow_files" and self.is_slow:
            time.sleep(self.strength / 1000)  # a file server far away
        # END FAULT
        # FAULT burst
        if self.fault == "burst" and self.read % (8 * BATCH) == 0:
            for _ in range(round(self.strength)):
                np.load(self.shard)["arr_0"]
        # END FAULT
        path = self.paths[index]
        picture = Image.open(path)
        # FAULT slow_decode
        if self.fault == "slow_decode" and index % 16 < self.strength:
            picture = Image.open(self.large[index % len(self.large)]).convert("RGB").resize((SIDE, SIDE), Image.LANCZOS)
        # END FAULT
        pixels = np.asarray(picture.convert("RGB"), dtype=np.float32) / 127.5 - 1
        return torch.from_numpy(pixels).permute(2, 0, 1), int(path.name[0])


# FAULT heavy_collate
class ListCollate:
    def __init__(self, share):
        self.share = share

    def __call__(self, samples):
        many = round(len(samples) * self.share)
        slow = [torch.tensor(picture.tolist()) for picture, _ in samples[:many]]
        pictures = torch.stack(slow + [picture for picture, _ in samples[many:]])
        return pictures, torch.tensor([label for _, label in samples])


# END FAULT


def network():
    widths = (3, 24, 32, 48, 48)
    layers = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        if len(layers) in (3, 9):
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES))


def main():
    options = read_arguments(steps=56, needs_files=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    folder = options.files / "pictures"
    if rank == 0 and not folder.exists():
        making = folder.with_suffix(".making")
        make_pictures(making)
        os.rename(making, folder)
    dist.barrier()
    dataset = Pictures(folder, options, rank)
    sampler = DistributedSampler(dataset, seed=options.seed, drop_last=True)
    loading = {"batch_size": BATCH, "sampler": sampler, "drop_last": True}
    # FAULT heavy_collate
    if options.fault == "heavy_collate":
        loading["collate_fn"] = ListCollate(options.strength)
    # END FAULT
    # FAULT spawn_epochs
    if options.fault == "spawn_epochs":
        loading |= {"num_workers": 1, "multiprocessing_context": "spawn"}
    # END FAULT
    loader = DataLoader(dataset, **({"collate_fn": default_collate} | loading))
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    done, epoch = 0, 0
    while done < options.steps:
        sampler.set_epoch(epoch)
        for pictures, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(pictures), labels)
            loss.backward()
            optimizer.step()
            done += 1
            if done == options.steps:
                break
        epoch += 1
    if rank == 0:
        print(f"{done} steps, loss {loss.item():.3f}")
    leave()


if __name__ == "__main__":
    main()
