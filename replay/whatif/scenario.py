"""Scenarios: what each what-if term does to a graph, and when it cannot be answered."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from esprof.replay.blame import arrivals, slow_ranks
from esprof.replay.dfg import Cls, Dfg
from esprof.replay.engine.timeline import replay
from esprof.replay.whatif import edits
from esprof.replay.whatif.averages import medians_of
from esprof.replay.whatif.buckets import NotBuckets, rebucket
from esprof.replay.whatif.grammar import Term
from esprof.replay.whatif.links import link_share
from esprof.trace.run import Run
from esprof.types import Ns, Rank

MATCHED = 0.9
"""Least share of the time for which `straggler=fix` must find counterparts."""

MORE, MANY = 2, 8
"""Times as many transfers as were recorded above which what each costs beside its bytes counts, and may turn a gain into a
loss."""

_SPEEDS = ("gpu", "cpu", "network", "kernel", "collective")
_HOST_WORK = (Cls.CPU, Cls.HOST_GAP, Cls.COMPUTE, Cls.LAUNCH)
_NOT_YET = {
    "loader.workers": "needs the loader's reads apart from its decoding (stages), which no run holds yet",
    "storage": "needs the loader's reads apart from its decoding (stages), which no run holds yet",
    "cache": "needs the loader's reads apart from its decoding (stages), which no run holds yet",
    "compress": "needs measured costs of the compressor and of the collectives (a probe), which this run does not hold",
    "assign": "needs this job measured on the other devices (a probe), which this run does not hold",
}


class Declined(Exception):
    """A scenario that the run holds no evidence for; the text is the reason."""


@dataclass(frozen=True)
class Scenario:
    """The graph as a what-if makes it, and what should be said of it."""

    dfg: Dfg
    note: str | None = None
    least_ns: np.ndarray | None = None
    """What no step can be shorter than, ns, one per step of `dfg.marks`; None where only the graph and its busiest stream
    bound them."""


def apply(run: Run, dfg: Dfg, terms: tuple[Term, ...], steps: tuple[int, ...]) -> Scenario:
    """The graph under all `terms` at once, in whatever order they come; `steps` are those that tell who is slow. Raises
    Declined."""
    for term in terms:
        if term.target in _NOT_YET:
            raise Declined(_NOT_YET[term.target])
    targets = {term.target for term in terms}
    now = Scenario(dfg)
    # Buckets and slow ranks are found by recorded times, before others change them.
    if "bucket_mb" in targets:
        now = rebucketed(run, now, {term.factor for term in terms if term.target == "bucket_mb"})
    if "straggler" in targets:
        mended = fix_stragglers(now.dfg, slow_ranks(dfg, steps))
        now = replace(mended, note=_noted(now.note, mended.note))
    if speeds := [term for term in terms if term.target in _SPEEDS]:
        now = sped_up(run, now, speeds, dfg)
    if "data" in targets:
        now = replace(now, dfg=without_input_stall(now.dfg))
    # Overlap hides what the others leave to hide.
    return overlapped(now) if "overlap" in targets else now


def sped_up(run: Run, now: Scenario, terms: Sequence[Term], recorded: Dfg) -> Scenario:
    """Work, links and CPUs as many times as fast as all these terms say together; `recorded` is the graph before any edit.

    Of a transfer between CPUs, `network=` speeds up what the link takes, and `cpu=` the rest.
    """
    dfg, note = now.dfg, now.note
    work, link, cpu = (np.ones(dfg.nodes) for _ in range(3))
    for term in sorted(terms, key=lambda term: term.text):  # Products of floats depend on their order.
        nodes = _scaled_nodes(run, dfg, term)
        (link if term.target == "network" else work)[nodes] *= term.factor
        if term.target == "cpu":
            cpu[np.isin(dfg.rank, _ranks(run, term))] *= term.factor
        if term.target in ("network", "collective") and dfg.of(Cls.RESIDUAL).any():
            note = _noted(note, "collectives that have no match on all their ranks stay as they were")
    share = link_share(dfg, recorded)
    speed = work / (share / link + (1 - share) / _slowest(dfg, cpu))
    return replace(now, dfg=edits.scale(dfg, speed != 1.0, speed), note=note)


def _slowest(dfg: Dfg, cpu: np.ndarray) -> np.ndarray:
    """How many times as fast the CPUs behind each node are: of a transfer between CPUs, the slowest of its ranks."""
    transfers = np.flatnonzero(dfg.on("comm") & (dfg.collective >= 0))
    of_number = np.full(int(dfg.collective.max(initial=-1)) + 1, np.inf)
    np.minimum.at(of_number, dfg.collective[transfers], cpu[transfers])
    slowest = cpu.copy()
    slowest[transfers] = of_number[dfg.collective[transfers]]
    return slowest


def _noted(*notes: str | None) -> str | None:
    return "; ".join(dict.fromkeys(filter(None, notes))) or None


def rebucketed(run: Run, now: Scenario, sizes: set[float]) -> Scenario:
    """DDP with other gradient buckets, of one size in MiB."""
    if len(sizes) > 1:
        raise Declined("buckets cannot have two sizes at once")
    if now.dfg.has_gpu():
        raise Declined("gradient buckets are told apart on CPUs (gloo) only so far")
    (size,) = sizes
    try:
        changed = rebucket(run, now.dfg, size)
    except NotBuckets as reason:
        raise Declined(f"these are no gradient buckets that can be told apart: {reason}") from reason
    more = _transfers(changed) / _transfers(now.dfg)
    if more > MANY:
        raise Declined(f"{more:.0f} times as many transfers: what each costs beside its bytes is not known")
    note = "what a transfer costs beside its bytes is not counted" if more > MORE else None
    return replace(now, dfg=changed, note=_noted(now.note, note))


def _transfers(dfg: Dfg) -> int:
    return int(np.count_nonzero(dfg.on("comm") & dfg.of(Cls.COMMUNICATION)))


def overlapped(now: Scenario) -> Scenario:
    """Communication hidden perfectly: nobody waits for a transfer, only for ranks that come late to it. What remains of
    the network is that no step is shorter than the time in which its busiest rank transfers."""
    transfers = now.dfg.of(Cls.COMMUNICATION)
    if not transfers.any():
        raise Declined("no communication was recorded in these steps")
    before = replay(now.dfg)
    # Transfers may reach into the next step: even so none gets longer than it was.
    most = np.maximum(before.step_ns(), before.busiest_stream_ns())
    return replace(
        now,
        dfg=edits.shorten(now.dfg, transfers, 0),
        least_ns=np.minimum(before.transfer_ns(), most),
        note=_noted(now.note, "a bound: no transfer is waited for"),
    )


def _scaled_nodes(run: Run, dfg: Dfg, term: Term) -> np.ndarray:
    """Mask of the nodes whose duration a speed-up term divides. Raises Declined where there is none."""
    if term.target in ("gpu", "cpu"):
        mask = _gpu_work(dfg) if term.target == "gpu" else _cpu_work(dfg)
        mask &= np.isin(dfg.rank, _ranks(run, term))
        if not mask.any():
            raise Declined(_no_such_work(dfg, term))
        return mask
    communication = dfg.of(Cls.COMMUNICATION)
    if term.target == "network":
        mask = communication
    else:
        assert term.pattern is not None
        named = np.array([bool(term.pattern.search(name)) for name in dfg.names])[dfg.name]
        among = communication if term.target == "collective" else _gpu_work(dfg) | _cpu_work(dfg) & dfg.of(Cls.COMPUTE)
        mask = among & named
    if not mask.any():
        what = "communication" if term.target == "network" else f"{term.target} of that name"
        matched = " whose ranks are all here" if dfg.of(Cls.RESIDUAL).any() else ""
        raise Declined(f"no {what}{matched} was recorded in these steps")
    return mask


def _gpu_work(dfg: Dfg) -> np.ndarray:
    """Work on GPU streams, copies to and from the host apart: those run at the speed of the bus."""
    copies = np.array(["HtoD" in name or "DtoH" in name for name in dfg.names])[dfg.name]
    mask: np.ndarray = dfg.on("stream") & dfg.of(Cls.COMPUTE) & ~copies
    return mask


def _cpu_work(dfg: Dfg) -> np.ndarray:
    mask: np.ndarray = dfg.on("cpu") & dfg.of(*_HOST_WORK)
    return mask


def _ranks(run: Run, term: Term) -> list[Rank]:
    if term.rank is not None:
        if term.rank not in run.ranks:
            raise Declined(f"rank {term.rank} is not in this run")
        return [term.rank]
    if term.device is not None:
        ranks = [rank.rank for rank in run.meta.ranks if term.device in (rank.device or "")]
        if not ranks:
            raise Declined(f"no rank of this run has a device {term.device!r}")
        return ranks
    return run.ranks


def _no_such_work(dfg: Dfg, term: Term) -> str:
    if term.target == "gpu" and not dfg.has_gpu():
        return "no GPU work was recorded: the device of this job is its CPU (ask cpu=)"
    return f"no {term.target.upper()} work was recorded there"


def without_input_stall(dfg: Dfg, ranks: list[Rank] | None = None) -> Dfg:
    """A loader that never makes a rank wait: its batches (of `ranks`) take no time. Raises Declined without a loader."""
    mask = dfg.of(Cls.DATA) & (np.isin(dfg.rank, ranks) if ranks is not None else True)
    if not mask.any():
        raise Declined("no data loader was recorded in these steps")
    return edits.shorten(dfg, mask, 0)


def fix_stragglers(dfg: Dfg, slow: list[Rank], classes: tuple[Cls, ...] | None = None) -> Scenario:
    """Give each node of the `slow` ranks the median duration of its counterparts on the other ranks.

    Only slow ranks (`blame.slow_ranks`): replacing all at once would only swap two ranks' work, and replacing single nodes
    that happened to be slow would sell noise as gain. A step in which such a rank did no more than its peers stays.
    `classes` limits what is replaced. Raises Declined below 90 % matched time.
    """
    if len(dfg.marks.ranks) < 2:
        raise Declined("needs at least two ranks")
    if not (dfg.collective >= 0).any():
        raise Declined("no collective of these steps was matched across ranks, so none can be called slow")
    if not slow:
        return Scenario(dfg, "no rank is clearly slower than its peers: nothing to mend")
    own = ~dfg.of(Cls.COMMUNICATION, Cls.WAIT, Cls.RESIDUAL) & (dfg.key >= 0) & (dfg.step >= 0)
    peers = _peer_medians(dfg, own, slow)
    mine = own & np.isin(dfg.rank, slow)
    found = mine & ~np.isnan(peers)
    share = float(dfg.dur_ns[found].sum()) / max(1.0, float(dfg.dur_ns[mine].sum()))
    if share < MATCHED:
        raise Declined(f"only {100 * share:.0f} % of the slow ranks' time has a counterpart on the other ranks")
    if classes is not None:
        found &= dfg.of(*classes)
    dur = dfg.dur_ns.copy()
    dur[found] = np.rint(peers[found]).astype(np.int64)
    # An allocator call stops its device until all work on it is done: the peers' may be long for waiting for this rank.
    spared = (dfg.of(Cls.ALLOCATOR) & (dur > dfg.dur_ns)) | _no_slower(dfg, dur, slow)
    dur[spared] = dfg.dur_ns[spared]
    if classes is None or Cls.ALLOCATOR in classes:
        dur = _without_waiting(dfg, dur, slow)
    note = f"rank {', '.join(map(str, slow))} as fast as its peers; {100 * share:.0f} % of the time matched"
    return Scenario(replace(dfg, dur_ns=dur), note)


def _without_waiting(dfg: Dfg, dur_ns: np.ndarray, slow: list[Rank]) -> np.ndarray:
    """`dur_ns` with the allocator calls that other ranks make while a collective of theirs waits for a `slow` one cut to
    what the counterpart on the slow rank takes: an allocator call stops for the work that its device holds, and a pending
    collective is such work (docs/replay.md §4)."""
    calls = dfg.of(Cls.ALLOCATOR) & (dfg.key >= 0)
    known = dfg.step.astype(np.int64) * (int(dfg.key.max()) + 1) + dfg.key
    own = calls & np.isin(dfg.rank, slow)
    dur = dur_ns.copy()
    for begin, end, rank in _waits_for(dfg, slow):
        inside = (dfg.recorded_ns >= begin) & (dfg.recorded_ns + dfg.dur_ns <= end)
        held = np.flatnonzero(calls & inside & (dfg.rank == rank))
        medians, found = medians_of(known[own], dfg.dur_ns[own], known[held])
        dur[held[found]] = np.minimum(dur[held], medians)[found]
    return dur


def _waits_for(dfg: Dfg, slow: list[Rank]) -> list[tuple[Ns, Ns, Rank]]:
    """(begin, end, rank) of each wait, on another rank, for a collective to which a `slow` rank came last."""
    seen = arrivals(dfg, dfg.marks.steps)
    last = seen.last()
    waits = []
    for row in np.flatnonzero(np.isin(np.array(seen.ranks)[last], slow)):
        arrived = seen.arrived_ns[row]
        until = int(arrived[last[row]])
        waits += [(int(a), until, rank) for a, rank in zip(arrived, seen.ranks, strict=True) if a < until]
    return waits


def _no_slower(dfg: Dfg, after_ns: np.ndarray, ranks: list[Rank]) -> np.ndarray:
    """Mask of the nodes of those steps of `ranks` in which the change would add to their work instead of taking away."""
    mask = np.zeros(dfg.nodes, bool)
    for rank in ranks:
        nodes = np.flatnonzero((dfg.rank == rank) & (dfg.step >= 0))
        _, step = np.unique(dfg.step[nodes], return_inverse=True)
        change = np.bincount(step, weights=(after_ns - dfg.dur_ns)[nodes])
        mask[nodes] = change[step] > 0
    return mask


def _peer_medians(dfg: Dfg, own: np.ndarray, ranks: list[Rank]) -> np.ndarray:
    """Per node of `ranks` among `own`, the median duration (ns) of its counterparts on all other ranks; else NaN.

    Counterparts share step, lane role, name, neighbour and occurrence; where there is none (rank 0 logs, and so has other
    neighbours), step, lane role and name; for a loader, which works ahead, lane role and name in any step. A gap that no
    peer has takes no time there.
    """
    roles = {role: number for number, role in enumerate(dict.fromkeys(lane.role for lane in dfg.lanes))}
    role = np.array([roles[lane.role] for lane in dfg.lanes] + [-1], np.int64)[dfg.lane]
    purpose = role * len(dfg.names) + dfg.name
    step = dfg.step.astype(np.int64) + 1
    identities = (step * (int(dfg.key.max()) + 1) + dfg.key, step * (int(purpose.max()) + 1) + purpose, purpose)
    allowed = (own, own & ~dfg.on("loader") & ~dfg.of(Cls.HOST_GAP), own & dfg.on("loader"))
    peers = np.full(dfg.nodes, np.nan)
    for rank in ranks:
        others = own & (dfg.rank != rank)
        for identity, mask in zip(identities, allowed, strict=True):
            todo = np.flatnonzero(mask & (dfg.rank == rank) & np.isnan(peers))
            medians, known = medians_of(identity[others], dfg.dur_ns[others], identity[todo])
            peers[todo[known]] = medians[known]
    peers[own & np.isnan(peers) & dfg.of(Cls.HOST_GAP)] = 0
    return peers
