"""The largest share of a step that is not compute, for runs without a finding: its kind and source location."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from esprof.analyzers.finding import RankBreakdown
from esprof.core import readable
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import Rank, ns
from esprof.replay.cpu.python_time import PythonTime, text_of
from esprof.replay.dfg import Cls, LaneKind
from esprof.replay.replayed import Replayed

MIN_COMPUTING_SHARE = 0.9
"""Share of compute from which on nothing else is worth reporting."""

_MEANING = {
    "exposed_communication": "communication that does not overlap compute",
    "copy": "copies between host and device",
    "wait": "waiting for other ranks",
    "input_stall": "waiting for input data",
    "host": "CPU work while the device idles",
    "idle": "no recorded work",
}
"""Activities of a `RankBreakdown` in words."""


def computing(breakdowns: Sequence[RankBreakdown]) -> float:
    """Share of the mean step in which devices compute, including overlapped communication; the mean over ranks."""
    return sum(one.compute / one.step_us for one in breakdowns) / len(breakdowns)


def largest_share(replayed: Replayed, breakdowns: Sequence[RankBreakdown]) -> str | None:
    """A sentence on the largest share that is not compute; None if compute fills the step."""
    if computing(breakdowns) >= MIN_COMPUTING_SHARE:
        return None
    mean_us = {name: sum(getattr(one, name) for one in breakdowns) / len(breakdowns) for name in _MEANING}
    name = max(mean_us, key=lambda activity: mean_us[activity])
    worst = max(breakdowns, key=lambda one: getattr(one, name))
    location, took_ns = _location(replayed, worst.rank) if name == "host" else (None, 0.0)
    where = ""
    if location:
        share = "most of it" if took_ns >= ns(worst.host) / 2 else f"{readable.duration(took_ns)} of it"
        where = f", {share} in {printable(location, LONGEST_NAME)}"
    return f"The largest part of the rest is {_MEANING[name]}: {readable.duration(ns(mean_us[name]))}{where}."


def _location(replayed: Replayed, rank: Rank) -> tuple[str | None, float]:
    """(where the main thread of a rank spends most time outside of compute: a line of Python, or else a recorded operation;
    its time in a mean step, ns)."""
    dfg, steps = replayed.built.dfg, replayed.steps.steady
    took: dict[str, float] = defaultdict(float)
    for location, (took_ns, _) in PythonTime(replayed.run, dfg, rank).by_location(steps).items():
        took[text_of(location)] += took_ns
    if not took:
        mine = (dfg.rank == rank) & dfg.on(LaneKind.CPU) & dfg.of(Cls.CPU, Cls.HOST_GAP) & np.isin(dfg.step, steps)
        by_name = np.bincount(dfg.name[mine], dfg.dur_ns[mine], len(dfg.names))
        longest = int(by_name.argmax())
        return (dfg.names[longest], float(by_name[longest]) / len(steps)) if by_name.any() else (None, 0.0)
    longest_text = max(took, key=lambda text: took[text])
    return longest_text, took[longest_text]
