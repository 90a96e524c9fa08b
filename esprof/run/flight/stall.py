"""Find the cause of a hang that may not be in a collective, from snapshots: before the end of the first step ranks may wait
in `init_process_group`, and at any time for a lock, a read or a DataLoader worker.
"""

from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from esprof.core import readable
from esprof.core.types import Ns, Rank
from esprof.run.flight.hang import Hang, find_hang
from esprof.run.flight.log import Snapshot

StallKind = Literal["collective", "unjoined", "joining", "loader", "alone", "slow"]


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """Why ranks make no progress.

    - `collective`: ranks wait in a collective, see `waits`.
    - `unjoined`: ranks in `at_fault` did not enter `init_process_group`, in which others wait.
    - `joining`: all ranks are in `init_process_group`, and it does not end.
    - `loader`: ranks wait for workers of their data loaders.
    - `alone`: ranks wait for something else.
    - `slow`: a rank that others may wait for computes, so there may be no fault.
    """

    kind: StallKind
    at_fault: tuple[Rank, ...]
    """The ranks that others wait for, or that wait for no other rank; for `slow`, those that compute."""
    others: tuple[Rank, ...] = ()
    """The ranks that wait for them."""
    unseen: tuple[Rank, ...] = ()
    """The ranks at fault without a snapshot."""
    waits: Hang | None = None
    waited_ns: Ns = 0
    """Longest time that a rank was at the same source location, ns."""

    @property
    def waiting_ranks(self) -> tuple[Rank, ...]:
        return self.others or self.at_fault

    def __str__(self) -> str:
        """One sentence, without a full stop."""
        who, others, wait = (
            readable.ranks(self.at_fault),
            readable.ranks(self.others),
            readable.verb("wait", self.others),
        )
        if self.waits is not None and self.kind == "collective":
            return str(self.waits)
        match self.kind:
            case "unjoined" if self.unseen == self.at_fault:
                return f"{others} {wait} in init_process_group, and nothing is seen of {who}"
            case "unjoined":
                return f"{who} did not enter init_process_group, which {others} {wait} in"
            case "joining":
                return f"init_process_group does not end, though all of {who} entered it"
            case "loader":
                whose = "its data loader" if len(self.at_fault) == 1 else "their data loaders"
                return f"{who} {readable.verb('wait', self.at_fault)} for a worker of {whose}"
            case "alone":
                return f"{who} {readable.verb('wait', self.at_fault)} for something that is no collective"
            case _:
                return f"{who} {'computes' if len(self.at_fault) == 1 else 'compute'} at one place"


def find_stall(snapshots: Mapping[Rank, Snapshot]) -> Stall | None:
    """Find the ranks that block the job, from one snapshot per rank; None if no rank hangs or stays at one source location
    for long."""
    still = {rank for rank, one in snapshots.items() if one.stands_still}
    moving = snapshots.keys() - still
    found = _fault(snapshots, still) if still else None
    if found is not None and found.kind in ("collective", "unjoined"):
        moving &= set(found.at_fault)
    if moving or found is None:
        slow = [rank for rank in moving if snapshots[rank].lingers]
        if not slow:
            return None
        found = Stall(kind="slow", at_fault=_all(slow), others=_all(still))
    waited_ns = max((one.same_place_ns or 0 for one in snapshots.values() if one.lingers), default=0)
    return msgspec.structs.replace(found, waited_ns=waited_ns)


def _fault(snapshots: Mapping[Rank, Snapshot], still: Collection[Rank]) -> Stall:
    waits = find_hang(snapshots)
    if waits is not None:
        return Stall(kind="collective", at_fault=waits.at_fault, others=waits.waiting_ranks, waits=waits)
    joining = {rank for rank in still if snapshots[rank].joins}
    if not joining:
        in_loader = all(snapshots[rank].workers for rank in still)
        return Stall(kind="loader" if in_loader else "alone", at_fault=_all(still))
    world = range(max(one.world_size or 1 for one in snapshots.values()))
    joined = {rank for rank, one in snapshots.items() if one.joins or one.groups}
    absent = set(world) - joined
    unseen = absent - set(snapshots)
    if absent:
        return Stall(kind="unjoined", at_fault=_all(absent), others=_all(joining), unseen=_all(unseen))
    return Stall(kind="joining", at_fault=_all(joining))


def _all(ranks: Collection[Rank]) -> tuple[Rank, ...]:
    return tuple(sorted(ranks))
