"""A small GPT that learns Python, byte by byte, on however many processes there are, and unlike ones.

esprof tune -o RUN -- torchrun --nproc-per-node 2 examples/closed_loop/train.py

It knows nothing of tuning: `esprof tune` tells the trainer where its Run is. `--slow RANK` makes one rank slow, for machines
whose processes are all alike.
"""

import argparse
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from esprof.elastic import Checkpoint, Data, ElasticTrainer, Proof

CONTEXT, HIDDEN, HEADS, BYTES = 64, 160, 4, 256


class Text(Dataset[Tensor]):
    """Windows of CONTEXT + 1 bytes of the standard library's sources."""

    def __init__(self) -> None:
        sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:100]
        self.bytes = torch.frombuffer(bytearray(b"".join(map(Path.read_bytes, sources))), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // CONTEXT

    def __getitem__(self, index: int) -> Tensor:
        return self.bytes[index * CONTEXT : (index + 1) * CONTEXT + 1]


class Gpt(nn.Module):
    """Logits of the next byte (batch, context, BYTES) from bytes (batch, context)."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(BYTES, HIDDEN), nn.Embedding(CONTEXT, HIDDEN)
        layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, 4 * HIDDEN, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(HIDDEN, BYTES)

    def forward(self, text: Tensor) -> Tensor:
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=text.device)
        embedded = self.embed(text) + self.place(torch.arange(length, device=text.device))
        out: Tensor = self.head(self.blocks(embedded, mask=mask, is_causal=True))
        return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument(
        "--workers", type=int, default=8, help="logical workers (ESTs): the training depends on their number"
    )
    parser.add_argument("--checkpoints", help="a folder, to go on from the last one")
    parser.add_argument("--hashes", help="a log of each step's hashes")
    parser.add_argument("--slow", type=int, metavar="RANK", help="let this rank take twice as long")
    options = parser.parse_args()
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    is_slow = dist.get_rank() == options.slow
    torch.manual_seed(0)
    model = Gpt(layers=3)

    def loss_of(model: nn.Module, text: Tensor) -> Tensor:
        began = time.perf_counter()
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        if is_slow:
            time.sleep(3 * (time.perf_counter() - began))  # A backward pass takes two forward ones.
        return loss

    trainer = ElasticTrainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        loss_of,
        Data(Text(), batch_size=2),
        n_est=options.workers,
        checkpoint=Checkpoint(options.checkpoints, every=50) if options.checkpoints else None,
        proof=Proof(hash_log=options.hashes),
    )
    while trainer.next_step < options.steps:
        result = trainer.step()
        if dist.get_rank() == 0 and result.step % 50 == 0:
            print(f"step {result.step}: loss {result.loss:.3f}", flush=True)
    trainer.close()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)  # PyTorch 2.13 may abort a process that ends right after its last collective on gloo.


if __name__ == "__main__":
    main()
