"""What most of a step goes to that is not computing, where no finding tells: its kind, and the place if one is known."""

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
"""Share of the step from which on computing fills it."""

_MEANING = {
    "exposed_communication": "transfers that no computing hides",
    "copy": "copies between host and device",
    "wait": "waiting for other ranks",
    "input_stall": "waiting for input data",
    "host": "the CPU while nothing computes",
    "idle": "no work that was recorded",
}
"""Parts of a `RankBreakdown`, as a sentence names them."""


def computing(parts: Sequence[RankBreakdown]) -> float:
    """Share of the mean step in which devices compute, hidden transfers included; the mean over ranks."""
    return sum(part.compute / part.step_us for part in parts) / len(parts)


def largest_part(replayed: Replayed, parts: Sequence[RankBreakdown]) -> str | None:
    """A sentence on the largest part that is not computing; None where computing fills the step."""
    if computing(parts) >= MIN_COMPUTING_SHARE:
        return None
    mean_us = {name: sum(getattr(part, name) for part in parts) / len(parts) for name in _MEANING}
    name = max(mean_us, key=lambda one: mean_us[one])
    worst = max(parts, key=lambda part: getattr(part, name))
    place, lasted_ns = _place(replayed, worst.rank) if name == "host" else (None, 0.0)
    where = ""
    if place:
        share = "most of it" if lasted_ns >= ns(worst.host) / 2 else f"{readable.duration(lasted_ns)} of it"
        where = f", {share} in {printable(place, LONGEST_NAME)}"
    return f"Of the rest, {readable.duration(ns(mean_us[name]))} go to {_MEANING[name]}{where}."


def _place(replayed: Replayed, rank: Rank) -> tuple[str | None, float]:
    """(where the main thread of a rank is longest outside of computing: a line of Python, or else what was recorded; how
    long in a mean step, ns)."""
    dfg, steps = replayed.built.dfg, replayed.steps.steady
    took: dict[str, float] = defaultdict(float)
    for place, (lasted_ns, _) in PythonTime(replayed.run, dfg, rank).places(steps).items():
        took[text_of(place)] += lasted_ns
    if not took:
        mine = (dfg.rank == rank) & dfg.on(LaneKind.CPU) & dfg.of(Cls.CPU, Cls.HOST_GAP) & np.isin(dfg.step, steps)
        by_name = np.bincount(dfg.name[mine], dfg.dur_ns[mine], len(dfg.names))
        longest = int(by_name.argmax())
        return (dfg.names[longest], float(by_name[longest]) / len(steps)) if by_name.any() else (None, 0.0)
    longest_text = max(took, key=lambda text: took[text])
    return longest_text, took[longest_text]
