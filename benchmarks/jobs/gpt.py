"""A small GPT that learns Python, byte by byte, from the sources of the standard library."""

import functools
import itertools
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.jobs.arguments import Arguments, parse
from benchmarks.jobs.files import Sample
from benchmarks.jobs.loop import Task, run

CONTEXT = 64
HEADS = 4
BYTES = 256


class Block(nn.Module):
    """Causal self-attention and a perceptron, each on a residual stream of (batch, context, hidden)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(hidden)
        self.attend = nn.Linear(hidden, 3 * hidden)
        self.project = nn.Linear(hidden, hidden)
        self.norm_2 = nn.LayerNorm(hidden)
        self.widen = nn.Linear(hidden, 4 * hidden)
        self.narrow = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        out: Tensor = x + self.narrow(F.gelu(self.widen(self.norm_2(x))))
        return out

    def attention(self, x: Tensor) -> Tensor:
        batch, context, hidden = x.shape
        q, k, v = (
            part.view(batch, context, HEADS, hidden // HEADS).transpose(1, 2)
            for part in self.attend(x).split(hidden, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.project(mixed.transpose(1, 2).reshape(batch, context, hidden))
        return out


class GPT(nn.Module):
    """Next-byte logits (batch, 256, context) from bytes (batch, context)."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(BYTES, hidden)
        self.place = nn.Embedding(CONTEXT, hidden)
        self.blocks = nn.Sequential(*(Block(hidden) for _ in range(layers)))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, BYTES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place(torch.arange(CONTEXT))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits.transpose(1, 2)


def model(arguments: Arguments) -> nn.Module:
    return GPT(arguments.hidden, arguments.layers)


def write(path: Path, index: int) -> None:
    path.write_bytes(sources()[index * CONTEXT :][: CONTEXT + 1])


def read(path: Path) -> Sample:
    """Bytes (context) and the byte that follows each."""
    text = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()
    return text[:-1], text[1:]


@functools.cache
def sources(least: int = 1 << 20) -> bytes:
    """The standard library's modules, one after the other, to at least 1 MiB."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    lengths = itertools.accumulate((module.stat().st_size for module in modules), initial=0)
    enough = itertools.takewhile(lambda pair: pair[1] < least, zip(modules, lengths, strict=False))
    return b"".join(module.read_bytes() for module, _ in enough)


if __name__ == "__main__":
    run(Task("gpt", ".txt", write, read, model, F.cross_entropy), parse(__doc__, hidden=128, layers=4, batch=8))
