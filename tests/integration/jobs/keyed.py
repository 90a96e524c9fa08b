"""Two passes over samples that are drawn with replacement: `keyed.py WORKERS`.

Prints the keys of each pass in order, and the hits of the LRU cache in this process.
"""

import json
import sys
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

ITEMS, BATCH, CACHED = 50, 4, 20


@lru_cache(CACHED)
def read(index: int) -> Tensor:
    return torch.full((8,), float(index))


class Numbered(Dataset[Tensor]):
    """Samples with keys 0 to 49."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> Tensor:
        return read(index)


workers = int(sys.argv[1])
sampler = WeightedRandomSampler([1 + index % 5 for index in range(ITEMS)], ITEMS)
loader = DataLoader(Numbered(), batch_size=BATCH, sampler=sampler, num_workers=workers)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
passes: list[list[int]] = []
hits = []
for _ in range(2):
    passes.append([])
    before = read.cache_info().hits
    for batch in loader:
        passes[-1] += [round(key) for key in batch[:, 0].tolist()]
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    hits.append(read.cache_info().hits - before)
print(json.dumps({"passes": passes, "hits": hits}))
