"""From a Run to its Dfg: read the ranks, match collectives, align clocks, build each rank's part, tie the ranks together."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from esprof.errors import InputError
from esprof.replay.building.assemble import assemble
from esprof.replay.building.collectives import calls_of, match
from esprof.replay.building.part import rank_part
from esprof.replay.building.rank_events import read_rank, step_borders
from esprof.replay.building.rendezvous import meet
from esprof.replay.dfg import Dfg
from esprof.replay.rules import ALL_RULES, Rules
from esprof.replay.windows import unbroken
from esprof.trace.clocks.by_collectives import Clocks, Transfers
from esprof.trace.run import Run
from esprof.types import Ns, Rank


@dataclass(frozen=True)
class Built:
    """A Dfg with what was counted while it was built."""

    dfg: Dfg
    counts: Counter[str]
    unmatched: dict[Rank, int]
    """Calls of each rank that have peers, and could not be matched with them."""
    clocks: Clocks
    transfers: Transfers


def build(
    run: Run, steps: Sequence[int] | None = None, executor: Executor | None = None, rules: Rules = ALL_RULES
) -> Dfg:
    """The global dataflow graph of `run` over `steps` (default: all that every rank recorded).

    With an executor, of threads or processes, ranks are built side by side.
    """
    return build_counted(run, steps, executor, rules).dfg


def build_counted(
    run: Run, steps: Sequence[int] | None = None, executor: Executor | None = None, rules: Rules = ALL_RULES
) -> Built:
    """`build`, with what was counted on the way, and what the clocks told."""
    borders = {rank: step_borders(run, rank) for rank in run.ranks}
    chosen = sorted(steps) if steps else _common(borders, run)
    events = [read_rank(run, rank, borders[rank], chosen) for rank in run.ranks]
    calls = calls_of(run, events)
    number = match(calls)
    if not rules.rendezvous:
        number, calls = np.full(len(number), -1), replace(calls, members=np.ones_like(calls.members))
    rendezvous = meet(run, calls, number)
    counts = Counter(
        collectives=int((~calls.is_p2p).sum()),
        p2p=int(calls.is_p2p.sum()),
        # A rank alone has nobody to be matched with.
        collectives_matched=int((~calls.is_p2p & ((number >= 0) | (calls.members == 1))).sum()),
        p2p_matched=int((calls.is_p2p & (number >= 0)).sum()),
        negative_transfers=rendezvous.early,
    )
    parts = list((executor.map if executor else map)(partial(rank_part, rules=rules), events, rendezvous.met))
    dfg = assemble(parts, rendezvous, tuple(chosen), counts)
    alone = calls.rank[(number < 0) & (calls.members != 1)]
    unmatched = dict(zip(run.ranks, np.bincount(alone, minlength=len(run.ranks)).tolist(), strict=True))
    return Built(dfg, counts, unmatched, rendezvous.clocks, rendezvous.transfers)


def common_steps(run: Run) -> list[int]:
    """The steps that every rank recorded, ascending; at most one unbroken stretch, the longest, and of equals the latest."""
    return _common({rank: step_borders(run, rank) for rank in run.ranks}, run)


def _common(borders: dict[Rank, dict[int, tuple[Ns, Ns]]], run: Run) -> list[int]:
    stretches = unbroken(borders)
    if not stretches:
        raise InputError(
            "its ranks have no recorded step in common",
            path=run.path,
            remedy="Record the same steps on all ranks, or name the trace of one rank.",
        )
    longest = max(map(len, stretches))
    return list([stretch for stretch in stretches if len(stretch) == longest][-1])
