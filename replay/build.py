"""From a Run to its Dfg: read the ranks, match collectives, align clocks, build each rank's part, tie the ranks together."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from esprof.errors import InputError
from esprof.replay.assemble import assemble
from esprof.replay.collectives import align_clocks, calls_of, match, meet
from esprof.replay.dfg import Dfg
from esprof.replay.part import rank_part
from esprof.replay.rank_events import read_rank, step_borders
from esprof.replay.rules import ALL_RULES, Rules
from esprof.trace.clocks import Offset
from esprof.trace.run import Run
from esprof.types import Ns, Rank


@dataclass(frozen=True)
class Built:
    """A Dfg with what was counted while it was built."""

    dfg: Dfg
    counts: Counter[str]
    offsets: dict[Rank, Offset]


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
    """`build`, with coverage counts and clock offsets."""
    borders = {rank: step_borders(run, rank) for rank in run.ranks}
    chosen = sorted(steps) if steps else _common(borders, run)
    events = [read_rank(run, rank, borders[rank], chosen) for rank in run.ranks]
    calls = calls_of(run, events)
    number = match(calls)
    offsets = align_clocks(run, calls, number)
    shift_ns = np.array([offsets[rank].shift_ns for rank in run.ranks])
    if not rules.rendezvous:
        number, calls = np.full(len(number), -1), replace(calls, members=np.ones_like(calls.members))
    met, arrival_ns, early = meet(calls, number, shift_ns)
    counts = Counter(
        collectives=int((~calls.is_p2p).sum()),
        p2p=int(calls.is_p2p.sum()),
        collectives_matched=int((number >= 0).sum()),
        negative_transfers=early,
    )
    parts = list((executor.map if executor else map)(partial(rank_part, rules=rules), events, met))
    dfg = assemble(parts, shift_ns, arrival_ns, tuple(chosen), counts)
    return Built(dfg, counts, offsets)


def common_steps(run: Run) -> list[int]:
    """The steps that every rank recorded, ascending; at most one unbroken stretch, the longest."""
    return _common({rank: step_borders(run, rank) for rank in run.ranks}, run)


def _common(borders: dict[Rank, dict[int, tuple[Ns, Ns]]], run: Run) -> list[int]:
    shared = sorted(set.intersection(*map(set, borders.values())))
    stretches: list[list[int]] = []
    for step in shared:
        if stretches and step == stretches[-1][-1] + 1:
            stretches[-1].append(step)
        else:
            stretches.append([step])
    if not stretches:
        raise InputError(
            "its ranks have no recorded step in common",
            path=run.path,
            remedy="Record the same steps on all ranks, or name the trace of one rank.",
        )
    return max(stretches, key=len)
