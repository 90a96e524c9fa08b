"""Runs of elastic jobs, by hand: as `ElasticTrainer(telemetry=RUN)` writes them. Times are microseconds."""

from collections.abc import Sequence

import msgspec

from esprof.run.groups import Group, group_name
from esprof.run.run import Exchange, RankMeta, Run, RunMeta, Window
from esprof.run.schema import EVENTS, STEPS, Table, table

EPOCH_NS = 1_700_000_000_000_000_000
NS = 1_000
ISSUE = 1


def elastic_run(
    ests: Sequence[Sequence[int]],
    est: Sequence[int],
    last: Sequence[int] | None = None,
    *,
    update: int = 10,
    communication: int = 50,
    steps: int = 8,
    devices: Sequence[str] = (),
    records_ests: bool = True,
    exchanges: Sequence[Exchange] = (),
) -> Run:
    """An elastic job, times in µs. Each rank runs its ESTs one after the other, `est` each and `last` for its last one; then
    all ranks communicate and update. Without `records_ests`, the run has no records of ESTs."""
    last = last or est
    world = len(ests)
    rows: list[list[dict]] = [[] for _ in ests]
    marks: list[list[tuple[int, int]]] = [[] for _ in ests]
    begin = 0
    for number in range(steps):
        ready = []
        for rank, mine in enumerate(ests):
            at = begin
            for one in mine:
                took = last[rank] if one == mine[-1] else est[rank]
                for name, dur in (("forward", took // 3), ("backward", took - took // 3)):
                    rows[rank].append(row(name, "op", at, dur, number, est=one if records_ests else None))
                    at += dur
            rows[rank].append(
                row("c10d::alltoall_base_", "op", at, ISSUE, number, est=mine[-1] if mine and records_ests else None)
            )
            ready.append(at + ISSUE)
        done = max(ready) + communication
        for rank in range(world):
            about = {"collective": "all_to_all", "coll_seq": number, "group": group_name(range(world)), "is_p2p": False}
            sent = {"in_bytes": 1 << 20, "out_bytes": 1 << 20, "dtype": "float32"}
            own = ready[rank] - ISSUE
            rows[rank].append(row("gloo:all_to_all", "collective", own, done - own, number, comm=True, **about, **sent))
            rows[rank].append(row("reduce", "op", done, ISSUE, number))
            rows[rank].append(row("optimizer", "op", done + ISSUE, update - ISSUE, number))
            rows[rank].append(row(f"ProfilerStep#{number}", "step", begin, done + update - begin, number))
            marks[rank].append((begin, done + update - begin))
        begin = done + update
    tables = {("events", rank): event_table(found) for rank, found in enumerate(rows)}
    tables |= {("steps", rank): step_table(found) for rank, found in enumerate(marks)}
    meta_of_run = msgspec.structs.replace(meta(world, steps, devices), exchanges=tuple(exchanges))
    return Run(meta_of_run, lambda name, rank: tables.get((name, rank)))


def exchange(ests: Sequence[Sequence[int]], us: int, codec: str = "none", vnmse: float = 0.0) -> Exchange:
    """One that the job has measured."""
    return Exchange(ests=tuple(map(tuple, ests)), codec=codec, samples_ns=(us * NS,) * 3, sent=1, vnmse=vnmse)


def row(name: str, kind: str, start: int, dur: int, step: int, *, comm: bool = False, **columns: object) -> dict:
    role = {"thread_role": "comm", "tid": 0} if comm else {"thread_role": "main", "tid": 1}
    return {
        "name": name,
        "kind": kind,
        "start_ns": EPOCH_NS + start * NS,
        "dur_ns": dur * NS,
        "step": step,
        "pid": 100,
        **role,
        **columns,
    }


def event_table(rows: list[dict]) -> Table:
    found = sorted(rows, key=lambda one: (one["start_ns"], -one["dur_ns"]))
    names = {name for one in found for name in one}
    return table({name: [one.get(name) for one in found] for name in names}, EVENTS)


def step_table(marks: Sequence[tuple[int, int]]) -> Table:
    starts = [EPOCH_NS + start * NS for start, _ in marks]
    durations = [dur * NS for _, dur in marks]
    columns = {"step": list(range(len(marks))), "start_ns": starts, "dur_ns": durations}
    return table(columns | {"phase": ["timed"] * len(marks), "samples": [4] * len(marks)}, STEPS)


def meta(world: int, steps: int, devices: Sequence[str]) -> RunMeta:
    named = [*devices, *["CPU"] * (world - len(devices))]
    ranks = tuple(
        RankMeta(rank=rank, host="node0", device=named[rank], pid=100, windows=(Window(first=0, last=steps - 1),))
        for rank in range(world)
    )
    group = Group(name=group_name(range(world)), ranks=tuple(range(world)), backend="gloo", description="elastic")
    return RunMeta(world_size=world, ranks=ranks, groups=(group,))
