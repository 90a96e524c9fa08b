"""The line of the job's own code that makes some of the calls of a module, but not the others."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import islice

import numpy as np

from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.views.enclosing import EnclosingCalls
from esprof.core.types import Rank
from esprof.run.stacks import is_own

_CALL = re.compile(r"([^\n]*torch/nn/modules/module\.py\(\d+\): [^\n]*(\n|$))+")
"""Matches the frames of a call of a module."""


def calling_line(samples: JobSamples, rank: Rank, calls: Iterable[int]) -> str | None:
    """The line that makes these calls of one module, given by rows within them, as `file(line): function`; None if no
    sample shows it.

    If other calls of the module come through some of the same lines, as through a method that leads to it, it is the
    outermost line that is not among these.
    """
    enclosing, events = EnclosingCalls(samples, rank), samples.run.events(rank)
    made = {modules[-1] for row in calls if (modules := enclosing.module_calls(row))}
    if not made:
        return None
    names = events.codes("name")[0]
    alike = set(np.flatnonzero(names == names[min(made)]).tolist())
    lines = _lines_above(samples, rank, enclosing, made)
    if not lines:
        return None
    found = lines.most_common(1)[0][0]
    elsewhere = {line for chain in _lines_above(samples, rank, enclosing, alike - made) for line in chain}
    return next((line for line in found if elsewhere and line not in elsewhere), found[-1])


def _lines_above(
    samples: JobSamples, rank: Rank, enclosing: EnclosingCalls, calls: Iterable[int]
) -> Counter[tuple[str, ...]]:
    """Lines of the job's own code, outermost first, that lead to these calls of modules (rows), as often as samples show
    them."""
    of_depth: dict[int, list[int]] = defaultdict(list)
    for row in calls:
        of_depth[len(enclosing.module_calls(row))].append(row)
    found: Counter[tuple[str, ...]] = Counter()
    for depth, rows in of_depth.items():
        for stack in _stacks_in(samples, rank, rows):
            above = list(islice(_CALL.finditer(stack), depth))
            if len(above) == depth:
                lines = stack[: above[-1].start()].split("\n")
                found[tuple(line for line in lines if line and is_own(line))] += 1
    found.pop((), None)
    return found


def _stacks_in(samples: JobSamples, rank: Rank, calls: list[int]) -> list[str]:
    """The stack of each sample in these calls (rows)."""
    events, rank_samples = samples.run.events(rank), samples.of(rank)
    begin, at = events.ints("start_ns")[calls], rank_samples.at_ns
    end = begin + events.ints("dur_ns")[calls]
    inside = np.searchsorted(np.sort(begin), at, "right") > np.searchsorted(np.sort(end), at, "left")
    return [rank_samples.stacks[code] for code in rank_samples.code[inside & (rank_samples.code >= 0)].tolist()]
