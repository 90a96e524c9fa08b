"""CPU capacity of the ranks' hosts: work that moves to other processes still needs their CPUs."""

from collections import defaultdict

import numpy as np

from esprof.core.types import Rank
from esprof.run.run import Run
from esprof.run.schema import Table


def sharing(run: Run) -> dict[tuple[Rank, ...], float]:
    """Ranks that may run on the same CPUs of one host -> number of these CPUs. Only ranks that recorded their CPUs."""
    alike: dict[tuple[str | None, tuple[int, ...]], list[Rank]] = defaultdict(list)
    for meta in run.meta.ranks:
        if meta.cpus and meta.rank in run.ranks:
            alike[meta.host, meta.cpus].append(meta.rank)
    return {tuple(ranks): _together(run, ranks, len(cpus)) for (_, cpus), ranks in alike.items()}


def cpus_of(run: Run, rank: Rank) -> float | None:
    """Upper bound of the number of CPUs per rank, among `rank` and the ranks that share its CPUs; None if unknown.

    Others may share them, too: ranks that are not in the run, and other jobs.
    """
    return next((cpus / len(ranks) for ranks, cpus in sharing(run).items() if rank in ranks), None)


def _together(run: Run, ranks: list[Rank], cpus: int) -> float:
    """Upper bound of how many of `cpus` CPUs these ranks may use at a time; assumes that their quotas are not shared."""
    quotas = [run.rank(rank).cpu_quota for rank in ranks]
    return min([float(cpus), *([sum(quota for quota in quotas if quota)] if all(quotas) else [])])


def least_ns(run: Run, steps: tuple[int, ...]) -> np.ndarray | None:
    """Least duration of each of `steps` for the CPU time that the ranks and their batches take, ns, float64[steps].

    Counts only the training thread of each rank and batches made by workers; ranks use more CPU time than that.
    None if no rank recorded both its CPUs and its CPU time.
    """
    least = None
    for ranks, cpus in sharing(run).items():
        needed = sum((_needed_ns(run, rank, steps) for rank in ranks), np.zeros(len(steps)))
        least = needed / cpus if least is None else np.maximum(least, needed / cpus)
    return least if least is not None and least.any() else None


def _needed_ns(run: Run, rank: Rank, steps: tuple[int, ...]) -> np.ndarray:
    """CPU time of the rank's training thread and of its workers' batches in each of `steps`, ns, float64[steps]."""
    needed: np.ndarray = thread_ns(run, rank, steps) + batches_ns(run, rank, steps)
    return needed


def thread_ns(run: Run, rank: Rank, steps: tuple[int, ...]) -> np.ndarray:
    """CPU time of the rank's training thread in each of `steps`, ns, float64[steps]; 0 where it was not recorded."""
    noted, at = _rows(run, rank, steps)
    ran = np.zeros(len(steps))
    ran[at] = np.maximum(noted.ints("cpu_ns"), 0)
    return ran


def batches_ns(run: Run, rank: Rank, steps: tuple[int, ...]) -> np.ndarray:
    """CPU time that the workers of `rank` need for the batches that it takes in each of `steps`, ns, float64[steps]."""
    noted, at = _rows(run, rank, steps)
    needed = np.zeros(len(steps))
    begin, took = noted.ints("start_ns"), noted.ints("dur_ns")
    stages = run.stages(rank)
    is_next, loader = stages.is_kind("next") & (stages.ints("workers") > 0), stages.ints("loader")
    for number in np.unique(loader[is_next]).tolist():
        taken = np.sort(stages.ints("end_ns")[is_next & (loader == number)])
        batches = np.searchsorted(taken, begin + took) - np.searchsorted(taken, begin)
        needed[at] += (batch_cpu_ns(run, rank, number) or 0.0) * batches
    return needed


def _rows(run: Run, rank: Rank, steps: tuple[int, ...]) -> tuple[Table, np.ndarray]:
    """(the rank's rows of `steps`, the position of each in `steps`)."""
    noted = run.steps(rank)
    noted = noted.where(np.isin(noted.ints("step"), steps))
    return noted, np.searchsorted(steps, noted.ints("step"))


def batch_cpu_ns(run: Run, rank: Rank, loader: int | None = None) -> float | None:
    """Mean CPU time of a batch that a worker of `rank` makes, of all its loaders or of one, ns; None where that was not
    recorded."""
    stages = run.stages(rank)
    made = stages.is_kind("fetch") & ((stages.ints("loader") == loader) if loader is not None else True)
    ran = stages.ints("cpu_ns")[made]
    return float(ran[ran >= 0].mean()) if (ran >= 0).any() else None
