"""Causes of waits for input data: what shows each of them, what to do, and which what-if prices it.

The first cause in the table that holds for all waiting ranks names the finding. What spoils the measurement of all
others comes first. If the workers are fast enough on average, the order and the scatter of their batches are the cause,
and otherwise what their batches are made of.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.findings.data.rank_waits import RankWaits
from esprof.analyzers.views.batch_waits import BLOCKED, PASSED, PINNED, RUNS, STARVED
from esprof.core import readable
from esprof.replay.whatif.loading.hit_rates import lru
from esprof.run.raw.stages import COLLATE, DECODE, PINNING, READ, TRANSFORM

MIN_SHARE = 0.5
"""Least share of the waits that is due to a cause: no other can then have as much."""

MIN_STARVED_SHARE = 1 / 3
"""The same of waiting for a CPU, which also lengthens the times on a CPU and hides what else would wait."""

MIN_MISSED_AGAIN = 0.5
"""Least share of the bytes of later passes that storage delivers again. A sampler with replacement reads up to 1 / e =
37 % of the samples of a later pass for the first time."""

MORE_PREFETCH = 4
"""Times as many batches made ahead, with which it is tried whether too few were."""

MIN_CACHE = 0.05
"""Least share of the data set in memory for which a cache is priced."""


@dataclass(frozen=True)
class WaitCause:
    """A cause of waits for input data."""

    id: str
    holds: Callable[[RankWaits], bool]
    says: Callable[[RankWaits], str]
    """End of the title."""
    advice: Callable[[RankWaits], str]
    what_ifs: Callable[[RankWaits], Sequence[str]] = lambda of: ()
    """Terms that price it, if loader workers make the batches. The first that saves something counts; without one, the
    price is that of all the waits."""
    is_bound: bool = False
    """Whether no remedy removes all of the waits."""


def cause_of(waiting: Sequence[RankWaits]) -> WaitCause | None:
    """The cause of the waits of all these ranks; None where they have none in common, or the run does not show it."""
    if not all(of.waits.total_ns for of in waiting):
        return None
    return next((cause for cause in CAUSES if all(cause.holds(of) for of in waiting)), None)


def _needs_cpu(*parts: str) -> Callable[[RankWaits], bool]:
    """Whether CPU time in these parts of the making of batches is the cause."""
    return lambda of: sum(of.waits.share(RUNS, part=part) for part in parts) >= MIN_SHARE


def _waits_for_storage(of: RankWaits) -> bool:
    reading = of.waits.share(BLOCKED) if of.reads.is_from_storage else of.waits.share(BLOCKED, part=READ)
    return reading >= MIN_SHARE


def _thrashes(of: RankWaits) -> bool:
    missed = of.reads.missed_again
    return missed is not None and missed >= MIN_MISSED_AGAIN and of.reads.is_from_storage and _waits_for_storage(of)


def _comes_in_bursts(of: RankWaits) -> bool:
    return of.waits.slow_ns >= MIN_SHARE * of.waits.total_ns and of.burst is not None


def _is_overtaken(of: RankWaits) -> bool:
    return of.keeps_up and of.waits.overtaken_ns >= MIN_SHARE * of.waits.total_ns


def _lacks_prefetch(of: RankWaits) -> bool:
    """Whether more batches ahead would remove most of the waits."""
    if not of.keeps_up:
        return False
    saved = max((of.saving_ns(term) or 0.0 for term in _more_prefetch(of)), default=0.0)
    return saved >= MIN_SHARE * of.with_workers_ns


def _more_prefetch(of: RankWaits) -> tuple[str, ...]:
    return () if of.batches is None else (f"loader.prefetch={MORE_PREFETCH * of.batches.prefetch}",)


def _out_of_order(of: RankWaits) -> tuple[str, ...]:
    return ("loader.in_order=0", *_more_prefetch(of))


def _more_workers(of: RankWaits) -> tuple[str, ...]:
    needed = of.workers_needed
    return (f"loader.workers={needed}",) if needed and needed > (of.source.workers or 0) else ()


def _cache(of: RankWaits) -> tuple[str, ...]:
    """A cache as large as the page cache must be, by its hits, and with the same memory no replacement."""
    shares = np.linspace(0, 1, 101)
    held = float(np.interp(1 - (of.reads.missed_again or 1.0), [lru(share) for share in shares.tolist()], shares))
    return (f"cache={held:.2f}", "storage=2x") if held >= MIN_CACHE else ("storage=2x",)


def _decoding(of: RankWaits) -> str:
    return max((DECODE, TRANSFORM), key=lambda part: of.waits.share(RUNS, part=part))


def _collating(of: RankWaits) -> bool:
    return of.waits.share(part=COLLATE) >= of.waits.share(PASSED)


def _is_passed(of: RankWaits) -> bool:
    """Whether batches are passed on for most of the waits, and not the training thread waits for a CPU meanwhile."""
    passed = of.waits.share(PASSED)
    return passed >= MIN_SHARE and of.starved_ns < MIN_STARVED_SHARE * passed * of.waits.total_ns


def _burst_title(of: RankWaits) -> str:
    burst = of.burst
    assert burst is not None, "holds for bursts only"
    slow, usual = readable.duration(burst.slow_ns), readable.duration(burst.usual_ns)
    return f"one batch in {burst.every} takes {slow} instead of {usual}"


def first_workers(of: RankWaits) -> str:
    """What precedes the advice if the rank makes its batches itself."""
    if of.source.workers != 0 or of.source.make_ns is None:
        return ""
    makes = f"The training process makes each batch itself, in {readable.duration(of.source.make_ns)}"
    if of.needs_more_cpus:
        return f"{makes}. Loader workers would need more CPUs than there are."
    return f"{makes}; its device waits meanwhile. Set num_workers of the DataLoader."


def enough_workers(of: RankWaits) -> str:
    """How many workers would keep up, if more would and the CPUs allow it."""
    needed = of.workers_needed
    if of.source.workers and needed and needed > of.source.workers and not of.needs_more_cpus:
        return f" With num_workers={needed} (now {of.source.workers}) the loader would keep up."
    return ""


def _storage_advice(of: RankWaits) -> str:
    return (
        "Use faster or closer storage, keep the data compressed or in fewer, larger files, or hold it in memory "
        "(esprof.data.MinIOCache). More workers read more at once, if the storage has the bandwidth."
        + enough_workers(of)
    )


def _thrash_advice(of: RankWaits) -> str:
    return (
        f"{100 * (of.reads.missed_again or 0):.0f} % of the {readable.size(of.reads.asked)} of an epoch come from "
        "storage again: the page cache drops data before the next epoch reads it. Hold as much as fits in "
        "esprof.data.MinIOCache, which never replaces a sample, give the job more memory, or make the data smaller."
    )


def _decode_advice(of: RankWaits) -> str:
    cheaper = (
        "Use a faster decoder, store smaller images, or decode before training."
        if _decoding(of) == DECODE
        else "Apply transforms to whole batches or on the device, or before training."
    )
    lacks_cpus = bool(of.source.workers) and of.needs_more_cpus
    return cheaper + (" More workers need more CPUs than there are." if lacks_cpus else enough_workers(of))


def _starved_advice(of: RankWaits) -> str:
    no_help = ", so more workers would not help" if of.source.workers else ""
    return (
        f"For {100 * of.waits.share(STARVED):.0f} % of that time the batches wait for a CPU{no_help}. Look for other work "
        "on the host's CPUs, use fewer threads in ranks and workers, or give the host more CPUs."
    )


def _passing_advice(of: RankWaits) -> str:
    if _collating(of):
        return "Collate whole arrays instead of single values, or do it in the data set." + enough_workers(of)
    return (
        "A batch is serialised by its worker and read again by the rank. Return few large tensors instead of many "
        "objects, and nothing that the step does not use. A StatefulDataLoader adds its state to each batch unless "
        "snapshot_every_n_steps is larger."
    )


_BURST_ADVICE = (
    "Find out what these batches have in common: the opening of a file or shard, large samples, one slow worker. Do it "
    "earlier or spread it. A greater prefetch_factor may bridge it."
)
_ORDER_ADVICE = (
    "The workers are fast enough on average. Set in_order=False of the DataLoader if the order of the batches need not "
    "be reproducible, give batches equal work, or raise prefetch_factor."
)
_PINNING_ADVICE = (
    "One thread of the rank pins all batches, and needs the GIL and new pinned memory for each. Return fewer, larger "
    "tensors, or try pin_memory=False."
)


def _prefetch_advice(of: RankWaits) -> str:
    now = f" ({of.batches.prefetch} now)" if of.batches else ""
    return (
        "The workers are fast enough on average, but their batches are late now and then. Raise prefetch_factor"
        f"{now}, if the memory holds more batches."
    )


CAUSES = (
    WaitCause(
        id="ESP105",
        holds=lambda of: of.waits.share(STARVED) >= MIN_STARVED_SHARE,
        says=lambda of: "batches wait for a CPU",
        advice=_starved_advice,
    ),
    WaitCause(
        id="ESP110",
        holds=_comes_in_bursts,
        says=_burst_title,
        advice=lambda of: _BURST_ADVICE,
        what_ifs=_more_prefetch,
    ),
    WaitCause(
        id="ESP108",
        holds=_is_overtaken,
        says=lambda of: "later batches are ready before the one whose turn it is",
        advice=lambda of: _ORDER_ADVICE,
        what_ifs=_out_of_order,
        is_bound=True,
    ),
    WaitCause(
        id="ESP109",
        holds=_lacks_prefetch,
        says=lambda of: "too few batches are made ahead",
        advice=_prefetch_advice,
        what_ifs=_more_prefetch,
    ),
    WaitCause(
        id="ESP103",
        holds=_thrashes,
        says=lambda of: "data is read from storage again in each epoch",
        advice=_thrash_advice,
        what_ifs=_cache,
    ),
    WaitCause(
        id="ESP102",
        holds=_waits_for_storage,
        says=lambda of: "batches wait for storage",
        advice=_storage_advice,
        what_ifs=lambda of: ("storage=2x",),
    ),
    WaitCause(
        id="ESP104",
        holds=_needs_cpu(DECODE, TRANSFORM),
        says=lambda of: "decoding takes CPU time" if _decoding(of) == DECODE else "transforms take CPU time",
        advice=_decode_advice,
        what_ifs=lambda of: ("decode=2x",) if _decoding(of) == DECODE else _more_workers(of),
    ),
    WaitCause(
        id="ESP107",
        holds=lambda of: of.waits.share(PINNED) + of.waits.share(part=PINNING) >= MIN_SHARE,
        says=lambda of: "batches are pinned in memory",
        advice=lambda of: _PINNING_ADVICE,
        is_bound=True,
    ),
    WaitCause(
        id="ESP106",
        holds=lambda of: of.waits.share(part=COLLATE) >= MIN_SHARE or _is_passed(of),
        says=lambda of: "collating takes the time" if _collating(of) else "passing batches to the rank takes the time",
        advice=_passing_advice,
        what_ifs=lambda of: _more_workers(of) if _collating(of) else (),
    ),
)
"""In the order in which they are tried."""
