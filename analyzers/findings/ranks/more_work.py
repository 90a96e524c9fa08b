"""Whether slow ranks have more work than the others, or take longer for the same work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.rule import Case
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.analyzers.views.amounts import input_elements
from esprof.core.statistics import mean_margin
from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Edge
from esprof.replay.ranks.blame import Blame
from esprof.replay.replayed import Replayed
from esprof.run.kineto.steps.trace_steps import OPTIMIZER

MIN_SHARE_EXPLAINED = 0.5
"""Least share of the slow ranks' extra compute time that more work must explain to be the reason."""

MAX_DIFFERENCE = 0.02
"""Largest relative difference of two amounts of work that count as equal."""

MAX_OPTIMIZER_SHARE_MORE_WORK, MIN_OPTIMIZER_SHARE_SLOWER = 0.25, 0.6
"""Relative slowdown of the optimizer as a share of that of all compute: up to the first, the rank has more work; from the
second on, it is slower. The optimizer's work does not depend on the batch."""

MIN_SHARE_LONGER = 0.7
"""Least share of compute that must be slower by at least half the overall slowdown for the optimizer to be evidence. A
single slow operation is neither more work nor a slower device."""

MIN_OPTIMIZER_SHARE = 0.02
"""Least share of the optimizer in compute time for it to be evidence."""


@dataclass(frozen=True)
class Comparison:
    """Ratios of the slow ranks to the others; None where unknown."""

    longer: float
    """Ratio of compute times."""
    longer_margin: float
    """Half the width of the 95 % interval of that ratio over the steps."""
    amount: float | None
    """Ratio of the amounts of work, in `unit`."""
    unit: str
    """Unit of the amounts of work, such as `tokens`."""
    operations: float
    """Ratio of the numbers of operations."""
    optimizer: float | None
    """Ratio of optimizer times."""
    cpu_time: float | None
    """Ratio of the training threads' CPU times, if they compute on CPUs."""
    spread: float
    """Share of their compute, without optimizers, that is slower by at least half the overall slowdown."""

    @property
    def is_longer(self) -> bool:
        """Whether compute takes longer by more than it scatters from step to step."""
        return self.longer - self.longer_margin > 1

    @property
    def is_more_work(self) -> bool | None:
        """True for more work, False for the same work in more time, None where unknown."""
        extra = self.longer - 1
        if extra <= 0:
            return None
        if self.amount is not None and self.amount - 1 >= MIN_SHARE_EXPLAINED * extra:
            return True
        if self.cpu_time is not None and self.cpu_time - 1 <= MAX_OPTIMIZER_SHARE_MORE_WORK * extra:
            # It takes longer without more CPU time, so it waits for a CPU or for something else.
            return False
        beyond = None if self.optimizer is None or self.spread < MIN_SHARE_LONGER else (self.optimizer - 1) / extra
        if beyond is not None and beyond <= MAX_OPTIMIZER_SHARE_MORE_WORK:
            # Counts can miss it: samples may be larger, or a rank may pass its batch through the model twice.
            return True
        if beyond is not None and beyond >= MIN_OPTIMIZER_SHARE_SLOWER:
            return False
        is_alike = self.amount is not None and abs(self.amount - 1) <= MAX_DIFFERENCE
        return False if is_alike and self.unit in _COMPLETE and abs(self.operations - 1) <= MAX_DIFFERENCE else None


_OPERATIONS, _CPU_TIME = "operations", "CPU time"
_COMPLETE = ("tokens", "elements")
"""Units that, with equal numbers of operations, prove equal work: samples may be of any size."""


def compare(case: Case, ranks: Sequence[Rank]) -> Comparison:
    """Compare the slow `ranks` with all others, in the steady-state steps."""
    replayed, blame = case.replayed, case.blame
    mine, computing = _computing(blame, ranks)
    took, usual = blame.work_ns[mine & computing].sum(), blame.peers.others[mine & computing].sum()
    amounts = _amounts(case, ranks)
    unit = next(iter(amounts), "")
    fixed = mine & computing & _of_optimizer(replayed, ranks)
    known = float(blame.peers.others[fixed].sum())
    longer = float(took / max(usual, 1))
    return Comparison(
        longer=longer,
        longer_margin=_longer_margin(blame, mine & computing),
        amount=amounts.get(unit),
        unit=unit,
        operations=amounts.get(_OPERATIONS, 1.0),
        optimizer=float(blame.work_ns[fixed].sum()) / known if known >= MIN_OPTIMIZER_SHARE * max(usual, 1) else None,
        cpu_time=None if blame.dfg.has_gpu() else amounts.get(_CPU_TIME),
        spread=_spread(blame, mine & computing & ~fixed, longer),
    )


def _longer_margin(blame: Blame, nodes: np.ndarray) -> float:
    """Half the width of the 95 % interval of the mean ratio of these nodes' time to that of their counterparts in a step."""
    step = np.searchsorted(blame.steps, blame.dfg.step[nodes])
    took, usual = (np.bincount(step, of[nodes], len(blame.steps)) for of in (blame.work_ns, blame.peers.others))
    return mean_margin(took[usual > 0] / usual[usual > 0])


def _spread(blame: Blame, nodes: np.ndarray, longer: float) -> float:
    """Share of the usual time of these nodes whose operations are slower by at least half the overall slowdown."""
    names = blame.dfg.name[nodes]
    took, usual = (np.bincount(names, of[nodes], len(blame.dfg.names)) for of in (blame.work_ns, blame.peers.others))
    is_longer = took >= (1 + (longer - 1) / 2) * usual
    return float(usual[is_longer].sum() / max(usual.sum(), 1))


def _computing(blame: Blame, ranks: Sequence[Rank]) -> tuple[np.ndarray, np.ndarray]:
    """(mask of these ranks' nodes in the examined steps, mask of compute nodes with counterparts)."""
    dfg = blame.dfg
    mine = np.isin(dfg.rank, ranks) & np.isin(dfg.step, blame.steps)
    return mine, dfg.of(Cls.COMPUTE, Cls.CPU) & ~np.isnan(blame.peers.others)


def _amounts(case: Case, ranks: Sequence[Rank]) -> dict[str, float]:
    """Unit -> ratio of these ranks' amount of work to the median of the others, if the amounts of all ranks are known.

    In this order: tokens, samples, elements of operations' input tensors, operations, CPU time of the training threads.
    """
    replayed, job, steps = case.replayed, case.job.steps, case.replayed.steps.steady
    counts: list[tuple[str, Callable[[Rank], float]]] = [
        ("tokens", lambda rank: _mean(job, rank, steps, "tokens")),
        ("samples", lambda rank: _mean(job, rank, steps, "samples")),
        ("elements", lambda rank: sum(input_elements(case.run.events(rank), steps))),
        (_OPERATIONS, lambda rank: _operations(replayed, rank)),
        (_CPU_TIME, lambda rank: _mean(job, rank, steps, "cpu_ns")),
    ]
    blame = replayed.blame
    roles = dict(zip(blame.dfg.marks.ranks, blame.roles.tolist(), strict=True))
    # Pipeline stages do different work, so their amounts cannot be compared.
    alike = [rank for rank in roles if {roles[rank]} == {roles[slow] for slow in ranks}]
    others = [rank for rank in alike if rank not in ranks]
    found = {}
    for unit, count in counts if others else ():
        amount = {rank: count(rank) for rank in alike}
        if min(amount.values()) > 0:
            usual = float(np.median([amount[rank] for rank in others]))
            found[unit] = float(np.mean([amount[rank] for rank in ranks])) / usual
    return found


def _mean(job: JobSteps, rank: Rank, steps: Sequence[int], column: str) -> float:
    table = job.table(rank)
    counts = table.ints(column)[np.isin(table.ints("step"), steps)]
    return float(counts[counts > 0].mean()) if (counts > 0).any() else 0.0


def _operations(replayed: Replayed, rank: Rank) -> float:
    dfg = replayed.built.dfg
    return float(np.count_nonzero((dfg.rank == rank) & dfg.of(Cls.COMPUTE) & np.isin(dfg.step, replayed.steps.steady)))


def _of_optimizer(replayed: Replayed, ranks: Sequence[Rank]) -> np.ndarray:
    """Mask of the nodes that the optimizers of these ranks run or launch, bool[N]."""
    dfg, found = replayed.built.dfg, np.zeros(replayed.built.dfg.nodes, bool)
    for rank in ranks:
        events = replayed.run.events(rank)
        is_step = events.matches("name", lambda name: name.startswith(OPTIMIZER))
        begin = np.sort(events.ints("start_ns")[is_step])
        end = np.sort((events.ints("start_ns") + events.ints("dur_ns"))[is_step])
        nodes = np.flatnonzero((dfg.lane == dfg.main_lane(rank)) & (dfg.event >= 0))
        at = events.ints("start_ns")[dfg.event[nodes]]
        inside = np.searchsorted(begin, at, side="right") - np.searchsorted(end, at, side="right") > 0
        found[nodes[inside]] = True
    launched = (dfg.pred_kind == Edge.LAUNCH) & found[dfg.pred_idx]
    found[dfg.pred_target[launched]] = True
    return found
