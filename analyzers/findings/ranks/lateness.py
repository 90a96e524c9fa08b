"""Kinds of work that can make a rank late, and where it loses most time compared with its peers."""

from dataclasses import dataclass, replace

import numpy as np

from esprof.analyzers.findings.ranks.more_work import Comparison
from esprof.analyzers.rule import Case
from esprof.analyzers.views.enclosing import EnclosingCalls
from esprof.core import readable
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import Rank
from esprof.replay.cpu.python_time import PythonTime
from esprof.replay.dfg import Cls, Edge, LaneKind
from esprof.replay.ranks.blame import Blame
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.scenario import Declined
from esprof.replay.whatif.terms.straggler import CLASSES, fix_stragglers

MIN_OPERATION_SHARE = 0.8
"""Least share of a rank's extra CPU time in one operation for that operation to be the reason."""

MAX_EXCESS_OF_OTHERS = 0.1
"""Largest extra time of all other operations, as a share of their usual time, for one operation to be the reason."""

MIN_SHARE_OF_LINE = 0.25
"""Least share of the time lost in one operation or gap for which a line of Python is reported."""

MIN_TIMES_THE_PEERS = 3.0
"""Least ratio of that operation's time to its time on the other ranks for it to be the reason."""


@dataclass(frozen=True)
class Lateness:
    """A kind of work that can make a rank late."""

    id: str
    phrase: str
    """Reason in the title of the finding."""
    work: str
    """The argument of `straggler[…]=fix`."""
    advice: str

    @property
    def scenario(self) -> str:
        return f"straggler[{self.work}]=fix"


UNRECORDED = Lateness(
    "ESP201",
    "time outside recorded operations",
    "host_gap",
    "Possible reasons: Python code, a sleep, logging, file or network access, garbage collection, or other "
    "processes on its CPU.",
)

UNKNOWN = Lateness(
    UNRECORDED.id,
    "reason unknown",
    "work",
    "No kind of its work is longer than on the other ranks by more than it scatters from step to step. Record more "
    "steps, with stacks.",
)

KINDS = (
    UNRECORDED,
    Lateness(
        "ESP202",
        "slower compute",
        "compute",
        "The same operations take longer on this rank. Compare clocks, temperature, other tenants and thread counts "
        "of its device with those of the others, and check whether it gets more work (longer sequences, larger "
        "batches).",
    ),
    Lateness(
        "ESP203",
        "slower CPU work and kernel launches",
        "cpu",
        "Its CPU makes the same calls more slowly. Look for other processes on its host, CPU limits, or a process "
        "bound to the wrong NUMA node.",
    ),
    Lateness(
        "ESP204",
        "memory allocation",
        "allocator",
        "Its allocator has no free block and calls the driver (cudaMalloc, cudaFree). Lower its memory use, or set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    ),
)


MIN_WORK_RATIO_SHOWN = 1.1
"""Least ratio of a rank's amount of work to that of the others for which the title states it."""

COMPUTING = ("compute", "cpu")
"""Kinds of work that a rank may have more of, or may do more slowly."""

INPUT = Lateness(
    "ESP206",
    "slower input data",
    "data",
    "Its batches take longer to make than those of the others. Compare its host's storage and free cores with "
    "theirs, and check whether its samples are larger.",
)


@dataclass(frozen=True)
class SlowLocation:
    """Where a rank loses most time compared with its peers."""

    where: str
    """The operation, or the gap `before → after`."""
    lost_ns: int
    """Time lost there in a mean step, ns."""
    python: str | None = None
    """The Python line that ran there, as `file(line): function`; None without stacks."""
    call: str | None = None
    """The function that this line called."""
    module: str | None = None
    """The modules that enclose the node with the greatest loss (`EnclosingCalls.modules`)."""

    def pointer(self, rank: Rank) -> str:
        """A sentence for the advice."""
        calling = f", calling {self.call}" if self.call else ""
        return f"Rank {rank} loses {readable.duration(self.lost_ns)} a step in {self.python or self.where}{calling}."


def inside_one_operation(blame: Blame, ranks: tuple[Rank, ...], kind: Lateness) -> Lateness:
    """Replace `kind` by time inside one operation if that accounts for the extra CPU time of `ranks`.

    All other operations must take as long as usual: a slower CPU or more work would make them longer, too.
    """
    dfg = blame.dfg
    mine = np.isin(dfg.rank, ranks) & np.isin(dfg.step, blame.steps) & dfg.on(LaneKind.CPU)
    nodes = np.flatnonzero(mine & dfg.of(*CLASSES[kind.work]) & ~dfg.of(Cls.HOST_GAP) & ~np.isnan(blame.peers.others))
    extra, took, usual = (
        np.bincount(dfg.name[nodes], of[nodes], len(dfg.names))
        for of in (blame.excess_ns, blame.work_ns, blame.peers.others)
    )
    top = int(extra.argmax())
    others = np.arange(len(dfg.names)) != top
    is_most = (
        extra[top] >= MIN_OPERATION_SHARE * np.maximum(extra, 0).sum() and took[top] >= MIN_TIMES_THE_PEERS * usual[top]
    )
    # The others prove that the CPU is no slower, and the batch no larger, only if they take as long in total.
    is_isolated = (
        0 < usual[top] <= usual[others].sum() and extra[others].sum() <= MAX_EXCESS_OF_OTHERS * usual[others].sum()
    )
    if not (is_most and is_isolated):
        return kind
    return replace(
        kind,
        id=UNRECORDED.id,
        phrase=f"time inside {printable(dfg.names[top], LONGEST_NAME)}",
        advice="All other operations take as long as on the other ranks, so neither a slower CPU nor a larger batch "
        f"is the reason. {UNRECORDED.advice}",
    )


def with_comparison(kind: Lateness, compared: Comparison) -> Lateness:
    """Add to `kind` whether the ranks have more work or take longer for the same work, if that is known."""
    if kind.id == UNRECORDED.id or compared.is_more_work is None:
        return kind
    if not compared.is_more_work:
        return replace(kind, phrase=f"{kind.phrase}, with the same amount of work", advice=_SAME_WORK)
    amount = compared.amount or 0.0
    times = (
        f": {amount:.{0 if amount >= 10 else 1}f} times the {compared.unit}" if amount >= MIN_WORK_RATIO_SHOWN else ""
    )
    return replace(kind, phrase=f"more work{times}", advice=_MORE_WORK)


_SAME_WORK = (
    "It needs more time for the same work. Compare clocks, temperature, other tenants, CPU limits and thread counts "
    "of its device and host with those of the others."
)
_MORE_WORK = (
    "Its device is not slower, but it has more work. Give all ranks the same amount of work in each step "
    "(batches of similar size and length, the same augmentation and metrics on all ranks). If devices differ, "
    "distribute the work by their speed."
)


def slow_locations(case: Case, ranks: tuple[Rank, ...], kind: Lateness) -> dict[Rank, SlowLocation]:
    """Where each of `ranks` loses most time in work of this kind."""
    dfg = case.replayed.built.dfg
    try:
        fixed = fix_stragglers(case.blame, ranks, CLASSES[kind.work])
    except Declined:  # Work of this kind has no counterpart on other ranks and was not priced.
        return {}
    lost_ns = dfg.dur_ns - fixed.dfg.dur_ns
    return {rank: location for rank in ranks if (location := location_of_loss(case, rank, lost_ns)) is not None}


def location_of_loss(case: Case, rank: Rank, lost: np.ndarray) -> SlowLocation | None:
    """Where this rank loses most time; `lost` is the extra time of each node over its peers, ns, shape (N,)."""
    replayed, dfg = case.replayed, case.replayed.built.dfg
    mine = np.flatnonzero((dfg.rank == rank) & np.isin(dfg.step, replayed.steps.steady) & (lost > 0))
    if not len(mine):
        return None
    by_name = np.bincount(dfg.name[mine], weights=lost[mine], minlength=len(dfg.names))
    top = int(by_name.argmax())
    lost_ns = round(by_name.max() / len(replayed.steps.steady))
    time_ns = np.zeros(dfg.nodes)
    time_ns[mine] = lost[mine]
    python, call = _python_line(replayed, rank, time_ns, least_ns=MIN_SHARE_OF_LINE * by_name.max())
    worst = int(mine[np.where(dfg.name[mine] == top, lost[mine], 0).argmax()])
    return SlowLocation(dfg.names[top], lost_ns, python, call, _modules(case, rank, worst))


def _modules(case: Case, rank: Rank, node: int) -> str | None:
    """The modules that enclose a node or, for a kernel, its launch."""
    dfg = case.replayed.built.dfg
    if dfg.lanes[dfg.lane[node]].kind == LaneKind.STREAM:
        edges = slice(dfg.pred_ptr[node], dfg.pred_ptr[node + 1])
        node = next(iter(dfg.pred_idx[edges][dfg.pred_kind[edges] == Edge.LAUNCH].tolist()), node)
    row = int(dfg.event[node])
    return EnclosingCalls(case.job.samples, rank).modules(row) if row >= 0 else None


def _python_line(replayed: Replayed, rank: Rank, time_ns: np.ndarray, least_ns: float) -> tuple[str | None, str | None]:
    """(line, callee) that account for most of `time_ns`, float64[N]; (None, None) below `least_ns`."""
    took = PythonTime(replayed.run, replayed.built.dfg, rank).took(time_ns)
    location = max(took, key=lambda location: took[location][0], default=None)
    return (None, None) if location is None or took[location][0] < least_ns else location
