"""A small GPT that learns to write Python, byte by byte, from the standard library's own sources.

An ordinary data-parallel training script, which `esprof demo` runs under torchrun; it knows nothing of esprof. Its
config, a JSON file, says how large the model is and what hardware to stand in for: how long each rank's storage takes
to answer, and how long its accelerator rests between blocks to stay cool. Both are shares of the time that a step takes
on this machine, which is measured first; so they weigh the same on a fast machine and on a slow one.
"""

import argparse
import json
import statistics
import sysconfig
import time
from collections.abc import Callable
from contextlib import suppress
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
    """What to train, and on what hardware."""

    slow_storage: list[float]
    """Per rank, how long its storage takes to answer for a batch, as a share of a step's time on fast hardware."""
    rest: list[float]
    """Per rank, how long its device rests in a step, as a share of a step's time on fast hardware."""
    steps: int = 40
    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 128
    batch: int = 8


class Corpus(Dataset[Tensor]):
    """Windows of `context` + 1 bytes, back to back, over the files of a folder; each is read when asked for."""

    def __init__(self, folder: Path, context: int) -> None:
        self.span = context + 1
        self.latency_s = 0.0
        self.samples = [
            (file, start)
            for file in sorted(folder.glob("*.py"))
            for start in range(0, file.stat().st_size - self.span, self.span)
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Tensor:
        return torch.frombuffer(bytearray(self.read(*self.samples[index])), dtype=torch.uint8).long()

    def read(self, path: Path, start: int) -> bytes:
        if self.latency_s:
            time.sleep(self.latency_s)
        with path.open("rb") as file:
            file.seek(start)
            return file.read(self.span)


class Block(nn.Module):
    """Causal self-attention and a perceptron, each on a residual stream of (batch, context, width)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.rest_s = 0.0
        self.norm_1 = nn.LayerNorm(config.width)
        self.attend = nn.Linear(config.width, 3 * config.width)
        self.project = nn.Linear(config.width, config.width)
        self.norm_2 = nn.LayerNorm(config.width)
        self.widen = nn.Linear(config.width, 4 * config.width)
        self.narrow = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        if self.rest_s:
            time.sleep(self.rest_s)
        x = x + self.attention(self.norm_1(x))
        out: Tensor = x + self.narrow(F.gelu(self.widen(self.norm_2(x))))
        return out

    def attention(self, x: Tensor) -> Tensor:
        batch, context, width = x.shape
        q, k, v = (
            projected.view(batch, context, self.heads, width // self.heads).transpose(1, 2)
            for projected in self.attend(x).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.project(mixed.transpose(1, 2).reshape(batch, context, width))
        return out


class GPT(nn.Module):
    """Next-byte logits (batch, context, 256) from bytes (batch, context)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed = nn.Embedding(BYTES, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, BYTES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def train(config: Config) -> dict[str, object]:
    """Train on this process's share of the corpus; rank 0 prints the loss of each step.

    Returns `step_s`, the seconds that a step takes on fast hardware, and for each rank `waited`, the share of its time in
    which it was ready to run but had no processor, and `cpu_s`, the seconds of processor time that its work took.
    """
    rank = dist.get_rank()
    torch.manual_seed(1337)
    gpt = GPT(config)
    model = DistributedDataParallel(gpt, bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    corpus = Corpus(Path(sysconfig.get_path("stdlib")), config.context)
    loader = DataLoader(corpus, batch_size=config.batch, sampler=DistributedSampler(corpus, seed=7))

    def learn(texts: Tensor) -> Tensor:
        """The loss on (batch, context + 1) bytes, whose gradients are left in the model."""
        loss = F.cross_entropy(model(texts[:, :-1]).flatten(0, 1), texts[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return loss

    step_s = usual_s(lambda: learn(torch.zeros(config.batch, config.context + 1, dtype=torch.long)))
    corpus.latency_s = config.slow_storage[rank] * step_s / config.batch
    for block in gpt.blocks:
        assert isinstance(block, Block)
        block.rest_s = config.rest[rank] * step_s / config.layers
    waited, cpu_start = RunqueueWait(), time.thread_time()
    for step, texts in zip(range(config.steps), loader, strict=False):
        loss = learn(texts)
        optimizer.step()
        if rank == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)
    cpu_s = time.thread_time() - cpu_start
    return {"step_s": step_s, "waited": from_all_ranks(waited.share()), "cpu_s": from_all_ranks(cpu_s)}


def usual_s(work: Callable[[], object]) -> float:
    """Seconds that `work` takes: the median of MEASURED calls after WARM_UP others, and of that the mean over all ranks."""
    took = []
    for _ in range(WARM_UP + MEASURED):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return statistics.mean(from_all_ranks(statistics.median(took[WARM_UP:])))


WARM_UP, MEASURED = 3, 7


def from_all_ranks(value: float) -> list[float]:
    every = [torch.zeros(1, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(every, torch.tensor([value], dtype=torch.float64))
    return [one.item() for one in every]


class RunqueueWait:
    """How long this thread has stood ready to run and had no processor, by the kernel's account of it."""

    def __init__(self) -> None:
        self._start_ns = time.monotonic_ns()
        self._waited = self._waited_ns()

    def share(self) -> float:
        """Share of the time since this was made in which the thread waited; 0 where the kernel keeps no such account."""
        return (self._waited_ns() - self._waited) / (time.monotonic_ns() - self._start_ns)

    @staticmethod
    def _waited_ns() -> int:
        with suppress(OSError):
            return int(Path("/proc/thread-self/schedstat").read_text().split()[1])
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    path = parser.parse_args().config
    config = Config(**json.loads(path.read_text()))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    measured = train(config)
    if dist.get_rank() == 0:
        path.with_name("measured.json").write_text(json.dumps(measured))
    dist.destroy_process_group()
    # Gloo's threads outlive the group, and drop the last collective under Python's lock: where the interpreter is already
    # on its way out, PyTorch 2.13 aborts the process. So they get the lock first.
    time.sleep(0.5)


if __name__ == "__main__":
    main()
