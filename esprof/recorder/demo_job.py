"""A small GPT that learns to write Python, byte by byte, from the standard library's own sources.

An ordinary data-parallel training script, which `esprof demo` runs under torchrun; it knows nothing of esprof. Its
config, a JSON file, says how large the model is and what hardware to stand in for: how long each rank's storage takes
to answer a read, and how long its accelerator rests between blocks to stay cool.
"""

import argparse
import json
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

BYTES = 256


@dataclass(frozen=True)
class Config:
    """What to train, and on what. The two lists have an entry a rank, in seconds."""

    read_latency: list[float]
    rest: list[float]
    steps: int = 32
    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 128
    batch: int = 8


class Corpus(Dataset[Tensor]):
    """Windows of `context` + 1 bytes, back to back, over the files of a folder; each is read when asked for."""

    def __init__(self, folder: Path, context: int, read_latency: float) -> None:
        self.span = context + 1
        self.read_latency = read_latency
        self.places = [
            (file, start)
            for file in sorted(folder.glob("*.py"))
            for start in range(0, file.stat().st_size - self.span, self.span)
        ]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Tensor:
        return torch.frombuffer(bytearray(self.read(*self.places[index])), dtype=torch.uint8).long()

    def read(self, path: Path, start: int) -> bytes:
        time.sleep(self.read_latency)
        with path.open("rb") as file:
            file.seek(start)
            return file.read(self.span)


class Block(nn.Module):
    """Causal self-attention and a perceptron, each on a residual stream of (batch, context, width)."""

    def __init__(self, config: Config, rest: float) -> None:
        super().__init__()
        self.heads = config.heads
        self.rest = rest
        self.norm_1 = nn.LayerNorm(config.width)
        self.attend = nn.Linear(config.width, 3 * config.width)
        self.project = nn.Linear(config.width, config.width)
        self.norm_2 = nn.LayerNorm(config.width)
        self.widen = nn.Linear(config.width, 4 * config.width)
        self.narrow = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        if self.rest:
            time.sleep(self.rest)
        x = x + self.attention(self.norm_1(x))
        out: Tensor = x + self.narrow(F.gelu(self.widen(self.norm_2(x))))
        return out

    def attention(self, x: Tensor) -> Tensor:
        batch, context, width = x.shape
        q, k, v = (
            part.view(batch, context, self.heads, width // self.heads).transpose(1, 2)
            for part in self.attend(x).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.project(mixed.transpose(1, 2).reshape(batch, context, width))
        return out


class GPT(nn.Module):
    """Next-byte logits (batch, context, 256) from bytes (batch, context)."""

    def __init__(self, config: Config, rest: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(BYTES, config.width)
        self.place = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config, rest) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, BYTES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def train(config: Config) -> None:
    """Train on this process's share of the corpus; rank 0 prints the loss of each step."""
    rank = dist.get_rank()
    torch.manual_seed(1337)
    model = DistributedDataParallel(GPT(config, config.rest[rank]), bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    corpus = Corpus(Path(sysconfig.get_path("stdlib")), config.context, config.read_latency[rank])
    loader = DataLoader(corpus, batch_size=config.batch, sampler=DistributedSampler(corpus, seed=7), num_workers=1)
    for step, window in zip(range(config.steps), loader, strict=False):
        logits = model(window[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if rank == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    config = Config(**json.loads(parser.parse_args().config.read_text()))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(config)
    dist.destroy_process_group()
    # Gloo's threads outlive the group, and drop the last collective under Python's lock: where the interpreter is already
    # on its way out, PyTorch 2.13 aborts the process. So they get the lock first.
    time.sleep(0.1)


if __name__ == "__main__":
    main()
