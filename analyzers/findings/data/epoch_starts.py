"""ESP111: ranks that wait for their loader workers to start in each epoch."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.findings.data.pages import EPOCH_PAGE
from esprof.analyzers.price import MeasuredPrice
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Cause, Rule
from esprof.analyzers.steps.step_groups import MIN_EPOCHS
from esprof.core import readable
from esprof.core.statistics import mean_margin
from esprof.core.types import Rank
from esprof.replay.whatif.loading.passes import training_loaders
from esprof.run.run import Run

MIN_SHARE_OF_WORST = 0.5
"""Least start-up for which a rank is listed, as a share of the worst rank's: loaders of ranks start alike."""


def epoch_starts(job: RecordedJob) -> Iterator[Cause]:
    """Ranks whose loader workers start again in each epoch, if that costs enough of all steps."""
    steps = job.steps.numbers("plain")
    found = {rank: start_ups(job.run, rank) for rank in job.run.ranks}
    mean_ns = {rank: float(took.mean()) for rank, took in found.items() if len(took) >= MIN_EPOCHS}
    if not mean_ns or not len(steps):
        return
    worst = max(mean_ns, key=lambda rank: mean_ns[rank])
    per_step = len(found[worst]) / len(job.steps.table(worst))
    measured = MeasuredPrice(
        saving_ns=per_step * mean_ns[worst],
        margin_ns=per_step * mean_margin(found[worst]),
        step_ns=float(job.steps.durations_ns(steps).mean()),
    )
    if not measured.is_worth_reporting:
        return
    ranks = tuple(rank for rank in mean_ns if mean_ns[rank] >= MIN_SHARE_OF_WORST * mean_ns[worst])
    took = f"{'up to ' if len(ranks) > 1 else ''}{readable.duration(mean_ns[worst])}"
    yield Cause(
        id="ESP111",
        title=f"{readable.ranks(ranks).capitalize()} {readable.verb('wait', ranks)} {took} for loader workers to start in "
        "each epoch",
        ranks=ranks,
        confidence="high",
        evidence={
            "start_up": by_rank({rank: round(mean_ns[rank]) for rank in ranks}, "ns"),
            "epochs": Evidence(len(found[worst])),
        },
        advice="Set persistent_workers=True of the DataLoader, so that workers outlive the epoch. If they are spawned, "
        "import less in the main module.",
        measured=measured,
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
