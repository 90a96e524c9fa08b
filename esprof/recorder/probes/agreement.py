"""How the ranks of a job stay in step while they measure, by process groups of their own."""

import json
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_MAX_WAIT_FOR_RANKS = timedelta(seconds=60)
"""How long a rank waits for others: one that failed does not come."""

_MAX_GROUPS = 8
"""Sets of ranks of which collectives are measured: those of the job's groups that come first."""


class Agreement:
    """Ranks that go on together. Without a process group there is one rank, which agrees with itself.

    `groups` are the job's sets of ranks, that of all ranks first: the same list on all ranks. Each is a process group of
    ours, with the backend that carries the job's own; None where this rank is not in it.
    """

    def __init__(self, world: int) -> None:
        self._control: Any = None
        self.groups: list[tuple[tuple[int, ...], Any]] = []
        self.backend: str | None = None
        if world > 1 and dist.is_available() and dist.is_initialized():
            self._control = dist.new_group(backend="gloo", timeout=_MAX_WAIT_FOR_RANKS)
            self.backend = str(dist.get_backend())
            self.groups = self._made()

    def most(self, *values: int) -> list[int]:
        """The largest of each value over all ranks. All ranks wait here for one another."""
        if self._control is None:
            return list(values)
        largest = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._control)
        return [int(value) for value in largest]

    def meet(self) -> None:
        """Wait until all ranks are here."""
        self.most(0)

    def united(self, mine: list[Any]) -> list[Any]:
        """What any rank has, as JSON, each once, in the order of ranks."""
        if self._control is None:
            return mine
        text = torch.tensor(list(json.dumps(mine).encode()), dtype=torch.uint8)
        (longest,) = self.most(len(text))
        padded = torch.full((longest,), ord(" "), dtype=torch.uint8)
        padded[: len(text)] = text
        parts = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, padded, group=self._control)
        found: list[Any] = []
        for part in parts:
            found += [one for one in json.loads(bytes(part.tolist())) if one not in found]
        return found

    def close(self) -> None:
        """Free the groups. The job's own are left alone."""
        for group in [*(made for _, made in self.groups), self._control]:
            if group is not None:
                dist.destroy_process_group(group)
        self.groups, self._control = [], None

    def _made(self) -> list[tuple[tuple[int, ...], Any]]:
        everyone = tuple(range(dist.get_world_size()))
        mine = [sorted(ranks) for ranks in dist.distributed_c10d._world.pg_group_ranks.values()]
        others = [tuple(one) for one in self.united(mine) if 1 < len(one) < len(everyone)]
        sets = [everyone, *sorted(set(others), key=others.index)[:_MAX_GROUPS]]
        made = [(one, dist.new_group(list(one), backend=self.backend, timeout=_MAX_WAIT_FOR_RANKS)) for one in sets]
        return [(one, group if dist.get_rank() in one else None) for one, group in made]


def filled(count: int, device: torch.device, value: float = 0.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor of equal numbers, at least one, made without the job's random generators."""
    return torch.full((max(count, 1),), value, dtype=dtype, device=device)
