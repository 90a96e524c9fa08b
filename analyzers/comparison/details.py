"""What explains the parts: ranks, operations, collectives, code, waits, saves and findings that differ."""

from collections.abc import Iterator, Sequence

import numpy as np

from esprof.analyzers.comparison.answer import (
    CollectiveChange,
    FindingChange,
    RankChange,
    SaveChange,
    TimeChange,
    Wait,
    WaitChange,
)
from esprof.analyzers.comparison.intervals import Figures, mean, resampled
from esprof.analyzers.comparison.pair import RunPair
from esprof.analyzers.comparison.side import ComparedSide
from esprof.analyzers.finding import Diagnosis, Finding
from esprof.analyzers.views.collectives import steady_collectives
from esprof.core.statistics import block_length
from esprof.core.types import us
from esprof.run.collective_names import collective_word

MIN_SHARE_ALONE = 0.5
"""A rank changed alone if the others certainly changed by less than this share of its change."""

_WAITS: tuple[Wait, ...] = ("loader_wait", "cpu_wait")


def ranks_that_differ(pair: RunPair) -> tuple[RankChange, ...]:
    """The own time of each rank of both runs."""
    ranks = sorted(set(pair.before.own_ns) & set(pair.after.own_ns))
    found = pair.changes(lambda side: [side.own_ns[rank] for rank in ranks], len(ranks))
    return tuple(
        RankChange(rank=rank, alone=_is_alone(one, [*found[:at], *found[at + 1 :]]), **one)
        for at, (rank, one) in enumerate(zip(ranks, found, strict=True))
    )


def _is_alone(one: Figures, others: Sequence[Figures]) -> bool:
    """Whether a rank changed and the others, by their intervals, changed by much less."""
    if one["noise"] or not others:
        return False
    bounds = [bound for other in others for bound in (other["low_us"], other["high_us"])]
    return all(bound is not None and abs(bound) < MIN_SHARE_ALONE * abs(one["change_us"]) for bound in bounds)


def collectives_that_differ(pair: RunPair) -> tuple[CollectiveChange, ...]:
    """The collectives of each kind."""
    sides = [_collectives(side) for side in pair.sides]
    nothing = (0.0, None, 0.0)
    found = []
    for word in sorted({*sides[0], *sides[1]}):
        (calls_before, bytes_before, us_before), (calls_after, bytes_after, us_after) = (
            side.get(word, nothing) for side in sides
        )
        found.append(
            CollectiveChange(
                collective=word,
                calls_before=calls_before,
                calls_after=calls_after,
                bytes_before=bytes_before,
                bytes_after=bytes_after,
                us_before=us_before,
                us_after=us_after,
            )
        )
    return tuple(found)


def _collectives(side: ComparedSide) -> dict[str, tuple[float, int | None, float]]:
    """Kind -> (calls in a mean step of a mean rank, mean size in bytes, mean duration in µs)."""
    steady = steady_collectives(side.case.replayed)
    names = [collective_word(name) or name for name in steady.dfg.names]
    words = np.array([names[code] for code in steady.dfg.name[steady.node].tolist()], object)
    found: dict[str, tuple[float, int | None, float]] = {}
    for word in dict.fromkeys(words.tolist()):
        mine = words == word
        sizes = steady.bytes[mine]
        known = round(float(sizes.mean())) if (sizes >= 0).all() else None
        found[word] = (
            round(int(mine.sum()) / steady.shares, 3),
            known,
            us(float(steady.took_ns[mine].mean())),
        )
    return found


def waits_that_differ(pair: RunPair) -> tuple[WaitChange, ...]:
    """The waits for input and for CPUs in steps without profiler, where both runs have them."""
    found = []
    for name in _WAITS:
        if samples := pair.samples(name):
            found.append(WaitChange(name=name, **resampled(*samples, mean, block_length(*samples), len(_WAITS))))
    return tuple(found)


def without_cpu_wait(pair: RunPair, block: int) -> TimeChange | None:
    """The change of a step without the time in which a rank waited for a CPU; None where that is unknown."""
    waits = pair.samples("cpu_wait")
    if waits is None or any(len(wait) != len(steps) for wait, steps in zip(waits, pair.steps_ns, strict=True)):
        return None
    before, after = (np.maximum(steps - wait, 0) for wait, steps in zip(waits, pair.steps_ns, strict=True))
    return TimeChange(**resampled(before, after, mean, block))


def saves_that_differ(pair: RunPair) -> SaveChange | None:
    """How often the runs save, and what a save stops; None if neither saves."""
    saves = [side.case.job.saves for side in pair.sides]
    if not any(saves):
        return None
    every = [None if one is None else one.every for one in saves]
    stops = [None if one is None or not len(one.stops_ns) else us(float(one.stops_ns.mean())) for one in saves]
    return SaveChange(every_before=every[0], every_after=every[1], stops_before_us=stops[0], stops_after_us=stops[1])


def findings_that_differ(pair: RunPair) -> tuple[FindingChange, ...]:
    """Findings with a certain saving that the other run lacks, even as a symptom or with an uncertain saving."""
    before, after = (side.diagnosis for side in pair.sides)
    found = [*_only_in(after, before, True), *_only_in(before, after, False)]
    return tuple(sorted(found, key=lambda one: -one.saving_us))


def _only_in(having: Diagnosis, lacking: Diagnosis, is_new: bool) -> Iterator[FindingChange]:
    known = {one.id for one in _all(lacking)}
    for finding in having.findings:
        if finding.is_saving and finding.id not in known:
            yield FindingChange(id=finding.id, title=finding.title, saving_us=finding.saving_us, is_new=is_new)


def _all(diagnosis: Diagnosis) -> Iterator[Finding]:
    """The findings of a run with their symptoms, whether certain or not."""
    for finding in (*diagnosis.findings, *diagnosis.uncertain, *(one.finding for one in diagnosis.ignored)):
        yield finding
        yield from finding.symptoms
