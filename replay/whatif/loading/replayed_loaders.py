"""Steps that wait for changed DataLoaders: the recorded batches, delivered by the rules of the DataLoader."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from esprof.core.statistics import mean_margin
from esprof.core.types import Rank
from esprof.replay.dfg import Cls
from esprof.replay.engine.timeline import replay
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.host.host_cpus import least_ns, sharing
from esprof.replay.whatif.loading.batches import RecordedBatches, batches_of
from esprof.replay.whatif.loading.hit_curve import HitRate
from esprof.replay.whatif.loading.loader_queue import delivered
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Loading, Term

MAX_STARVED = 0.1
"""Largest share of the time of making batches spent waiting for a CPU with which loaders are replayed: beyond it, CPUs
decide, and not loaders."""

MAX_OFF = 0.15
"""Largest difference of the replay of the unchanged loaders from the recorded steps, unless these scatter by more."""

WARM_UP_SHARE = 0.25
"""Share of the replayed batches that fill the queues and do not count."""

_ROUNDS = 16
"""Least number of times that each worker makes all batches of its queue."""

_RESAMPLED, _BLOCK = 24, 8
"""Number of resamplings of the batches for the interval, and least number of consecutive batches in a block of one."""


def replayed_loaders(now: Scenario, terms: Sequence[Term]) -> Scenario:
    """`now` with steps that wait for the DataLoaders as `terms` change them.

    Each rank's batches take as long as recorded in the whole run, as far as no term changes that, and are delivered by
    the rules of the DataLoader (`delivered`). In between, a step takes what it takes without input stall. Raises Declined
    without a DataLoader, if workers had to wait for CPUs, or if the unchanged loaders do not lead to the recorded steps.
    """
    recorded = {rank: found for rank in now.run.ranks if (found := batches_of(now.run, rank, now.steps)) is not None}
    if not recorded:
        raise Declined("no DataLoader was recorded in these steps by `esprof record`")
    starved = max(batches.starved for batches in recorded.values())
    if starved > MAX_STARVED:
        raise Declined(f"making batches waits for a CPU for {100 * starved:.0f} % of its time, so CPUs decide")
    _check(now, recorded)
    changed = {rank: batches.faster(_speed_up(now, rank)) for rank, batches in recorded.items()}
    # Batches are made ahead by workers only, which another term may add.
    for term in sorted(terms, key=lambda term: term.kind.name != "loader.workers"):
        assert isinstance(term.kind.effect, Loading), "only loading terms have this phase"
        for rank in _loading(term.ranks(now), recorded):
            changed[rank] = term.kind.effect.change(changed[rank], term)
    without_stall = replace(now, dfg=edits.shorten(now.dfg, now.dfg.of(Cls.DATA), 0))
    steps = _steady(now, replay(without_stall.dfg).step_ns())
    step = _Steps.of(changed, steps)
    least = np.full(len(now.dfg.marks.steps), step.mean_ns())
    for_cpus = _cpu_bound(now, recorded, changed)
    if for_cpus is not None and for_cpus.mean() > least.mean():
        without_stall, least = without_stall.noted("limited by the host's CPUs"), np.maximum(least, for_cpus)
    bound = least if now.least_ns is None else np.maximum(least, now.least_ns)
    return replace(without_stall, least_ns=bound, margin_ns=step.margin_ns()).noted(
        *_taken_for_granted(recorded, changed)
    )


def _speed_up(now: Scenario, rank: Rank) -> float:
    """How many times as fast the other terms of the scenario make the batches of a rank."""
    made = now.recorded.of(Cls.DATA) & (now.recorded.rank == rank)
    if not now.has_recorded_nodes or not made.any():
        return 1.0
    return float(now.recorded.dur_ns[made].sum() / max(1, now.dfg.dur_ns[made].sum()))


def _loading(ranks: Sequence[Rank], recorded: dict[Rank, RecordedBatches]) -> list[Rank]:
    found = [rank for rank in ranks if rank in recorded]
    if not found:
        raise Declined("these ranks have no DataLoader in these steps")
    return found


def _check(now: Scenario, recorded: dict[Rank, RecordedBatches]) -> None:
    """Raise Declined if the unchanged loaders do not lead to the recorded steps."""
    dfg = now.recorded
    measured = _steady(now, replay(dfg).step_ns())
    without_stall = _steady(now, replay(edits.shorten(dfg, dfg.of(Cls.DATA), 0)).step_ns())
    off = abs(_Steps.of(recorded, without_stall).mean_ns() / measured.mean() - 1)
    if off > max(MAX_OFF, mean_margin(measured) / measured.mean()):
        raise Declined(f"the replay of the DataLoaders is off by {100 * off:.0f} % on this run")


def _steady(now: Scenario, step_ns: np.ndarray) -> np.ndarray:
    steps: np.ndarray = step_ns[np.isin(now.dfg.marks.steps, now.steps)].astype(np.float64)
    return steps


@dataclass(frozen=True)
class _Steps:
    """Steps that wait for the batches of several ranks."""

    took_ns: np.ndarray
    """Time to make each batch of each rank, float64[R, K], repeated until the queues are in steady state."""
    workers: np.ndarray
    ahead: np.ndarray
    in_order: np.ndarray
    per_batch_ns: np.ndarray
    """Time between two batches without waiting for data, float64[K]."""
    per_step: float
    recorded: int
    """Number of recorded batches of the rank with most; all further ones are repetitions."""

    @classmethod
    def of(cls, batches: dict[Rank, RecordedBatches], step_ns: np.ndarray) -> "_Steps":
        """Steps of `step_ns` without waiting for data, float64[steps], with these batches."""
        of_ranks = list(batches.values())
        workers = np.array([one.workers for one in of_ranks])
        ahead = np.array([max(1, one.workers * one.prefetch) for one in of_ranks])
        recorded = max(len(one) for one in of_ranks)
        count = max(recorded, _ROUNDS * int(ahead.max()), _ROUNDS * _BLOCK)
        per_step = float(np.mean([one.per_step for one in of_ranks]))
        return cls(
            took_ns=np.stack([np.resize(one.took_ns, count) for one in of_ranks]),
            workers=workers,
            ahead=ahead,
            in_order=np.array([one.in_order for one in of_ranks]),
            per_batch_ns=np.resize(np.repeat(step_ns, max(1, round(per_step))), count) / per_step,
            per_step=per_step,
            recorded=recorded,
        )

    def mean_ns(self) -> float:
        """Mean step, ns."""
        return self._mean_ns(self.took_ns)

    def margin_ns(self) -> float:
        """Half the width of the 95 % interval of the mean step, ns, by resampling blocks of batches (block bootstrap)."""
        rng, count = np.random.default_rng(0), self.took_ns.shape[1]
        length = min(self.recorded, max(_BLOCK, 2 * int(self.workers.max())))
        means = []
        for _ in range(_RESAMPLED):
            begin = rng.integers(0, self.recorded, -(-self.recorded // length))
            order = (begin[:, None] + np.arange(length)).ravel()[: self.recorded] % self.recorded
            means.append(self._mean_ns(self.took_ns[:, np.resize(order, count)]))
        return 1.96 * float(np.std(means, ddof=1))

    def _mean_ns(self, took_ns: np.ndarray) -> float:
        took_ns = np.ascontiguousarray(took_ns)
        at = delivered(took_ns, self.workers, self.ahead, self.in_order, self.per_batch_ns).max(axis=0)
        first = int(WARM_UP_SHARE * len(at))
        return float((at[-1] - at[first]) / (len(at) - 1 - first)) * self.per_step


def _cpu_bound(
    now: Scenario, recorded: dict[Rank, RecordedBatches], changed: dict[Rank, RecordedBatches]
) -> np.ndarray | None:
    """Least duration of each step for the CPU time that its ranks and their batches take, ns, float64[steps]."""
    least = least_ns(now.run, now.dfg.marks.steps)
    if least is None:
        return None
    saved = {
        rank: float((recorded[rank].cpu_ns - changed[rank].cpu_ns).mean()) * recorded[rank].per_step
        for rank in recorded
    }
    fewest = min(
        (sum(saved.get(rank, 0.0) for rank in ranks) / cpus for ranks, cpus in sharing(now.run).items()), default=0.0
    )
    bound: np.ndarray = np.maximum(least - fewest, 0)
    return bound


def _taken_for_granted(recorded: dict[Rank, RecordedBatches], changed: dict[Rank, RecordedBatches]) -> Iterator[str]:
    """What the prediction assumes of this change."""
    if any(changed[rank].workers and not recorded[rank].workers for rank in recorded):
        yield "assumes that passing a batch between processes takes no time"
    elif any(changed[rank].workers > 2 * max(1, recorded[rank].workers) for rank in recorded):
        yield "extrapolated: more than twice as many workers as recorded"
    hits = [batches.hits for batches in changed.values() if batches.hits is not None]
    if hits:
        yield _hits(min(hits))


def _hits(found: HitRate) -> str:
    margin = f" ± {100 * found.margin:.0f}" if found.margin else ""
    source = (
        f"counted in {found.reads:,} recorded reads"
        if found.reads
        else "by a formula: each pass reads each sample once, in a new random order"
    )
    return f"{100 * found.rate:.0f}{margin} % of the reads are hits, {source}"
