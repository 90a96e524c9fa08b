"""Whether slow ranks have more to do than the others, or take longer for the same."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.rule import Case
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Edge
from esprof.replay.ranks.blame import Blame
from esprof.replay.replayed import Replayed
from esprof.run.run import Run

MIN_SHARE_EXPLAINED = 0.5
"""Share of what slow ranks take longer that more work must explain, to be why they are slow."""

MAX_DIFFERENCE = 0.02
"""Two ranks whose amounts differ by no more than this share have as much to do."""

MAX_OPTIMIZER_SHARE_MORE_WORK, MIN_OPTIMIZER_SHARE_SLOWER = 0.25, 0.6
"""Up to, and from, which share of what all computing takes longer the optimizer takes longer, too: its work does not depend
on the batch, so that it tells more work from slower execution."""

MIN_SHARE_LONGER = 0.7
"""Least share of the computing that must take longer by half as much as all does together, or more, for the optimizer to
tell anything: one slow operation is neither more work nor a slower device."""

MIN_OPTIMIZER_SHARE = 0.02
"""Least share of the computing that the optimizer must be, to tell that."""

_OPTIMIZER = "Optimizer.step#"
"""How torch names the stretch in which an optimizer works."""

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Comparison:
    """What slow ranks do, against the others. None where the run does not tell."""

    longer: float
    """How many times as long their computing takes."""
    amount: float | None
    """How many times as much they have to do of `what`."""
    what: str
    operations: float
    """How many times as many operations they compute."""
    optimizer: float | None
    """How many times as long their optimizers take."""
    ran: float | None
    """How many times as long their training threads ran, where they compute on CPUs."""
    spread: float
    """Share of their computing, the optimizers' aside, that takes longer by half as much as all does together, or more."""

    @property
    def is_more_work(self) -> bool | None:
        """True for more work, False for the same work that takes longer."""
        extra = self.longer - 1
        if extra <= 0:
            return None
        if self.amount is not None and self.amount - 1 >= MIN_SHARE_EXPLAINED * extra:
            return True
        if self.ran is not None and self.ran - 1 <= MAX_OPTIMIZER_SHARE_MORE_WORK * extra:
            # What takes longer and runs no longer waits for a CPU, or for something else.
            return False
        beyond = None if self.optimizer is None or self.spread < MIN_SHARE_LONGER else (self.optimizer - 1) / extra
        if beyond is not None and beyond <= MAX_OPTIMIZER_SHARE_MORE_WORK:
            # Samples may be larger, and a rank may pass its batch through the model twice.
            return True
        if beyond is not None and beyond >= MIN_OPTIMIZER_SHARE_SLOWER:
            return False
        is_alike = self.amount is not None and abs(self.amount - 1) <= MAX_DIFFERENCE
        return False if is_alike and self.what in _COMPLETE and abs(self.operations - 1) <= MAX_DIFFERENCE else None


_OPERATIONS, _CPU_TIME = "operations", "CPU time"
_COMPLETE = ("tokens", "elements")
"""What tells, with as many operations, that there is as much to do: samples may be of any size."""


def compare(case: Case, ranks: Sequence[Rank]) -> Comparison:
    """Hold the slow `ranks` against all others, in the steady steps."""
    replayed, blame = case.replayed, case.pricer.blame
    mine, computing = _computing(blame, ranks)
    took, usual = blame.work_ns[mine & computing].sum(), blame.peers.others[mine & computing].sum()
    amounts = _amounts(case, ranks)
    what = next(iter(amounts), "")
    fixed = mine & computing & _of_optimizer(replayed, ranks)
    known = float(blame.peers.others[fixed].sum())
    longer = float(took / max(usual, 1))
    return Comparison(
        longer=longer,
        amount=amounts.get(what),
        what=what,
        operations=amounts.get(_OPERATIONS, 1.0),
        optimizer=float(blame.work_ns[fixed].sum()) / known if known >= MIN_OPTIMIZER_SHARE * max(usual, 1) else None,
        ran=None if blame.dfg.has_gpu() else amounts.get(_CPU_TIME),
        spread=_spread(blame, mine & computing & ~fixed, longer),
    )


def _spread(blame: Blame, nodes: np.ndarray, longer: float) -> float:
    """Share of what these nodes usually take whose names take longer by at least half of what all do."""
    names = blame.dfg.name[nodes]
    took, usual = (np.bincount(names, of[nodes], len(blame.dfg.names)) for of in (blame.work_ns, blame.peers.others))
    is_longer = took >= (1 + (longer - 1) / 2) * usual
    return float(usual[is_longer].sum() / max(usual.sum(), 1))


def _computing(blame: Blame, ranks: Sequence[Rank]) -> tuple[np.ndarray, np.ndarray]:
    """(mask of the nodes of these ranks in the steps that count, of those that compute and have counterparts)."""
    dfg = blame.dfg
    mine = np.isin(dfg.rank, ranks) & np.isin(dfg.step, blame.steps)
    return mine, dfg.of(Cls.COMPUTE, Cls.CPU) & ~np.isnan(blame.peers.others)


def _amounts(case: Case, ranks: Sequence[Rank]) -> dict[str, float]:
    """How many times as much these ranks have to do as the median of the others, where it is told of all ranks: of tokens,
    samples, elements in the shapes of what operations take, operations, and CPU time of the training threads, in this
    order."""
    replayed, job, steps = case.replayed, case.job.steps, case.replayed.steps.steady
    counts: list[tuple[str, Callable[[Rank], float]]] = [
        ("tokens", lambda rank: _mean(job, rank, steps, "tokens")),
        ("samples", lambda rank: _mean(job, rank, steps, "samples")),
        ("elements", lambda rank: _elements(case.run, rank, steps)),
        (_OPERATIONS, lambda rank: _operations(replayed, rank)),
        (_CPU_TIME, lambda rank: _mean(job, rank, steps, "cpu_ns")),
    ]
    blame = replayed.pricer.blame
    roles = dict(zip(blame.dfg.marks.ranks, blame.roles.tolist(), strict=True))
    # Stages of a pipeline have other things to do, more or less of them.
    alike = [rank for rank in roles if {roles[rank]} == {roles[slow] for slow in ranks}]
    others = [rank for rank in alike if rank not in ranks]
    found = {}
    for what, count in counts if others else ():
        of = {rank: count(rank) for rank in alike}
        if min(of.values()) > 0:
            usual = float(np.median([of[rank] for rank in others]))
            found[what] = float(np.mean([of[rank] for rank in ranks])) / usual
    return found


def _mean(job: JobSteps, rank: Rank, steps: Sequence[int], column: str) -> float:
    table = job.table(rank)
    told = table.ints(column)[np.isin(table.ints("step"), steps)]
    return float(told[told > 0].mean()) if (told > 0).any() else 0.0


def _elements(run: Run, rank: Rank, steps: Sequence[int]) -> float:
    """Elements of all tensors that operations take in these steps; 0 where shapes were not recorded, but of collectives."""
    events = run.events(rank)
    codes, texts = events.codes("shapes")
    of_ops = codes[events.is_kind("op") & np.isin(events.ints("step"), steps)]
    if np.count_nonzero(of_ops >= 0) < MIN_SHARE_EXPLAINED * len(of_ops):
        return 0.0
    sizes = np.array([_size(text) for text in texts] or [0.0])
    return float(sizes[of_ops[of_ops >= 0]].sum())


def _size(shapes: str) -> float:
    """Elements of all tensors in a text such as `[[8, 3], [], [4]]`."""
    dims = ([int(number) for number in _NUMBER.findall(part)] for part in shapes.split("]"))
    return float(sum(np.prod(one, dtype=float) for one in dims if one))


def _operations(replayed: Replayed, rank: Rank) -> float:
    dfg = replayed.built.dfg
    return float(np.count_nonzero((dfg.rank == rank) & dfg.of(Cls.COMPUTE) & np.isin(dfg.step, replayed.steps.steady)))


def _of_optimizer(replayed: Replayed, ranks: Sequence[Rank]) -> np.ndarray:
    """Mask of the work that the optimizers of these ranks do, and launch, bool[N]."""
    dfg, found = replayed.built.dfg, np.zeros(replayed.built.dfg.nodes, bool)
    for rank in ranks:
        events = replayed.run.events(rank)
        codes, names = events.codes("name")
        is_step = np.array([name.startswith(_OPTIMIZER) for name in names] + [False])[codes]
        begin = np.sort(events.ints("start_ns")[is_step])
        end = np.sort((events.ints("start_ns") + events.ints("dur_ns"))[is_step])
        nodes = np.flatnonzero((dfg.lane == dfg.main_lane(rank)) & (dfg.event >= 0))
        at = events.ints("start_ns")[dfg.event[nodes]]
        inside = np.searchsorted(begin, at, side="right") - np.searchsorted(end, at, side="right") > 0
        found[nodes[inside]] = True
    launched = (dfg.pred_kind == Edge.LAUNCH) & found[dfg.pred_idx]
    found[dfg.pred_target[launched]] = True
    return found
