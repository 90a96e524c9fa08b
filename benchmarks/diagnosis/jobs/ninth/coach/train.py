"""Finetunes a small language model on conversations, sharded by FSDP2, with accumulated gradients."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.ninth.coach import data

WIDTH = 128
HEADS = 4
BLOCKS = 3
LENGTH = 64
PROMPT = 16
ROWS = 3
ACCUMULATED = 4
WARMUP = 10


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).reshape(rows, length, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.before_mlp = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.recomputes = False

    def forward(self, x):
        # FAULT recompute
        if self.recomputes:
            return checkpoint(self.transform, x, use_reentrant=False)
        # END FAULT
        return self.transform(x)

    def transform(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(data.VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, data.VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def sharded(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    return fully_shard(model, mesh=mesh, reshard_after_forward=False)


def batches(dataset, rank, seed):
    """Batches of all micro-batches of a step, epoch after epoch."""
    sampler = DistributedSampler(dataset, dist.get_world_size(), rank, seed=seed)
    loader = DataLoader(dataset, ROWS * ACCUMULATED, sampler=sampler, drop_last=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


# FAULT clips
def clip_each(parameters, most=0.2):
    """Limit the norm of each gradient by itself."""
    for parameter in parameters:
        norm = parameter.grad.norm().full_tensor().item()
        if norm > most:
            parameter.grad.mul_(most / norm)


# END FAULT


# FAULT accuracy
@torch.no_grad()
def accuracy(model, tokens, targets):
    predicted = model(tokens).argmax(-1)
    answers = targets != data.IGNORED
    return (predicted == targets)[answers].float().mean()


# END FAULT


def main():
    options = read_arguments(steps=70)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    net = LanguageModel()
    # FAULT recompute
    if options.fault == "recompute":
        for block in net.blocks[: round(options.strength)]:
            block.recomputes = True
    # END FAULT
    model = sharded(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARMUP))
    stream = batches(data.dataset(options, rank, LENGTH, PROMPT), rank, options.seed)

    for step in range(options.steps):
        tokens, targets = next(stream)
        metrics = {"loss": []}
        for number, (part, wanted) in enumerate(zip(tokens.split(ROWS), targets.split(ROWS), strict=True)):
            is_last = number == ACCUMULATED - 1
            is_sent = is_last
            # FAULT syncs
            if options.fault == "syncs":
                is_sent = number >= ACCUMULATED - 1 - round(options.strength)
            # END FAULT
            model.set_is_last_backward(is_last)
            model.set_requires_gradient_sync(is_sent)
            model.set_reshard_after_backward(is_sent)
            loss = F.cross_entropy(model(part).flatten(0, 1), wanted.flatten(), ignore_index=data.IGNORED)
            (loss / ACCUMULATED).backward()
            metrics["loss"].append(loss.detach())
            # FAULT accuracy
            if options.fault == "accuracy" and number < round(options.strength):
                metrics.setdefault("accuracy", []).append(accuracy(model, part, wanted))
            # END FAULT
        # FAULT clips
        if options.fault == "clips":
            parameters = list(model.parameters())
            clip_each(parameters[: round(options.strength * len(parameters))])
        # END FAULT
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if rank == 0 and step % 20 == 19:
            shown = ", ".join(f"{name} {torch.stack(values).mean():.3f}" for name, values in metrics.items())
            print(f"step {step + 1}, {shown}", flush=True)
    leave()


if __name__ == "__main__":
    main()
