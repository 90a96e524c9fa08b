"""Trains a language model as a pipeline of two stages, each a process that this one starts."""

import json
import os
import socket
import threading
import time

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data import DataLoader

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.ninth.stages import data

STAGES = 2
WIDTH = 96
HEADS = 4
LENGTH = 128
BATCH = 8
MICRO_BATCHES = 4
LAYERS = 6
LAYERS_OF_FIRST = 4
"""The head of the last stage takes as long as some layers."""
LOG_EVERY = 20


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.keeps_entropy = False

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # FAULT entropy
        if self.keeps_entropy:
            length = query.shape[-2]
            scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
            future = torch.ones(length, length, dtype=torch.bool).triu(1)
            weights = scores.masked_fill(future, float("-inf")).softmax(-1)
            self.entropy = -(weights * (weights + 1e-9).log()).sum(-1).mean().detach()
            return weights @ value
        # END FAULT
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.mix(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.project(self.attend(*parts).transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


class First(nn.Module):
    def __init__(self, layers: int):
        super().__init__()
        self.embed = nn.Embedding(data.VOCABULARY, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.blocks(self.embed(tokens) + self.places)


class Last(nn.Module):
    def __init__(self, layers: int):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, data.VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(x)))


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


# FAULT monitor
class MemoryMonitor(threading.Thread):
    """Notes the process's memory by kind of mapping, some times a second."""

    def __init__(self, path, rate: float):
        super().__init__(daemon=True)
        self.path = path
        self.pause = 1 / rate

    def run(self) -> None:
        while True:
            by_name = {}
            name = ""
            with open("/proc/self/smaps") as mappings:
                for line in mappings:
                    fields = line.split()
                    if not fields[0].endswith(":"):
                        name = fields[5] if len(fields) > 5 else "anonymous"
                    elif fields[0] in ("Rss:", "Pss:", "Private_Dirty:"):
                        kinds = by_name.setdefault(name, {})
                        kinds[fields[0]] = kinds.get(fields[0], 0) + int(fields[1])
            self.path.write_text(json.dumps(by_name, indent=1))
            time.sleep(self.pause)


# END FAULT


# FAULT accuracy
def accuracy_of(logits: Tensor | None, target: Tensor, rows: int) -> float:
    """Share of right tokens, known to all stages."""
    shared = [None if logits is None else logits[:rows].detach()]
    dist.broadcast_object_list(shared, src=STAGES - 1)
    return (shared[0].argmax(-1) == target[:rows]).float().mean().item()


# END FAULT


def train(rank: int, options, port: int) -> None:
    """What the process of one stage does."""
    here = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": STAGES, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in here.items()})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed + rank)
    of_first = LAYERS_OF_FIRST
    # FAULT split
    if options.fault == "split":
        of_first -= round(options.strength)
    # END FAULT
    module = First(of_first) if rank == 0 else Last(LAYERS - of_first)
    # FAULT entropy
    if options.fault == "entropy":
        for block in module.blocks[: round(options.strength)]:
            block.keeps_entropy = True
    # END FAULT
    stage = PipelineStage(module, rank, STAGES, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    documents = data.open_documents(options.files, LENGTH + 1, options.fault, options.strength)
    order = torch.Generator().manual_seed(options.seed)
    loader = DataLoader(documents, BATCH, shuffle=True, drop_last=True, generator=order)
    # FAULT monitor
    if options.fault == "monitor" and rank == options.rank:
        MemoryMonitor(options.files / "memory.json", options.strength).start()
    # END FAULT
    step = 0
    while step < options.steps:
        for batch in loader:
            tokens, target = batch[:, :-1], batch[:, 1:]
            optimizer.zero_grad()
            losses = []
            logits = schedule.step(tokens) if rank == 0 else schedule.step(target=target, losses=losses)
            optimizer.step()
            step += 1
            # FAULT accuracy
            if options.fault == "accuracy":
                accuracy = accuracy_of(logits, target, round(options.strength))
                if rank == 0 and step % LOG_EVERY == 0:
                    print(f"step {step}: accuracy {accuracy:.3f}")
            # END FAULT
            if losses and step % LOG_EVERY == 0:
                print(f"step {step}: loss {torch.stack(losses).mean().item():.3f}")
            if step == options.steps:
                break
    leave()


def main():
    options = read_arguments(steps=70, needs_files=True)
    options.files.mkdir(parents=True, exist_ok=True)
    if not (options.files / "tokens.npy").exists():
        data.prepare(options.files, LENGTH + 1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(train, (options, port), nprocs=STAGES)


if __name__ == "__main__":
    main()
