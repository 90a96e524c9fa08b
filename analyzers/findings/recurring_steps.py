"""ESP601 and ESP806: steps that take long every so many steps, such as those that save."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from esprof import readable
from esprof.analyzers import job_steps
from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import WORTH_NAMING, Cause, Measured, Page, Rule
from esprof.replay.whatif.margins import mean_margin
from esprof.trace.run import Run
from esprof.types import Rank

SLOW = 1.3
"""A step is slow that takes more than so many times the median."""

FEWEST = 4
"""Slow steps from which on a period may be told."""

FEWEST_STEPS = 16
"""Steps from which on a period may be told: among fewer, chance makes one too often."""

REGULAR = 0.8
"""Least share of the steps that are due by the period that must be slow, and of the slow steps that must be due."""

MOST_OF = 0.5
"""Least share of what slow steps take too long that must lie in one kind of work, to be its cause."""

_SAVING = ("torch.save", "torch.distributed.checkpoint.", "safetensors.torch.")
"""How stages begin that the recorder notes where something is saved."""

_LOADER = "waiting for the data loader"


@dataclass(frozen=True)
class Recurring:
    """Steps of the job (`took_ns`, float64[steps]), those that recur (`is_slow`, bool[steps]), and every how many steps."""

    steps: np.ndarray
    took_ns: np.ndarray
    is_slow: np.ndarray
    every: int

    @property
    def excess_ns(self) -> float:
        """How much longer a slow step takes than the others, ns."""
        return self.between(self.took_ns)

    def between(self, values: np.ndarray) -> float:
        """By how much the mean of `values`, float64[steps], is greater in slow steps."""
        return float(values[self.is_slow].mean() - values[~self.is_slow].mean())

    @property
    def measured(self) -> Measured:
        """What the mean step would gain: the difference of the means of all steps and of the others."""
        share = float(self.is_slow.mean())
        of_slow, of_others = (mean_margin(self.took_ns[mask]) for mask in (self.is_slow, ~self.is_slow))
        return Measured(
            saving_ns=share * self.excess_ns,
            margin_ns=share * float(np.hypot(of_slow, of_others)),
            step_ns=float(self.took_ns.mean()),
        )


def recurring_steps(run: Run) -> Iterator[Cause]:
    """The job's slow steps, where they come at a regular distance and cost enough."""
    found = _recurring(run)
    if found is None or found.measured.saving_ns < WORTH_NAMING / 100 * found.measured.step_ns:
        return
    what, ranks, lost_ns = _cause_of(run, found)
    is_save = what is not None and what.startswith(_SAVING)
    usual, slow = (float(found.took_ns[mask].mean()) for mask in (~found.is_slow, found.is_slow))
    title = f"One step in {found.every} takes {readable.duration(slow)} instead of {readable.duration(usual)}"
    yield Cause(
        id="ESP601" if is_save else "ESP806",
        title=f"{title}: {readable.ranks(ranks)} {readable.verb('spend', ranks)} it in {what}" if what else title,
        ranks=ranks,
        confidence="high" if what else "medium",
        evidence={
            "every": Evidence(found.every),
            "slow_steps": Evidence(int(found.is_slow.sum())),
            "steps": Evidence(len(found.steps)),
            "slow_step": Evidence(round(slow), "ns"),
            "other_step": Evidence(round(usual), "ns"),
        }
        | ({"lost_there": by_rank(lost_ns, "ns")} if what else {}),
        advice=_SAVE_ADVICE if is_save else _ADVICE,
        measured=found.measured,
    )


def _recurring(run: Run) -> Recurring | None:
    steps = job_steps.numbers(run, "plain")
    if len(steps) < FEWEST_STEPS:
        return None
    took = job_steps.durations_ns(run, steps).astype(np.float64)
    is_slow = took > SLOW * np.median(took)
    every = _period(steps, is_slow)
    return None if every is None else Recurring(steps, took, is_slow, every)


def _period(steps: np.ndarray, is_slow: np.ndarray) -> int | None:
    """Every how many of `steps` (numbers, ascending) a slow one comes; None where they come at random.

    Windows take steps out of the row, so that a distance may be a multiple of the period.
    """
    slow = steps[is_slow]
    if len(slow) < FEWEST:
        return None
    values, counts = np.unique(np.diff(slow), return_counts=True)
    every = int(values[counts.argmax()])
    # The steps that are due by the most frequent remainder must be slow, and no others.
    remainders, counts = np.unique(slow % every, return_counts=True)
    is_due = steps % every == remainders[counts.argmax()]
    hits = int(np.count_nonzero(is_due & is_slow))
    is_regular = FEWEST <= hits >= REGULAR * max(int(np.count_nonzero(is_due)), len(slow))
    return every if every > 1 and is_regular else None


def _cause_of(run: Run, found: Recurring) -> tuple[str | None, tuple[Rank, ...], dict[Rank, int]]:
    """(what slow steps have that others lack, the ranks that have it, how much of it a slow step has, ns by rank)."""
    most: dict[str, dict[Rank, float]] = {}
    for rank in run.ranks:
        for what, spent_ns in _spent(run, rank, found.steps).items():
            most.setdefault(what, {})[rank] = found.between(spent_ns)
    # A save may lie in a stage that the job marked around it.
    saves = [one for one in most if one.startswith(_SAVING) and max(most[one].values()) >= MOST_OF * found.excess_ns]
    what = max(saves or most, key=lambda one: max(most[one].values()))
    if max(most[what].values()) < MOST_OF * found.excess_ns:
        return None, tuple(run.ranks), {}
    # Where one rank saves, the others wait for it somewhere else.
    ranks = tuple(rank for rank, ns in most[what].items() if ns >= MOST_OF * found.excess_ns)
    return what, ranks, {rank: round(most[what][rank]) for rank in ranks}


def _spent(run: Run, rank: Rank, steps: np.ndarray) -> dict[str, np.ndarray]:
    """What a rank spends in each of `steps` in stages that it marked and in its loader, ns, float64[steps], by name."""
    table = job_steps.rows(run, rank, steps)
    begin, wait = table.ints("start_ns"), table.ints("loader_wait_ns")
    end = begin + table.ints("dur_ns")
    spent = {_LOADER: np.maximum(wait, 0).astype(np.float64)}
    stages = run.stages(rank)
    marked = stages.where(stages.is_kind("stage") & (stages.ints("worker") < 0))
    start, until = marked.ints("start_ns"), marked.ints("end_ns")
    # A stage lies in the step in which it begins.
    at = np.searchsorted(begin, start, side="right") - 1
    inside = (at >= 0) & (start < end[at])
    names = np.array([name or "" for name in marked.texts("name")], object)
    for name in dict.fromkeys(names[inside].tolist()):
        mine = inside & (names == name)
        spent[name] = np.bincount(at[mine], (until - start)[mine], len(steps))
    return spent


_SAVE_ADVICE = (
    "Save less often (what a failure costs in lost steps bounds how seldom), or beside the training: "
    "torch.distributed.checkpoint.async_save copies the state and writes it while training goes on. On several ranks let "
    "each write its share."
)
_ADVICE = (
    "Look for what the job does every so many steps: validation, logging, metrics, saving, a scheduler, garbage "
    "collection. Mark suspects with esprof.stage, and the next run names the one. Do it less often, on all ranks in the "
    "same step, or beside the training."
)
_EVIDENCE = (
    "The times of all steps of the run that ran without the profiler: `slow_steps` of `steps` take more than 1.3 times the "
    "median, at least four of sixteen or more, and nearly all of them, and no others, are due every so many steps "
    "(`every`). What they have that the others lack is looked for in the stages that the job or the recorder marked "
    "(`lost_there`), and in the waits for the data loader. Saves are seen where the main thread calls torch.save, "
    "torch.distributed.checkpoint or safetensors.torch, also by a function that was imported by its own name."
)
_PRICE = (
    "Measured, not replayed: the mean of all steps, less the mean of the steps that are not slow. The throughput that is "
    "told is that of all steps."
)

_PAGES = (
    Page(
        "ESP601",
        "Saves stop the training",
        "Every so many steps the training stops while a checkpoint is written: by torch.save, by "
        "torch.distributed.checkpoint, or by safetensors.",
        _EVIDENCE,
        _PRICE,
        "Save less often, or asynchronously, or in shares; look at the storage where a save takes longer than its bytes "
        "need.",
    ),
    Page(
        "ESP806",
        "Steps that are slow again and again",
        "Every so many steps one takes longer, which neither the median step nor a short window shows.",
        _EVIDENCE,
        _PRICE,
        "Find what happens then: validation, logging, metrics, a scheduler; do it less often or beside the training.",
    ),
)

RULE = Rule(pages=_PAGES, of_run=recurring_steps)
