"""ESP602 and ESP603: saves in the background that slow other steps, or that the next save waits for."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.price import MeasuredPrice
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Cause, Page, Rule
from esprof.analyzers.steps.saves import MIN_SAVES, Saves
from esprof.core import readable
from esprof.core.statistics import mean_margin
from esprof.core.text import LONGEST_NAME, printable


def background_saves(job: RecordedJob) -> Iterator[Cause]:
    """What saves in the background cost, besides the time for which they stop the training."""
    saves = job.saves
    if saves is None or not saves.is_enough or len(saves.writes_ns) < MIN_SAVES:
        return
    for cause in (_slower_steps(job, saves), _waits(job, saves)):
        if cause.measured is not None and cause.measured.is_worth_reporting:
            yield cause


def _slower_steps(job: RecordedJob, saves: Saves) -> Cause:
    slower, margin = saves.slower_ns
    share = len(saves.beside_ns) / _steps(saves)
    usual = float(saves.clean_ns.mean())
    return Cause(
        id="ESP602",
        title=(
            f"Steps take {readable.duration(usual + slower)} instead of {readable.duration(usual)} while a save is "
            "written in the background"
        ),
        ranks=tuple(job.run.ranks),
        confidence="high" if slower > margin else "medium",
        evidence=_evidence(saves) | {"slower_steps": Evidence(len(saves.beside_ns))},
        advice=(
            "Let another process write (async_checkpointer_type=PROCESS), so that it does not hold Python's lock, and "
            "leave it a CPU. Write less at once: each rank its own shard, or to storage of its own."
        ),
        measured=MeasuredPrice(saving_ns=share * slower, margin_ns=share * margin, step_ns=_mean_step(saves)),
    )


def _waits(job: RecordedJob, saves: Saves) -> Cause:
    share = len(saves.waits_ns) / _steps(saves)
    waits, write = float(saves.waits_ns.mean()), float(saves.writes_ns.mean())
    return Cause(
        id="ESP603",
        title=f"A save waits {readable.duration(waits)} for the one before it, which takes {readable.duration(write)}",
        ranks=tuple(job.run.ranks),
        confidence="medium",
        evidence=_evidence(saves) | {"wait": Evidence(round(waits), "ns")},
        advice=f"Save every {saves.mean_cost.shortest} steps or less often, or write faster: in shards, to faster storage.",
        measured=MeasuredPrice(
            saving_ns=share * waits, margin_ns=share * mean_margin(saves.waits_ns), step_ns=_mean_step(saves)
        ),
    )


def _steps(saves: Saves) -> int:
    return len(saves.clean_ns) + len(saves.beside_ns) + len(saves.stops_ns)


def _mean_step(saves: Saves) -> float:
    """Mean of all compared steps, ns."""
    usual = float(saves.clean_ns.mean())
    stopped = usual + saves.stops_ns + saves.waits_ns
    return float(np.concatenate([saves.clean_ns, saves.beside_ns, stopped]).mean())


def _evidence(saves: Saves) -> dict[str, Evidence]:
    return {
        "saved_by": Evidence(printable(", ".join(saves.names), LONGEST_NAME)),
        "saves": Evidence(len(saves.begin)),
        "save": Evidence(round(float(saves.writes_ns.mean())), "ns"),
        "step_without_save": Evidence(round(float(saves.clean_ns.mean())), "ns"),
    }


_EVIDENCE = (
    "`save` is the time from the start of a save until it is durable: until the futures of "
    "torch.distributed.checkpoint.async_save are done, until a save in another thread returns, or until ElasticTrainer "
    "has written a checkpoint. `step without save` is a mean step in which no save runs."
)
_PRICE = "Measured, not replayed: the extra time of these steps, as a share of all steps without profiler."

_PAGES = (
    Page(
        "ESP602",
        "Saves in the background slow other steps",
        "A checkpoint is written while training goes on, and the steps meanwhile take longer: the thread that writes holds "
        "Python's lock, or needs the CPU, the link to the GPU, or the storage that batches are read from.",
        _EVIDENCE + " `slower steps` is the number of steps during which one is written.",
        _PRICE,
        "Let another process write, leave it a CPU, write shards, or save less often.",
    ),
    Page(
        "ESP603",
        "Saves wait for the ones before them",
        "The next checkpoint is due before the one before it is durable. Only one is written at a time, so training stops.",
        _EVIDENCE + " `wait` is the mean time in a step that saves until the save before is durable.",
        _PRICE,
        "Save less often, or write faster. `esprof recommend --only checkpoint` says how often.",
    ),
)

RULE = Rule(pages=_PAGES, of_job=background_saves)
"""Saves that are written in the background."""
