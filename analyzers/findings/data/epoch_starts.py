"""ESP111: ranks that wait for their loader workers to start in each epoch."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.findings.data.pages import EPOCH_PAGE
from esprof.analyzers.price import MeasuredPrice
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Cause, Rule
from esprof.analyzers.steps.excess import line_of, stage_of
from esprof.analyzers.steps.step_groups import AT_EPOCHS, MIN_EPOCHS, SlowGroup
from esprof.core import readable
from esprof.core.statistics import mean_margin
from esprof.core.types import Rank
from esprof.replay.whatif.loading.passes import training_loaders
from esprof.run.run import Run

MIN_SHARE_OF_WORST = 0.5
"""Least start-up for which a rank is listed, as a share of the worst rank's: loaders of ranks start alike."""


def epoch_starts(job: RecordedJob) -> Iterator[Cause]:
    """Ranks whose loader workers start again in each epoch, if that costs enough of all steps."""
    found = {rank: start_ups(job.run, rank) for rank in job.run.ranks}
    mean_ns = {rank: float(took.mean()) for rank, took in found.items() if len(took) >= MIN_EPOCHS}
    if not mean_ns:
        return
    worst = max(mean_ns, key=lambda rank: mean_ns[rank])
    ranks = tuple(rank for rank in mean_ns if mean_ns[rank] >= MIN_SHARE_OF_WORST * mean_ns[worst])
    evidence = {
        "start_up": by_rank({rank: round(mean_ns[rank]) for rank in ranks}, "ns"),
        "epochs": Evidence(len(found[worst])),
    }
    groups = [group for group in job.slow_groups if starts_workers(job, group)]
    for group in groups:
        title = f"Loader workers of {readable.ranks(ranks)} start again in each epoch, whose first step takes "
        price = group.measured.times(1 - _batch_ns(job.run, worst) / group.excess_ns)
        yield from _cause(f"{title}{readable.duration(group.excess_ns)} longer", ranks, evidence, price)
    if not groups:
        took = f"{'up to ' if len(ranks) > 1 else ''}{readable.duration(mean_ns[worst])}"
        title = f"{readable.ranks(ranks).capitalize()} {readable.verb('wait', ranks)} {took} for loader workers to start in "
        yield from _cause(f"{title}each epoch", ranks, evidence, _of_start_ups(job, worst, found[worst]))


def _cause(
    title: str, ranks: tuple[Rank, ...], evidence: dict[str, Evidence], measured: MeasuredPrice | None
) -> Iterator[Cause]:
    """The finding, if it costs enough."""
    if measured is not None and measured.is_worth_reporting:
        yield Cause(
            id="ESP111",
            title=title,
            ranks=ranks,
            confidence="high",
            evidence=evidence,
            advice="Set persistent_workers=True of the DataLoader, so that workers outlive the epoch. If they are spawned, "
            "import less in the main module.",
            measured=measured,
        )


def starts_workers(job: RecordedJob, group: SlowGroup) -> bool:
    """Whether these steps are slow because epochs begin in them with new loader workers.

    Most of the extra time is in the loader then, no other loader is used, such as that of a validation, and making one batch
    takes less than half of it: also workers that stay make the first batch of an epoch while the rank waits.
    """
    ranks = job.run.ranks
    if group.when != AT_EPOCHS or all(len(start_ups(job.run, rank)) < MIN_EPOCHS for rank in ranks):
        return False
    if any(_uses_others(job, rank, group) for rank in ranks):
        return False
    known = stage_of(job.steps, group) or line_of(job.samples, group)
    batch_ns = max(_batch_ns(job.run, rank) for rank in ranks)
    return known is not None and known.is_loader and 2 * batch_ns <= group.excess_ns


def _uses_others(job: RecordedJob, rank: Rank, group: SlowGroup) -> bool:
    """Whether a rank asks loaders for batches in slow steps that it does not train on."""
    stages, steps = job.run.stages(rank), job.steps.rows(rank, group.steps[group.is_slow])
    others = stages.is_kind("next") & ~np.isin(stages.ints("loader"), training_loaders(job.run, rank))
    begin, asked = steps.ints("start_ns"), stages.ints("start_ns")[others]
    at = np.searchsorted(begin, asked, side="right") - 1
    return bool(((at >= 0) & (asked < (begin + steps.ints("dur_ns"))[at])).any())


def _batch_ns(run: Run, rank: Rank) -> float:
    """What making a batch that is not the first of its pass takes in the mean, ns."""
    stages = run.stages(rank)
    later = stages.where(
        stages.is_kind("fetch")
        & (stages.ints("batch") > 0)
        & np.isin(stages.ints("loader"), training_loaders(run, rank))
    )
    return float((later.ints("end_ns") - later.ints("start_ns")).mean()) if len(later) else 0.0


def _of_start_ups(job: RecordedJob, rank: Rank, took_ns: np.ndarray) -> MeasuredPrice | None:
    """What a mean step saves without these start-ups of a rank; None without plain steps."""
    steps = job.steps.numbers("plain")
    if not len(steps):
        return None
    per_step = len(took_ns) / len(job.steps.table(rank))
    return MeasuredPrice(
        saving_ns=per_step * float(took_ns.mean()),
        margin_ns=per_step * mean_margin(took_ns),
        step_ns=float(job.steps.durations_ns(steps).mean()),
    )


def start_ups(run: Run, rank: Rank) -> np.ndarray:
    """How long `rank` waited in each further pass over its DataLoader until a new worker began with the first batch, ns,
    float64[passes]; none for passes whose workers are those of an earlier one."""
    stages = run.stages(rank)
    first = stages.where((stages.ints("batch") == 0) & np.isin(stages.ints("loader"), training_loaders(run, rank)))
    nexts, fetches = (first.where(first.is_kind(kind)) for kind in ("next", "fetch"))
    columns = (fetches.ints(name).tolist() for name in ("loader", "pid", "start_ns"))
    begun = {loader: (pid, start) for loader, pid, start in zip(*columns, strict=True)}
    columns = (nexts.ints(name).tolist() for name in ("loader", "start_ns", "end_ns"))
    took, known = list[int](), set[int]()
    for number, (loader, start, end) in enumerate(sorted(zip(*columns, strict=True))):
        pid, began = begun.get(loader, (-1, start))
        if number and pid >= 0 and pid not in known:
            took.append(min(max(began, start), end) - start)
        known.add(pid)
    return np.array(took, np.float64)


RULE = Rule(pages=(EPOCH_PAGE,), of_job=epoch_starts)
