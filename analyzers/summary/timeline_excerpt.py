"""An excerpt of the timeline: bars of the last steady-state steps, the critical path in them, and who waits for whom."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from esprof.analyzers.summary.drawn_ranks import drawn_ranks
from esprof.analyzers.views.batch_waits import UNKNOWN
from esprof.analyzers.views.batch_waits import waits as batch_waits
from esprof.analyzers.views.breakdown import stalls
from esprof.core.types import Ns, Rank, us
from esprof.replay.dfg import Cls, Dfg
from esprof.replay.engine.timeline import Timeline
from esprof.replay.replayed import Replayed
from esprof.replay.skeleton.large import LargeReplay
from esprof.run.collective_names import collective_word

MAX_BARS = 3_000
MAX_STEPS_DRAWN = 2
MAX_BARS_ACROSS = 2_000
"""A bar shorter than 1/MAX_BARS_ACROSS of the excerpt is too thin to see; it is merged with its neighbour of the same
class."""
MAX_PIECES = 500
"""Most pieces of the critical path."""
MAX_ARROWS = 240
"""Most waits with an arrow from the rank that they are for; those of the longest waits."""
WAITS = "waits"
"""Name of the lane that shows what a rank waits for."""


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One interval of one lane in the timeline; `cls` is a critical-path class (`compute`, `wait`, …)."""

    rank: Rank
    lane: str
    start_us: float
    dur_us: float
    name: str
    cls: str
    cause: str = ""
    """What a wait is for: `rank 3 arrived last`; empty where nothing is waited for, or it is unknown."""


class Arrow(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a rank's wait at a collective: `late`, the last rank to arrive, ends it."""

    name: str
    at_us: float
    late: Rank
    late_lane: str
    rank: Rank
    waited_us: float


class Excerpt(msgspec.Struct, frozen=True, kw_only=True):
    """A bounded excerpt of the timeline: at most a few thousand bars of one or two steps, short ones merged."""

    steps: tuple[int, ...]
    span_us: float
    ranks: tuple[Rank, ...]
    """Ranks that are drawn (`drawn_ranks`); of a large run those whose graphs were built."""
    of_ranks: int
    """Number of ranks of the run."""
    bars: tuple[Bar, ...]
    path: tuple[Bar, ...]
    """The critical path, in order: each piece begins where the one before it ends. Only its stretches on `ranks`."""
    arrows: tuple[Arrow, ...]
    shown: int
    total: int
    """Nodes of `ranks` in these steps; merging neighbours and leaving out the shortest gives `shown` bars."""


@dataclass(frozen=True)
class _Window:
    """What is drawn, in ns since the graph's `t0_ns`."""

    begin: Ns
    finish: Ns

    @property
    def finest(self) -> float:
        """The shortest duration that can be seen."""
        return (self.finish - self.begin) / MAX_BARS_ACROSS

    def bar(self, rank: Rank, lane: str, start: Ns, end: Ns, name: str, cls: str, cause: str = "") -> Bar:
        start, end = max(start, self.begin), min(end, self.finish)
        return Bar(
            rank=rank,
            lane=lane,
            start_us=us(start - self.begin),
            dur_us=us(end - start),
            name=name,
            cls=cls,
            cause=cause,
        )

    def holds(self, start: Ns, end: Ns) -> bool:
        return start < end and end > self.begin and start < self.finish


def excerpt(replayed: Replayed) -> Excerpt:
    """The last steady-state steps as bars, one row for each lane of the drawn ranks. At most `MAX_BARS`; the rest is only
    counted."""
    timeline, dfg = replayed.timeline, replayed.built.dfg
    last = int(replayed.pricer.steady_at[-1])
    first = last - 1 if last - 1 in replayed.pricer.steady_at and MAX_STEPS_DRAWN > 1 else last
    window = _Window(
        int(timeline.end_ns[dfg.marks.first[first]].min()), int(timeline.end_ns[dfg.marks.last[last]].max())
    )
    ranks = drawn_ranks(replayed)
    inside = (timeline.end_ns > window.begin) & (timeline.start_ns < window.finish) & (dfg.dur_ns > 0)
    inside &= np.isin(dfg.rank, ranks)
    meetings = _Meetings.of(timeline)
    bars = list(_work(timeline, window, inside, ranks))
    for rank in ranks:
        bars += _waits(replayed, window, rank, meetings)
    longest = sorted(range(len(bars)), key=lambda n: (-bars[n].dur_us, n))[:MAX_BARS]
    drawn = [bars[n] for n in sorted(longest)]
    return Excerpt(
        steps=tuple(dfg.marks.steps[first : last + 1]),
        span_us=us(window.finish - window.begin),
        ranks=ranks,
        of_ranks=len(replayed.pricer.dfg.marks.ranks),
        bars=tuple(sorted(drawn, key=lambda bar: bar.rank)),
        # The nodes of a large run's path are those of graphs that are not kept.
        path=() if isinstance(replayed, LargeReplay) else tuple(_path(replayed, window, ranks)),
        arrows=tuple(_arrows(window, ranks, meetings)),
        shown=len(drawn),
        total=int(inside.sum()),
    )


def _work(timeline: Timeline, window: _Window, inside: np.ndarray, ranks: tuple[Rank, ...]) -> Iterator[Bar]:
    dfg = timeline.dfg
    for number, lane in enumerate(dfg.lanes):
        if lane.rank not in ranks:
            continue
        nodes = np.flatnonzero(inside & (dfg.lane == number)).tolist()
        spans = [
            (int(timeline.start_ns[n]), int(timeline.end_ns[n]), dfg.label(n), Cls(dfg.cls[n]).label) for n in nodes
        ]
        for start, end, name, cls in _merged(spans, window.finest):
            yield window.bar(lane.rank, lane.role, start, end, name, cls)


@dataclass(frozen=True)
class _Meetings:
    """The matched collectives, an entry for each of their ranks, by collective."""

    dfg: Dfg
    rank: np.ndarray
    node: np.ndarray
    """The communication on the rank, int64[entries]."""
    arrived_ns: np.ndarray
    begun_ns: np.ndarray
    """When the last of its ranks had arrived."""
    late: np.ndarray
    """Entry of the last rank to arrive, int64[entries]."""

    @classmethod
    def of(cls, timeline: Timeline) -> "_Meetings":
        dfg = timeline.dfg
        matched = (dfg.collective >= 0) & (dfg.rank >= 0)
        arrive, communicate = (np.flatnonzero(matched & dfg.of(of)) for of in (Cls.WAIT, Cls.COMMUNICATION))
        # A rank takes part in a collective once.
        arrive, communicate = (
            nodes[np.lexsort((dfg.rank[nodes], dfg.collective[nodes]))] for nodes in (arrive, communicate)
        )
        number, arrived = dfg.collective[communicate], timeline.end_ns[arrive]
        in_order = np.lexsort((arrived, number))
        late = in_order[np.searchsorted(number, number, side="right") - 1]
        return cls(dfg, dfg.rank[communicate], communicate, arrived, timeline.start_ns[communicate], late)

    def name(self, entry: int) -> str:
        return _name(self.dfg, int(self.node[entry]))

    def lane(self, entry: int) -> str:
        return self.dfg.lanes[int(self.dfg.lane[self.node[entry]])].role


def _waits(replayed: Replayed, window: _Window, rank: Rank, meetings: _Meetings) -> Iterator[Bar]:
    """What a rank waits for: peers at collectives, and batches."""
    for entry in np.flatnonzero(meetings.rank == rank).tolist():
        start, end = int(meetings.arrived_ns[entry]), int(meetings.begun_ns[entry])
        if window.holds(start, end):
            late = int(meetings.rank[meetings.late[entry]])
            cause = f"rank {late} arrived last" if late != rank else ""
            yield window.bar(rank, WAITS, start, end, f"wait for peers at {meetings.name(entry)}", "wait", cause)
    spans = [(start, end) for start, end in stalls(replayed.timeline, rank).tolist() if window.holds(start, end)]
    cause = _cause_of_stalls(replayed, rank) if spans else ""
    for start, end in spans:
        yield window.bar(rank, WAITS, start, end, "wait for data", "data", cause)


def _cause_of_stalls(replayed: Replayed, rank: Rank) -> str:
    """What the rank waits for most in its waits for batches: `the loader: on a CPU, 82 % of the waits`."""
    found = batch_waits(replayed.run, rank, replayed.steps.steady)
    kind, took = next(iter(found.by_kind.items()), (UNKNOWN, 0.0))
    return "" if kind == UNKNOWN else f"the loader: {kind}, {100 * took / found.total_ns:.0f} % of the waits"


def _arrows(window: _Window, ranks: tuple[Rank, ...], meetings: _Meetings) -> Iterator[Arrow]:
    """The longest waits for a drawn rank, in order of time."""
    waited = meetings.begun_ns - meetings.arrived_ns
    late_rank = meetings.rank[meetings.late]
    drawn = np.isin(meetings.rank, ranks) & np.isin(late_rank, ranks) & (late_rank != meetings.rank)
    drawn &= (waited > window.finest) & (meetings.begun_ns > window.begin) & (meetings.begun_ns < window.finish)
    longest = sorted(np.flatnonzero(drawn).tolist(), key=lambda entry: -int(waited[entry]))[:MAX_ARROWS]
    for entry in sorted(longest, key=lambda entry: int(meetings.begun_ns[entry])):
        late = int(meetings.late[entry])
        yield Arrow(
            name=meetings.name(entry),
            at_us=us(int(meetings.begun_ns[entry]) - window.begin),
            late=int(meetings.rank[late]),
            late_lane=meetings.lane(late),
            rank=int(meetings.rank[entry]),
            waited_us=us(int(waited[entry])),
        )


def _path(replayed: Replayed, window: _Window, ranks: tuple[Rank, ...]) -> Iterator[Bar]:
    """The critical path inside the window. Pieces too thin to see continue the one before."""
    dfg = replayed.built.dfg
    latest: dict[Rank, str] = {}
    pieces: list[Bar] = []
    for piece in replayed.path:
        if not window.holds(piece.start_ns, piece.end_ns):
            continue
        lane = int(dfg.lane[piece.node])
        # The join of a collective has no lane: the path stays where the rank of the piece was last.
        role = dfg.lanes[lane].role if lane >= 0 else latest.get(piece.rank, dfg.lanes[dfg.main_lane(piece.rank)].role)
        latest[piece.rank] = role
        name = _name(dfg, piece.node)
        pieces.append(window.bar(piece.rank, role, piece.start_ns, piece.end_ns, name, piece.cls.label))
    finest = us(round(window.finest))
    joined = _joined(pieces, finest)
    while len(joined) > MAX_PIECES:
        finest *= 2
        joined = _joined(joined, finest)
    yield from (piece for piece in joined if piece.rank in ranks)


def _name(dfg: Dfg, node: int) -> str:
    """The name of a node, as that of its collective where it is part of one."""
    label = dfg.label(node)
    return (collective_word(label) or label) if dfg.collective[node] >= 0 else label


def _joined(pieces: list[Bar], finest: float) -> list[Bar]:
    """Pieces of the path: one that is shorter than `finest`, or continues the same work, lengthens the one before it."""
    found: list[Bar] = []
    for piece in pieces:
        before = found[-1] if found else None
        same = before is not None and (before.rank, before.lane, before.cls) == (piece.rank, piece.lane, piece.cls)
        if before is not None and (piece.dur_us < finest or (same and before.dur_us < finest)):
            longer = before if before.dur_us >= piece.dur_us else piece
            found[-1] = msgspec.structs.replace(before, dur_us=before.dur_us + piece.dur_us, name=longer.name)
        else:
            found.append(piece)
    return found


def _merged(spans: list[tuple[Ns, Ns, str, str]], finest: float) -> list[tuple[Ns, Ns, str, str]]:
    """Merge neighbours of the same class if either is too thin to see; the name of a merged bar has their number."""
    found: list[tuple[Ns, Ns, str, str]] = []
    more: list[int] = []  # Number of further spans that each of `found` represents.
    for start, end, name, cls in sorted(spans):
        if found:
            begin, until, first, before = found[-1]
            thin = end - start < finest or until - begin < finest
            if before == cls and start - until < finest and thin:
                found[-1] = (begin, end, first, cls)
                more[-1] += 1
                continue
        found.append((start, end, name, cls))
        more.append(0)
    return [
        (start, end, f"{name} (+{others} more)" if others else name, cls)
        for (start, end, name, cls), others in zip(found, more, strict=True)
    ]
