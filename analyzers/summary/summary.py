"""The Report of a run: diagnosis, replay with the usual what-ifs, and an excerpt of the timeline."""

import numpy as np

from esprof import __version__
from esprof.analyzers.advisors.job.est_answer import EstAdvice
from esprof.analyzers.advisors.job.ests import advise_ests
from esprof.analyzers.diagnosis import diagnose_replayed
from esprof.analyzers.ignore import NOTHING, Ignores
from esprof.analyzers.ops import Asked, ops
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.samples.flame import flame
from esprof.analyzers.steps.step_times import step_times
from esprof.analyzers.summary.report import Bar, Excerpt, Report
from esprof.analyzers.views.breakdown import stalls, waits
from esprof.analyzers.views.memory_use import memory_use
from esprof.analyzers.views.probed import probed
from esprof.core.errors import EsprofError
from esprof.core.types import Ns, us
from esprof.replay.dfg import Cls
from esprof.replay.replayed import Replayed, answer
from esprof.run.run import Run

WHAT_IFS = ("gpu=2x", "cpu=2x", "network=2x", "data=0", "straggler=fix")
"""What-ifs of every report."""

MAX_BARS = 3_000
MAX_STEPS_DRAWN = 2
MAX_OPERATIONS = 40
MAX_EVENTS = 100
MAX_BARS_ACROSS = 2_000
"""A bar shorter than 1/MAX_BARS_ACROSS of the excerpt is too thin to see; it is merged with its neighbour of the same
class."""


def summarize(of: Run | Replayed, ignores: Ignores = NOTHING) -> Report:
    """Everything that a renderer shows about a run. A Run is built and replayed; findings covered by `ignores` are listed
    separately. Raises InputError if the run has no graph."""
    replayed = of if isinstance(of, Replayed) else Replayed.of(of)
    run, job = replayed.run, RecordedJob(replayed.run)
    diagnosis = diagnose_replayed(replayed, job, ignores)
    return Report(
        title=str(run.path.name) if run.path else "run",
        source=str(run.path or ""),
        command=run.meta.command,
        esprof_version=__version__,
        versions=run.meta.versions,
        created_ns=run.meta.created_ns,
        ranks=run.meta.ranks,
        diagnosis=diagnosis,
        replay=answer(replayed, WHAT_IFS),
        steps=step_times(job, diagnosis.findings),
        timeline=excerpt(replayed),
        operations=ops(replayed.steps, job.samples, Asked(top=MAX_OPERATIONS)),
        flame=flame(job.samples),
        memory=memory_use(run),
        probed=probed(run.probes) if run.probes is not None else None,
        assignment=_assignment(replayed),
        history=run.history[-MAX_EVENTS:],
        rounds=run.rounds[-MAX_EVENTS:],
    )


def _assignment(replayed: Replayed) -> EstAdvice | None:
    try:
        return advise_ests(replayed)
    except EsprofError:  # Not an elastic job, or too little was recorded.
        return None


def excerpt(replayed: Replayed) -> Excerpt:
    """The last steady-state steps as bars, one row for each lane. At most `MAX_BARS`; the rest is only counted."""
    timeline, dfg = replayed.timeline, replayed.built.dfg
    last = int(replayed.pricer.steady_at[-1])
    first = last - 1 if last - 1 in replayed.pricer.steady_at and MAX_STEPS_DRAWN > 1 else last
    begin, finish = int(timeline.end_ns[dfg.marks.first[first]].min()), int(timeline.end_ns[dfg.marks.last[last]].max())
    inside = (timeline.end_ns > begin) & (timeline.start_ns < finish) & (dfg.dur_ns > 0) & (dfg.rank >= 0)
    bars: list[Bar] = []
    for number, lane in enumerate(dfg.lanes):
        nodes = np.flatnonzero(inside & (dfg.lane == number))
        spans = [
            (int(timeline.start_ns[n]), int(timeline.end_ns[n]), dfg.label(int(n)), Cls(dfg.cls[n]).label)
            for n in nodes
        ]
        for start, end, name, cls in _merged(spans, (finish - begin) / MAX_BARS_ACROSS):
            bars.append(_bar(lane.rank, lane.role, max(start, begin), min(end, finish), begin, name, cls))
    for rank in dfg.marks.ranks:
        for role, name, cls, spans_of in (
            ("waits", "wait for peers", "wait", waits),
            ("waits", "wait for data", "data", stalls),
        ):
            for start, end in spans_of(timeline, rank).tolist():
                if start < end and end > begin and start < finish:
                    bars.append(_bar(rank, role, max(start, begin), min(end, finish), begin, name, cls))
    longest = sorted(range(len(bars)), key=lambda n: (-bars[n].dur_us, n))[:MAX_BARS]
    drawn = [bars[n] for n in sorted(longest)]
    return Excerpt(
        steps=tuple(dfg.marks.steps[first : last + 1]),
        span_us=us(finish - begin),
        bars=tuple(sorted(drawn, key=lambda bar: bar.rank)),
        shown=len(drawn),
        total=int(inside.sum()),
    )


def _bar(rank: int, lane: str, start: Ns, end: Ns, begin: Ns, name: str, cls: str) -> Bar:
    return Bar(rank=rank, lane=lane, start_us=us(start - begin), dur_us=us(end - start), name=name, cls=cls)


def _merged(spans: list[tuple[Ns, Ns, str, str]], finest: float) -> list[tuple[Ns, Ns, str, str]]:
    """Merge neighbours of the same class if either is too thin to see; the name of a merged bar has their number."""
    found: list[tuple[Ns, Ns, str, str]] = []
    more: list[int] = []  # Number of further spans that each of `found` represents.
    for start, end, name, cls in sorted(spans):
        if found:
            begin, until, first, before = found[-1]
            thin = end - start < finest or until - begin < finest
            if before == cls and start - until < finest and thin:
                found[-1] = (begin, end, first, cls)
                more[-1] += 1
                continue
        found.append((start, end, name, cls))
        more.append(0)
    return [
        (start, end, f"{name} (+{others} more)" if others else name, cls)
        for (start, end, name, cls), others in zip(found, more, strict=True)
    ]
