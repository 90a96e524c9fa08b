"""Warnings of a run that was replayed: about its steps, its clocks, and what its graph could not tie together."""

import numpy as np

from esprof.core import readable
from esprof.core.types import NS_PER_US
from esprof.replay.building.build import Built
from esprof.replay.building.node_names import TEXTS, Text
from esprof.replay.steps import RecordedSteps
from esprof.run.clocks.by_collectives import HostClock
from esprof.run.run import Run, RunWarning

_MAX_CLOCKS_NAMED = 4
"""Clocks that one warning names before it only counts the others."""


def warnings_of_replay(steps: RecordedSteps, built: Built) -> tuple[RunWarning, ...]:
    """Warnings of a run, its steps, its clocks and its graph."""
    run = steps.run
    return run.warnings + _step_warnings(steps) + _clock_warnings(run, built) + _count_warnings(run, built)


def _step_warnings(steps: RecordedSteps) -> tuple[RunWarning, ...]:
    """Warnings of steps that were recorded, and are not in the graph."""
    found = []
    if len(steps.windows) > 1:
        text = (
            f"analysed one of {len(steps.windows)} windows, steps {steps.all[0]} to {steps.all[-1]}; "
            "--window STEP selects another"
        )
        found.append(RunWarning("one-window", text))
    lost = steps.lost
    if lost:
        text = f"{readable.numbered('step', lost)} left out: not all ranks recorded them"
        found.append(RunWarning("steps-left-out", text))
    return tuple(found)


def _clock_warnings(run: Run, built: Built) -> tuple[RunWarning, ...]:
    found = []
    hosts = {run.rank(rank).host for rank in run.ranks}
    # Ranks whose host is unknown are most likely of one host, with one clock.
    loose = [clock.host for clock in built.clocks.untied if clock.host in hosts]
    if loose:
        text = f"clock of {', '.join(loose)} not aligned: no collective connects it to the other hosts"
        found.append(RunWarning("clocks-unaligned", text))
    moved = [clock for clock in built.clocks.hosts if clock.moved]
    if moved:
        corrections = readable.listed([f"{one.host} by {_correction(one)}" for one in moved], _MAX_CLOCKS_NAMED)
        text = f"clocks corrected to match the ends of collectives: {corrections}"
        found.append(RunWarning("clock-shifted", text, tuple(rank for clock in moved for rank in clock.ranks)))
    return tuple(found)


def _correction(clock: HostClock) -> str:
    drift = f" and {clock.drift_ppm:+.1f} ppm" if clock.drift_ppm else ""
    return f"{-clock.offset_ns / NS_PER_US:.0f} µs{drift}"


def _inferred_work_warnings(built: Built) -> list[RunWarning]:
    """Warnings of inferred GPU work: from before the window, with its longest time on a rank, and of CUDA graphs."""
    dfg, found = built.dfg, []
    cut, graphs = (np.flatnonzero(dfg.named(TEXTS[text].__eq__)) for text in (Text.CUT_WORK, Text.GRAPH_WORK))
    if len(cut):
        ranks = np.unique(dfg.rank[cut]).tolist()
        # The pieces of a rank begin together, on several streams or one after the other.
        begin = {rank: int(dfg.recorded_ns[cut[dfg.rank[cut] == rank]].min()) for rank in ranks}
        ends = (dfg.recorded_ns + dfg.dur_ns)[cut]
        longest = max(int(end) - begin[rank] for rank, end in zip(dfg.rank[cut].tolist(), ends, strict=True))
        text = f"the GPU begins the window with {readable.duration(longest)} of work that was not recorded"
        found.append(RunWarning("work-before-window", text, tuple(ranks)))
    if len(graphs):
        text = f"the kernels of {len(graphs)} launches of CUDA graphs were not recorded; their time is inferred"
        found.append(RunWarning("graphs-not-recorded", text, tuple(np.unique(dfg.rank[graphs]).tolist())))
    return found


def _count_warnings(run: Run, built: Built) -> tuple[RunWarning, ...]:
    counts, found = built.counts, []
    seen = counts.collectives + counts.p2p
    unmatched = sum(built.unmatched.values())
    if unmatched:
        text = f"{unmatched} of {seen} collective and point-to-point calls have no counterpart on their peers"
        found.append(RunWarning("collectives-unmatched", text, tuple(rank for rank, n in built.unmatched.items() if n)))
    missing = run.missing_ranks
    if counts.collectives_partial and missing:
        which = f"{counts.collectives_partial} of {seen} collective and point-to-point calls"
        text = f"{which} were matched without {readable.ranks(missing)}: waiting for them counts as communication"
        found.append(RunWarning("collectives-partial", text, missing))
    found += _inferred_work_warnings(built)
    # That a guess was wrong says nothing of the traces.
    recorded = counts.edges_dropped - counts.guesses_dropped
    if recorded:
        text = f"{recorded} dependencies dropped because they formed a cycle: events may be missing"
        found.append(RunWarning("cycle-broken", text))
    return tuple(found)
