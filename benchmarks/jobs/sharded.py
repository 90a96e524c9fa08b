"""A causal transformer that continues sequences of numbers, its parameters sharded over the ranks by FSDP2."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.jobs.memory import batches, counting, run

NUMBERS = 64
LENGTH = 32
HIDDEN = 128
LAYERS = 3


class Transformer(nn.Module):
    """Logits (batch, length, NUMBERS) of the number that follows each in sequences (batch, length)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(NUMBERS, HIDDEN)
        self.place = nn.Embedding(LENGTH, HIDDEN)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(HIDDEN, 4, 4 * HIDDEN, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(HIDDEN, NUMBERS)

    def forward(self, numbers: Tensor) -> Tensor:
        x = self.embed(numbers) + self.place(torch.arange(LENGTH))
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        logits: Tensor = self.head(x)
        return logits


def train() -> Iterator[float]:
    sequences = counting(NUMBERS, LENGTH + 1)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Transformer()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for inputs, targets in batches(sequences[:, :-1], sequences[:, 1:], 24):
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


if __name__ == "__main__":
    run("sharded", __doc__, train)
