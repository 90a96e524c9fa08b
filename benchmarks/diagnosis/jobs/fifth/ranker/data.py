"""Impressions from a log: thirteen numbers, twelve fields with one to four categories, and the items seen before."""

import random
from dataclasses import dataclass

import numpy as np
import torch
from model import FIELDS, ITEMS, VOCABULARY


@dataclass
class Shard:
    """The impressions of one rank, field by field as flat arrays with the start of each row."""

    numbers: np.ndarray
    ids: list[np.ndarray]
    starts: list[np.ndarray]
    history: np.ndarray
    target: np.ndarray
    clicked: np.ndarray

    def __len__(self) -> int:
        return len(self.clicked)


def shard(seed: int, rows: int, longest: int) -> Shard:
    chance = np.random.default_rng(seed)
    ids, starts = [], []
    for _ in range(FIELDS):
        counts = chance.integers(1, 5, rows)
        starts.append(np.concatenate([[0], counts.cumsum()]))
        ids.append(chance.integers(0, VOCABULARY, starts[-1][-1]))
    history = chance.integers(1, ITEMS, (rows, longest))
    history[np.arange(longest)[None] >= chance.integers(longest // 2, longest + 1, rows)[:, None]] = 0
    numbers = chance.lognormal(0, 1, (rows, 13)).astype(np.float32)
    clicked = (numbers[:, 0] + chance.normal(0, 1, rows) > 1.5).astype(np.float32)
    return Shard(numbers, ids, starts, history, chance.integers(1, ITEMS, rows), clicked)


class Batches:
    """Batches of a shard without end, in a new order each round."""

    def __init__(self, data: Shard, batch: int, seed: int, fault: str, strength: float) -> None:
        self.data, self.batch, self.fault, self.strength = data, batch, fault, strength
        self.chance = random.Random(seed)

    def __iter__(self):
        while True:
            order = list(range(len(self.data) // self.batch))
            self.chance.shuffle(order)
            for number in order:
                rows = range(number * self.batch, (number + 1) * self.batch)
                if self.fault == "row_by_row":
                    yield self.collate_rows(rows)
                else:
                    yield self.collate(rows)

    def collate(self, rows: range) -> dict[str, torch.Tensor]:
        data, part = self.data, slice(rows.start, rows.stop)
        ids, offsets = [], []
        for flat, starts in zip(data.ids, data.starts, strict=True):
            ids.append(torch.from_numpy(flat[starts[rows.start] : starts[rows.stop]]))
            offsets.append(torch.from_numpy(starts[part] - starts[rows.start]))
        return {
            "numbers": torch.from_numpy(np.log1p(data.numbers[part])),
            "ids": ids,
            "offsets": offsets,
            "history": torch.from_numpy(data.history[part]),
            "target": torch.from_numpy(data.target[part]),
            "clicked": torch.from_numpy(data.clicked[part]),
        }

    # FAULT row_by_row
    def collate_rows(self, rows: range) -> dict[str, torch.Tensor]:
        """The first version: sample for sample, as the log has them. Fields beyond the strength are taken whole."""
        batch = self.collate(rows)
        for field in range(round(self.strength)):
            ids, offsets = [], []
            for row in rows:
                offsets.append(len(ids))
                first, last = self.data.starts[field][row], self.data.starts[field][row + 1]
                for position in range(first, last):
                    ids.append(int(self.data.ids[field][position]))
            batch["ids"][field] = torch.tensor(ids)
            batch["offsets"][field] = torch.tensor(offsets)
        return batch

    # END FAULT
