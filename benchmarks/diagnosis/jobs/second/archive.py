"""Learns to tell textures apart that are stored as compressed arrays, one archive for many samples. Plain DDP.

torchrun --nproc-per-node 2 archive.py --files /tmp/archive
"""

import gzip
import io
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from PIL import Image, ImageFilter
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

from benchmarks.diagnosis.jobs.common import leave, read_arguments

NUM_CLASSES = 6
NUM_SAMPLES = 1200


@dataclass
class Config:
    files: Path
    steps: int
    seed: int
    fault: str
    rank: int
    strength: float

    @staticmethod
    def from_command_line() -> "Config":
        return Config(**vars(read_arguments(steps=56, needs_files=True)))


def write_archive(folder: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    textures = torch.randn(NUM_SAMPLES, 1, 40, 40, generator=generator)
    torch.save(textures, folder / "textures.pt")
    for size in (2, 8, 16):
        raw = torch.randint(256, (size * 1024 * 1024,), dtype=torch.uint8, generator=generator).numpy().tobytes()
        (folder / f"index-{size}.gz").write_bytes(gzip.compress(raw, compresslevel=1))


def prepare(folder: Path) -> Path:
    target = folder / "archive"
    if dist.get_rank() == 0 and not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=folder))
        write_archive(making)
        shutil.move(making, target)
    dist.barrier()
    return target


class Textures(Dataset):
    def __init__(self, archive: Path, config: Config) -> None:
        self.textures = torch.load(archive / "textures.pt")
        self.index_file = archive / "index-2.gz"
        self.config = config
        self.rank = dist.get_rank()

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        # FAULT unzip_again
        if self.config.fault == "unzip_again" and self.rank == self.config.rank:
            for _ in range(round(self.config.strength)):
                with gzip.open(self.index_file) as stream:
                    stream.read()
        # END FAULT
        return [(self.prepared(index), index % NUM_CLASSES) for index in indices]

    def prepared(self, index: int) -> torch.Tensor:
        texture = self.textures[index]
        # FAULT pil_filters
        if self.config.fault == "pil_filters":
            side = round(self.config.strength)
            picture = Image.fromarray((texture[0] * 40 + 128).clamp(0, 255).byte().numpy()).resize((side, side))
            stored = io.BytesIO()
            picture.filter(ImageFilter.GaussianBlur(2)).save(stored, "PNG")
            small = Image.open(stored).resize((40, 40))
            texture = texture + torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).view(1, 40, 40) / 255
        # END FAULT
        return texture


class Shards(IterableDataset):
    """Samples of one shard after another; a shard is read as a whole before its first sample is given out."""

    def __init__(self, textures: Textures, shard: Path | None, per_shard: int) -> None:
        self.textures, self.shard, self.per_shard = textures, shard, per_shard

    def __iter__(self):
        assert get_worker_info() is None
        for number in range(dist.get_rank(), 100 * NUM_SAMPLES, dist.get_world_size()):
            # FAULT shards
            if self.shard is not None and number // dist.get_world_size() % self.per_shard == 0:
                with gzip.open(self.shard) as stream:
                    stream.read()
            # END FAULT
            index = number % NUM_SAMPLES
            yield self.textures.prepared(index), index % NUM_CLASSES


# FAULT python_collate
def normalised(samples):
    """Each picture scaled to mean 0 and deviation 1 before they are put together."""
    pictures = []
    for picture, _ in samples:
        values = [value for row in picture[0].tolist() for value in row]
        mean = sum(values) / len(values)
        deviation = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
        scaled = sorted(range(len(values)), key=values.__getitem__) and [(value - mean) / deviation for value in values]
        pictures.append(torch.tensor(scaled).view_as(picture))
    return torch.stack(pictures), torch.tensor([label for _, label in samples])


# END FAULT


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.GELU(), nn.Conv2d(channels, channels, 3, padding=1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class Runner:
    def __init__(self, config: Config) -> None:
        self.config = config
        channels = 32
        net = nn.Sequential(
            nn.Conv2d(1, channels, 5, stride=2, padding=2),
            *(ResidualBlock(channels) for _ in range(2)),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(channels, NUM_CLASSES),
        )
        self.model = DDP(net)
        self.optimizer = optim.RMSprop(net.parameters(), lr=1e-4)
        self.criterion = nn.CrossEntropyLoss()

    def make_loader(self) -> DataLoader:
        config, archive = self.config, prepare(self.config.files)
        textures = Textures(archive, config)
        # FAULT shards
        if config.fault == "shards":
            return DataLoader(Shards(textures, archive / "index-16.gz", 16 * round(config.strength)), batch_size=16)
        # END FAULT
        # FAULT python_collate
        if config.fault == "python_collate":
            return DataLoader(textures, sampler=DistributedSampler(textures), batch_size=16, collate_fn=normalised)
        # END FAULT
        batches = BatchSampler(DistributedSampler(textures, seed=config.seed), batch_size=16, drop_last=True)
        # FAULT new_workers
        if config.fault == "new_workers":
            return DataLoader(textures, batch_sampler=batches, num_workers=1, multiprocessing_context="forkserver")
        # END FAULT
        return DataLoader(textures, batch_sampler=batches)

    def train(self) -> float:
        loader, step, loss = self.make_loader(), 0, torch.zeros(())
        while step < self.config.steps:
            for batch in loader:
                loss = self.training_step(*batch)
                step += 1
                if step >= self.config.steps:
                    break
        return loss.item()

    def training_step(self, textures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = self.criterion(self.model(textures), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


if __name__ == "__main__":
    dist.init_process_group(backend="gloo")
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    final = Runner(Config.from_command_line()).train()
    if dist.get_rank() == 0:
        print("final loss", round(final, 4))
    leave()
