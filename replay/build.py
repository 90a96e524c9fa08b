"""From a Run to its Dfg: match collectives, align clocks, build each rank's part, tie the ranks together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esprof.errors import InputError
from esprof.replay.builder import JOIN_LANE, GraphBuilder
from esprof.replay.collectives import Collective, align_clocks, match, with_arrivals
from esprof.replay.cpu import Busy, CpuThread
from esprof.replay.dfg import Cls, Dfg, Edge, StepMarks
from esprof.replay.gloo import add_gloo_work, link_issues
from esprof.replay.gpu import GpuWork, add_gpu_work, link_late_kernels, link_launches, link_stream_waits
from esprof.replay.loader import add_loader, link_requests
from esprof.replay.rank_events import RankEvents, by_thread, read_rank, step_borders
from esprof.trace.clocks import Offset
from esprof.trace.run import Run
from esprof.types import Rank


@dataclass(frozen=True)
class Built:
    """A Dfg with what was counted while it was built."""

    dfg: Dfg
    counts: Counter[str]
    offsets: dict[Rank, Offset]


def build(run: Run, steps: Sequence[int] | None = None) -> Dfg:
    """The global dataflow graph of `run` over `steps` (default: all that every rank recorded)."""
    return build_counted(run, steps).dfg


def common_steps(run: Run) -> list[int]:
    """The steps that every rank recorded, ascending; at most one unbroken stretch, the longest."""
    shared = sorted(set.intersection(*(set(step_borders(run, rank)) for rank in run.ranks)))
    stretches: list[list[int]] = []
    for step in shared:
        if stretches and step == stretches[-1][-1] + 1:
            stretches[-1].append(step)
        else:
            stretches.append([step])
    if not stretches:
        raise InputError(
            "its ranks have no recorded step in common",
            path=run.path,
            remedy="Record the same steps on all ranks, or name the trace of one rank.",
        )
    return max(stretches, key=len)


def build_counted(run: Run, steps: Sequence[int] | None = None) -> Built:
    """`build`, with coverage counts and clock offsets."""
    chosen = sorted(steps) if steps else common_steps(run)
    events = {rank: read_rank(run, rank, chosen) for rank in run.ranks}
    matched = match(run, events)
    offsets = align_clocks(run, events, matched)
    matched = with_arrivals(matched, events)
    builder = GraphBuilder()
    calls = [
        p2p for mine in events.values() for p2p, kind in zip(mine.p2p, mine.kind, strict=True) if kind == "collective"
    ]
    builder.counts["collectives"] = calls.count(False)
    builder.counts["p2p"] = calls.count(True)
    builder.counts["collectives_matched"] = sum(len(collective.rows) for collective in matched)
    joins = {c.number: _join(builder, c, events) for c in matched}
    parts = [_add_rank(builder, events[rank], matched, joins) for rank in run.ranks]
    link_late_kernels(builder, [gpu for gpu, _ in parts])
    marks = StepMarks(
        steps=tuple(chosen),
        ranks=tuple(run.ranks),
        first=np.array([[borders[step][0] for _, borders in parts] for step in chosen]),
        last=np.array([[borders[step][1] for _, borders in parts] for step in chosen]),
    )
    return Built(builder.compile(marks), builder.counts, offsets)


def _join(builder: GraphBuilder, collective: Collective, events: dict[Rank, RankEvents]) -> int:
    rank, row = next(iter(collective.rows.items()))
    name, step = events[rank].name[row], events[rank].step[row]
    return builder.add(
        JOIN_LANE, f"{name} (join)", Cls.WAIT, collective.arrival, 0, step=step, collective=collective.number
    )


def _add_rank(
    builder: GraphBuilder, events: RankEvents, matched: list[Collective], joins: dict[int, int]
) -> tuple[GpuWork, dict[int, tuple[int, int]]]:
    """Add one rank; returns its GPU work, and per step the nodes at which it begins and ends."""
    mine = {c.rows[events.rank]: c for c in matched if events.rank in c.rows}
    gpu = add_gpu_work(builder, events, mine, joins)
    gloo = add_gloo_work(builder, events, mine, joins)
    loader = add_loader(builder, events)
    rows = by_thread(events)
    roles = {tid: events.role[mine[0]] or "other" for tid, mine in rows.items()}
    main = _main_thread(events.rank, rows, roles)
    busy = {tid: Busy(events, mine) for tid, mine in rows.items()}
    backward = next((tid for tid, role in roles.items() if role == "autograd" and tid != main), None)
    partner = {main: backward, backward: main}
    threads: list[CpuThread] = []
    for tid, mine_rows in rows.items():
        other = partner.get(tid)
        thread = CpuThread(
            builder=builder,
            events=events,
            gpu=gpu,
            gloo=gloo,
            loader=loader,
            lane=builder.add_lane(events.rank, "cpu", roles[tid]),
            tid=tid,
            is_main=tid == main,
            computes=not events.gpu_rows,
            partner=busy[other] if other is not None else None,
        )
        thread.build(mine_rows)
        threads.append(thread)
    lane_of = {thread.tid: thread.lane for thread in threads}
    _link_handovers(builder, threads, partner, lane_of)
    link_launches(builder, gpu, lane_of)
    link_stream_waits(builder, gpu)
    link_issues(builder, gloo, lane_of)
    link_requests(builder, loader)
    launching = sum(events.kind[row] == "runtime" and _launches(events.name[row]) for row in range(len(events.kind)))
    builder.counts["launches_without_kernel"] += max(0, launching - len(gpu.by_launch))
    return gpu, _borders(builder, next(t for t in threads if t.is_main), events)


def _main_thread(rank: Rank, rows: dict[int, list[int]], roles: dict[int, str]) -> int:
    named = [tid for tid, role in roles.items() if role == "main"]
    if named:
        return named[0]
    if not rows:
        raise InputError(
            f"rank {rank} holds no CPU operation in these steps", remedy="Record with ProfilerActivity.CPU."
        )
    return max(rows, key=lambda tid: len(rows[tid]))


def _launches(name: str) -> bool:
    return "LaunchKernel" in name or "GraphLaunch" in name


def _link_handovers(
    builder: GraphBuilder, threads: list[CpuThread], partner: dict[int | None, int | None], lane_of: dict[int, int]
) -> None:
    for thread in threads:
        other = partner.get(thread.tid)
        for moment, node in thread.handovers:
            source = builder.ending_by(lane_of[other], moment) if other is not None and other in lane_of else None
            if source is not None:
                builder.link(source, node, Edge.THREAD)


def _borders(builder: GraphBuilder, main: CpuThread, events: RankEvents) -> dict[int, tuple[int, int]]:
    """Step -> (node at its start, node at its end); where a border fell inside a call, the node before it."""
    found = {}
    for step, span in events.steps.items():
        nodes = [main.borders.get(moment, builder.ending_by(main.lane, moment)) for moment in span]
        first, last = (node if node is not None else builder.members[main.lane][0] for node in nodes)
        found[step] = (first, last)
    return found
