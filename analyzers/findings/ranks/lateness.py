"""Kinds of work that can make a rank late, and the place where it loses most against its peers."""

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
"""Least share of what a rank loses on its CPU that one operation must bear, to be what makes it late."""

MAX_EXCESS_OF_OTHERS = 0.1
"""Most that all other operations may take beyond the usual, as a share of that, where one makes the rank late."""

MIN_SHARE_OF_LINE = 0.25
"""Least share of the time lost in one operation or gap that a line of Python must bear, there or anywhere, to be named."""

MIN_TIMES_THE_PEERS = 3.0
"""How many times as long as on the other ranks that operation takes at least."""


@dataclass(frozen=True)
class Lateness:
    """A kind of work that can make a rank late."""

    id: str
    phrase: str
    work: str
    """What stands in the brackets of `straggler[…]=fix`."""
    advice: str

    @property
    def scenario(self) -> str:
        return f"straggler[{self.work}]=fix"


UNRECORDED = Lateness(
    "ESP201",
    "time in code that no operation was recorded for",
    "host_gap",
    "What runs there may be Python code, a sleep, logging, file or network access, garbage collection, or a "
    "host whose CPU is taken by others.",
)

KINDS = (
    UNRECORDED,
    Lateness(
        "ESP202",
        "slower compute",
        "compute",
        "The same operations take longer on this rank: compare clocks, temperature, other tenants and thread counts of "
        "its device with the others', and whether it gets more work (longer sequences, larger batches).",
    ),
    Lateness(
        "ESP203",
        "slower CPU work and launches",
        "cpu",
        "Its CPU issues the same calls more slowly: look for other processes on its host, CPU limits, or a process bound "
        "to the wrong NUMA node.",
    ),
    Lateness(
        "ESP204",
        "memory allocation",
        "allocator",
        "Its allocator runs short and asks the driver (cudaMalloc, cudaFree): lower its memory use, or set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    ),
)


MIN_TIMES_AS_MUCH_TOLD = 1.1
"""How many times as much a rank has to do, from which on the number is said."""

COMPUTING = ("compute", "cpu")
"""Kinds of work of which a rank may have more, or which it may do more slowly."""

INPUT = Lateness(
    "ESP206",
    "slower input data",
    "data",
    "Its batches take longer to make than those of the others: compare its host's storage and free cores with theirs, and "
    "whether its samples are larger.",
)


@dataclass(frozen=True)
class SlowPlace:
    """Where on its lanes a rank loses most against its peers."""

    where: str
    """The operation, or the gap `before → after`."""
    lost_ns: int
    """What is lost there in a mean step."""
    python: str | None = None
    """The Python line that ran there, as `file(line): function`; None where no stack tells."""
    call: str | None = None
    """What that line called."""
    module: str | None = None
    """The modules that the worst of it lies in (`EnclosingCalls.modules`)."""

    def pointer(self, rank: Rank) -> str:
        """A sentence that says so of a rank."""
        calling = f", calling {self.call}" if self.call else ""
        return f"Rank {rank} loses {readable.duration(self.lost_ns)} a step in {self.python or self.where}{calling}."


def inside_one_operation(blame: Blame, ranks: tuple[Rank, ...], kind: Lateness) -> Lateness:
    """`kind` itself, or time inside one operation, where that bears what the slow `ranks` lose on their CPUs and all others
    take as long as usual: a slower CPU, or more work, would make others longer, too."""
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
    # Only others that usually take as long in all can tell that the CPU is no slower, and the batch no larger.
    tells = 0 < usual[top] <= usual[others].sum() and extra[others].sum() <= MAX_EXCESS_OF_OTHERS * usual[others].sum()
    if not (is_most and tells):
        return kind
    return replace(
        kind,
        id=UNRECORDED.id,
        phrase=f"time inside {printable(dfg.names[top], LONGEST_NAME)}",
        advice="All other operations take as long as elsewhere: it is no slower CPU, and no larger batch. "
        + UNRECORDED.advice,
    )


def told_apart(kind: Lateness, compared: Comparison) -> Lateness:
    """`kind`, of which it is said whether the ranks have more to do or take longer for the same, if that is known."""
    if kind.id == UNRECORDED.id or compared.is_more_work is None:
        return kind
    if not compared.is_more_work:
        return replace(kind, phrase=f"{kind.phrase}, of no more work than the others have", advice=_SAME_WORK)
    amount = compared.amount or 0.0
    times = (
        f": {amount:.{0 if amount >= 10 else 1}f} times the {compared.what}" if amount >= MIN_TIMES_AS_MUCH_TOLD else ""
    )
    return replace(kind, phrase=f"more work{times}", advice=_MORE_WORK)


_SAME_WORK = (
    "It does the same work in more time: compare clocks, temperature, other tenants, CPU limits and thread counts of its "
    "device and host with the others'."
)
_MORE_WORK = (
    "It is no slower, but has more to do: give all ranks as much in each step (batches of like size and length, the same "
    "augmentation and metrics on all), or, where devices are unlike, as much as each can do."
)


def places_of(case: Case, ranks: tuple[Rank, ...], kind: Lateness) -> dict[Rank, SlowPlace]:
    dfg = case.replayed.built.dfg
    try:
        fixed = fix_stragglers(case.pricer.blame, ranks, CLASSES[kind.work])
    except Declined:  # Their work of this kind has no counterpart: it was not what was priced.
        return {}
    lost_ns = dfg.dur_ns - fixed.dfg.dur_ns
    return {rank: place for rank in ranks if (place := place_of_loss(case, rank, lost_ns)) is not None}


def place_of_loss(case: Case, rank: Rank, lost: np.ndarray) -> SlowPlace | None:
    """Where this rank loses most; `lost` is what each node takes longer than its peers, ns, shape (N,)."""
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
    return SlowPlace(dfg.names[top], lost_ns, python, call, _modules(case, rank, worst))


def _modules(case: Case, rank: Rank, node: int) -> str | None:
    """The modules around a node; around its launch, if it is a kernel."""
    dfg = case.replayed.built.dfg
    if dfg.lanes[dfg.lane[node]].kind == LaneKind.STREAM:
        edges = slice(dfg.pred_ptr[node], dfg.pred_ptr[node + 1])
        node = next(iter(dfg.pred_idx[edges][dfg.pred_kind[edges] == Edge.LAUNCH].tolist()), node)
    row = int(dfg.event[node])
    return EnclosingCalls(case.job.samples, rank).modules(row) if row >= 0 else None


def _python_line(replayed: Replayed, rank: Rank, time_ns: np.ndarray, least_ns: float) -> tuple[str | None, str | None]:
    """The Python line that bears most of `time_ns`, float64[N], and what it called; None where none bears `least_ns`."""
    took = PythonTime(replayed.run, replayed.built.dfg, rank).took(time_ns)
    place = max(took, key=lambda place: took[place][0], default=None)
    return (None, None) if place is None or took[place][0] < least_ns else place
