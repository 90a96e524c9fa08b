"""The line of the job's own code that makes some of the calls of a module, but not the others."""

import re
from collections import Counter
from itertools import islice

import numpy as np

from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.views.enclosing import EnclosingCalls
from esprof.core.types import Rank
from esprof.run.stacks import is_own

_CALL = re.compile(r"([^\n]*torch/nn/modules/module\.py\(\d+\): [^\n]*(\n|$))+")
"""Matches the frames of a call of a module."""


def calling_line(samples: JobSamples, rank: Rank, enclosing: EnclosingCalls, calls: list[int]) -> str | None:
    """The line that makes these calls of one module, given by rows within them, as `file(line): function`; None if no
    sample shows it.

    If other calls of the module come through some of the same lines, as through a method that leads to it, it is the
    outermost line that is not among these.
    """
    around = [enclosing.module_calls(row) for row in calls]
    around = [modules for modules in around if modules]
    if not around:
        return None
    depth = len(around[0])
    made = {modules[-1] for modules in around}
    events = samples.run.events(rank)
    names = events.codes("name")[0]
    alike = set(np.flatnonzero(names == names[around[0][-1]]).tolist())
    lines = _lines_above(samples, rank, sorted(made), depth)
    if not lines:
        return None
    found = lines.most_common(1)[0][0]
    elsewhere = {line for chain in _lines_above(samples, rank, sorted(alike - made), depth) for line in chain}
    return next((line for line in found if elsewhere and line not in elsewhere), found[-1])


def _lines_above(samples: JobSamples, rank: Rank, calls: list[int], depth: int) -> Counter[tuple[str, ...]]:
    """Lines of the job's own code, outermost first, that lead to the call of a module within `depth` - 1 others, as often
    as samples in these calls (rows) show them."""
    events, rank_samples = samples.run.events(rank), samples.of(rank)
    begin = events.ints("start_ns")[calls]
    end, at = begin + events.ints("dur_ns")[calls], rank_samples.at_ns
    inside = np.searchsorted(np.sort(begin), at, "right") > np.searchsorted(np.sort(end), at, "left")
    found: Counter[tuple[str, ...]] = Counter()
    for code in rank_samples.code[inside & (rank_samples.code >= 0)].tolist():
        stack = rank_samples.stacks[code]
        above = list(islice(_CALL.finditer(stack), depth))
        if len(above) == depth:
            lines = stack[: above[-1].start()].split("\n")
            found[tuple(line for line in lines if line and is_own(line))] += 1
    found.pop((), None)
    return found
