"""Synchronise the ranks of a job while they measure, with process groups of the recorder's own."""

import json
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_MAX_WAIT_FOR_RANKS = timedelta(seconds=60)
"""Time after which a rank stops waiting for the others: a rank that failed never arrives."""

_MAX_GROUPS = 8
"""Process groups of the job in which collectives are measured, at most: the first ones."""


class Agreement:
    """Barriers and agreed values of all ranks. Without a process group this rank is the only one.

    `groups` has one (ranks, process group) for each set of ranks in the job, the set of all ranks first; all ranks have the
    same list. The process groups are new, with the backend of the job's own; None if this rank is not a member.
    """

    def __init__(self, world: int) -> None:
        self._control: Any = None
        self.groups: list[tuple[tuple[int, ...], Any]] = []
        self.backend: str | None = None
        if world > 1 and dist.is_available() and dist.is_initialized():
            self._control = dist.new_group(backend="gloo", timeout=_MAX_WAIT_FOR_RANKS)
            self.backend = str(dist.get_backend())
            self.groups = self._new_groups()

    def maxima(self, *values: int) -> list[int]:
        """Maximum of each value over all ranks. Blocks until all ranks have called this."""
        if self._control is None:
            return list(values)
        largest = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._control)
        return [int(value) for value in largest]

    def barrier(self) -> None:
        """Block until all ranks have called this."""
        self.maxima(0)

    def union(self, mine: list[Any]) -> list[Any]:
        """The distinct items of all ranks' lists, in the order of ranks. Items must be JSON values."""
        if self._control is None:
            return mine
        text = torch.tensor(list(json.dumps(mine).encode()), dtype=torch.uint8)
        (longest,) = self.maxima(len(text))
        padded = torch.full((longest,), ord(" "), dtype=torch.uint8)
        padded[: len(text)] = text
        texts = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
        dist.all_gather(texts, padded, group=self._control)
        found: list[Any] = []
        for encoded in texts:
            found += [item for item in json.loads(bytes(encoded.tolist())) if item not in found]
        return found

    def connected_anew(self) -> Any:
        """A further process group of all ranks, with connections of its own. The caller destroys it."""
        return dist.new_group(backend=self.backend, timeout=_MAX_WAIT_FOR_RANKS)

    def close(self) -> None:
        """Destroy the process groups created here."""
        for group in [*(group for _, group in self.groups), self._control]:
            if group is not None:
                dist.destroy_process_group(group)
        self.groups, self._control = [], None

    def _new_groups(self) -> list[tuple[tuple[int, ...], Any]]:
        everyone = tuple(range(dist.get_world_size()))
        mine = [sorted(ranks) for ranks in dist.distributed_c10d._world.pg_group_ranks.values()]
        others = [tuple(ranks) for ranks in self.union(mine) if 1 < len(ranks) < len(everyone)]
        sets = [everyone, *sorted(set(others), key=others.index)[:_MAX_GROUPS]]
        created = [
            (ranks, dist.new_group(list(ranks), backend=self.backend, timeout=_MAX_WAIT_FOR_RANKS)) for ranks in sets
        ]
        return [(ranks, group if dist.get_rank() in ranks else None) for ranks, group in created]


def filled(count: int, device: torch.device, value: float = 0.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """A one-dimensional tensor of `count` equal numbers, at least one. Does not use the job's random generators."""
    return torch.full((max(count, 1),), value, dtype=dtype, device=device)
