"""Fine-tunes a small language model with low-rank adapters, sharded by FSDP2 over CPUs."""

import random
import re
import string

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from benchmarks.diagnosis.jobs.common import leave, read_arguments

VOCABULARY, LENGTH, WIDTH, HEADS, DEPTH = 512, 64, 128, 4, 6
PER_RANK = 4


class LoRALinear(nn.Module):
    def __init__(self, inside: int, outside: int, r: int = 8) -> None:
        super().__init__()
        self.base = nn.Linear(inside, outside)
        self.base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(r, inside) / inside**0.5)
        self.b = nn.Parameter(torch.zeros(outside, r))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = LoRALinear(WIDTH, 3 * WIDTH), LoRALinear(WIDTH, WIDTH)
        self.up, self.down = LoRALinear(WIDTH, 4 * WIDTH), LoRALinear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self, args) -> None:
        super().__init__()
        self.args = args
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        for part in (self.tokens, self.places, self.head):
            part.requires_grad_(False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for number, block in enumerate(self.blocks):
            # FAULT recompute
            if self.args.fault == "recompute" and number < round(self.args.strength):
                x = checkpoint(block, x, use_reentrant=False)
                continue
            # END FAULT
            x = block(x)
        return self.head(x)


def write_sentences(seed: int) -> list[str]:
    chance = random.Random(seed)
    words = ["".join(chance.choices(string.ascii_lowercase, k=chance.randint(2, 9))) for _ in range(300)]
    return [" ".join(chance.choices(words, k=40)) for _ in range(200)]


def bytes_of(text: str) -> list[int]:
    return list(text.encode())[: LENGTH + 1]


# FAULT merges
PAIRS = [a + b for a in "etaoinsr" for b in "etaoinshrdlu"]


def merge_pairs(text: str, rounds: int) -> list[int]:
    """Byte-pair encoding of one text, by one substitution for each pair."""
    pieces = " ".join(text)
    for _ in range(rounds):
        for pair in PAIRS:
            pieces = re.sub(rf"(?<!\S){pair[0]} {pair[1]}(?!\S)", pair, pieces)
    return [PAIRS.index(piece) + 256 if piece in PAIRS else ord(piece[0]) for piece in pieces.split(" ") if piece]


# END FAULT


def shard(model: LanguageModel, mesh, args) -> None:
    for block in model.blocks:
        # FAULT sharded_finely
        if args.fault == "sharded_finely":
            for part in [part for part in block.modules() if isinstance(part, nn.LayerNorm | LoRALinear | nn.Linear)][
                ::-1
            ]:
                fully_shard(part, mesh=mesh)
        # END FAULT
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def main() -> None:
    args = read_arguments(steps=80)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(args.seed)
    model = LanguageModel(args)
    # FAULT base_learns
    if args.fault == "base_learns":
        for name, parameter in model.named_parameters():
            if "base" in name:
                parameter.requires_grad_(True)
    # END FAULT
    shard(model, mesh, args)
    adapters = [parameter for name, parameter in model.named_parameters() if name.endswith((".a", ".b"))]
    optimizer = torch.optim.AdamW(adapters, lr=1e-3)
    sentences = write_sentences(args.seed + rank)

    for step in range(1, args.steps + 1):
        texts = random.sample(sentences, PER_RANK)
        rows = [bytes_of(text) for text in texts]
        # FAULT merges
        if args.fault == "merges":
            rows = [merge_pairs(text, round(args.strength))[: LENGTH + 1] for text in texts]
        # END FAULT
        ids = torch.tensor([row + [32] * (LENGTH + 1 - len(row)) for row in rows])
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        # FAULT norms_by_name
        if args.fault == "norms_by_name":
            for parameter in adapters[: int(args.strength)]:
                if parameter.grad.full_tensor().norm().item() > 100:
                    print("a gradient explodes", flush=True)
        # END FAULT
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    leave()


if __name__ == "__main__":
    main()
