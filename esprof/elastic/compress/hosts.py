"""Hierarchical exchanges, which compress gradients between hosts only.

The ranks of one host first reduce-scatter their gradients, uncompressed. The owner of each shard exchanges it, compressed,
with the owners of the same shard on the other hosts; then the shards are all-gathered within the host.
"""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from esprof.core.errors import UsageError
from esprof.core.plan import CodecChoice
from esprof.elastic.compress import exchanges
from esprof.elastic.compress.codecs.codec import State
from esprof.elastic.compress.exchanges import Counted, Links, Steps, shard_size
from esprof.elastic.runtime.transport import GroupTransport


@dataclass(frozen=True)
class Hosts:
    """The hosts of a job, each with the same number of ranks, and this rank's links."""

    of_rank: tuple[int, ...]
    """Number of each rank's host, in rank order."""
    within: Links
    """Between the ranks of this host."""
    between: Counted
    """Between the owners of this rank's shard, one per host. Used only by the thread that completes exchanges."""

    @property
    def sent(self) -> int:
        """Bytes that this rank has sent to others over these links so far."""
        return self.within.first.sent + self.within.later.sent + self.between.sent

    def unsent(self, state: State, numel: int) -> Tensor | None:
        """Like `exchanges.unsent`: the residual that this rank has to add to its next gradient of `numel` entries. The
        state is that of its shard of the host's mean."""
        link, shard = self.within.later, shard_size(numel, self.within.later.world)
        residual = exchanges.unsent(state, shard, self.between)
        if residual is None:
            return None
        whole = residual.new_zeros(link.world * shard)
        # The host's mean divides it by the number of ranks of the host.
        whole[link.rank * shard : (link.rank + 1) * shard] = residual * link.world
        return whole[:numel]


class SharedHosts:
    """The hosts of a job's ranks, determined on first use. All ranks make the same calls."""

    def __init__(self, group: dist.ProcessGroup, *, threaded: bool) -> None:
        """`threaded` as in `hosts_of`."""
        self._group, self._threaded = group, threaded
        self.found: Hosts | None = None

    @property
    def known(self) -> Hosts:
        assert self.found is not None, "no choice is taken before the hosts that it needs are known"
        return self.found

    def find_for(self, *choices: CodecChoice) -> None:
        """Determine the hosts if a choice needs them. Raises UsageError if ranks cannot exchange gradients between hosts."""
        if self.found is None and any(choice.topology == "hierarchical" for choice in choices):
            self.found = hosts_of(self._group, threaded=self._threaded)


def hosts_of(group: dist.ProcessGroup, *, threaded: bool) -> Hosts:
    """Determine which ranks of `group` share a host, and create process groups. All ranks of the job call it. With
    `threaded`, collectives are also started by a thread other than that of the backward pass, and each host gets two
    groups. Raises UsageError on all ranks if the hosts do not support hierarchical exchanges."""
    names: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(names, socket.gethostname(), group=group)
    ranks = dist.get_process_group_ranks(group)
    hosts = arranged(names)
    me = dist.get_rank(group)

    def mine(sets: Sequence[Sequence[int]]) -> Counted:
        # All ranks have to make all groups, in the same order.
        made = [(members, dist.new_group([ranks[one] for one in members])) for members in sets]
        return next(Counted(GroupTransport(one)) for members, one in made if me in members)

    first = mine(hosts)
    within = Links(first, mine(hosts) if threaded else Counted(first.inner))
    between = mine(list(zip(*hosts, strict=True)))
    of_rank = tuple(next(number for number, host in enumerate(hosts) if one in host) for one in range(len(names)))
    return Hosts(of_rank, within, between)


def arranged(names: Sequence[str]) -> list[list[int]]:
    """The ranks of each host, from each rank's host name. Raises UsageError unless there are several hosts with the
    same number of ranks, at least two each."""
    hosts: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        hosts.setdefault(name, []).append(rank)
    counts = {name: len(ranks) for name, ranks in hosts.items()}
    most, fewest = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    if len(hosts) == 1:
        wrong = f"all ranks are on one ({names[0]})"
    elif counts[most] != counts[fewest]:
        wrong = f"{most} has {counts[most]} ranks, and {fewest} has {counts[fewest]}"
    elif counts[most] == 1:
        wrong = "each has one rank alone"
    else:
        return list(hosts.values())
    raise UsageError(
        f"hierarchical exchanges need several hosts with the same number of ranks, at least two each, but {wrong}",
        remedy="Use the topology `flat`.",
    )


def by_hosts(gradient: Tensor, within: Links, between: Callable[[Tensor], Steps]) -> Steps:
    """The exchange that replaces `gradient` (1-D) by the mean over all ranks; `between` averages this rank's shard
    over the hosts."""
    world = within.first.world
    shard = shard_size(len(gradient), world)
    received, work = within.first.swap(torch.nn.functional.pad(gradient, (0, world * shard - len(gradient))))
    yield work
    mine, *others = received.split(shard)
    for other in others:
        mine += other
    mine *= 1 / world
    yield from between(mine)
    whole, work = within.later.gather(mine)
    yield work
    gradient.copy_(whole[: len(gradient)])
