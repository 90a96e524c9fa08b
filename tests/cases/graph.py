"""Tiny runs written by hand, in microseconds, for tests of the graph builder and of code that reads its graphs; and
queries of these tests on graphs."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from esprof.replay.building.build import build
from esprof.replay.dfg import Dfg, Edge
from esprof.replay.whatif.pricing import what_if
from esprof.run.groups import Group, group_name
from esprof.run.kineto.columns import event_table
from esprof.run.kineto.lenient import Misfits
from esprof.run.kineto.rows import TraceRows
from esprof.run.kineto.scan import scan
from esprof.run.run import RankMeta, Run, RunMeta, Window
from esprof.run.schema import STACKS, STAGES, StageKind, Table, table

EPOCH_NS = 1_700_000_000_000_000_000
MAIN, BACKWARD, GLOO = 1, 2, 9


class Args(msgspec.Struct, omit_defaults=True):
    """Arguments of a row, with the keys of a trace."""

    correlation: int | None = None
    device: int | None = None
    stream: int | None = None
    dims: msgspec.Raw | None = msgspec.field(name="Input Dims", default=None)
    types: msgspec.Raw | None = msgspec.field(name="Input type", default=None)
    collective: str | None = msgspec.field(name="Collective name", default=None)
    in_elements: int | None = msgspec.field(name="In msg nelems", default=None)
    dtype: str | None = None
    group_ranks: list[int] | str | None = msgspec.field(name="Process Group Ranks", default=None)
    sequence_in_group: int | None = msgspec.field(name="Seq", default=None)
    source_rank: int | None = msgspec.field(name="Src Rank", default=None)
    target_rank: int | None = msgspec.field(name="Dst Rank", default=None)
    wait_stream: int | None = msgspec.field(name="wait_on_stream", default=None)
    wait_correlation: int | None = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=None)
    sequence: int | None = msgspec.field(name="Sequence number", default=None)
    forward_thread: int | None = msgspec.field(name="Fwd thread id", default=None)


class Row(msgspec.Struct, omit_defaults=True):
    """One complete event. Times are microseconds."""

    ts: float
    dur: float
    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | None = None
    tid: int | None = None
    args: Args | None = None


def op(name: str, start: float, dur: float, tid: int = MAIN) -> Row:
    return Row(ph="X", cat="cpu_op", name=name, pid=100, tid=tid, ts=start, dur=dur)


def numbered(name: str, start: float, dur: float, sequence: int, forward_thread: int = 0) -> Row:
    """An operation with autograd's sequence number; a backward operation names the thread of its forward operation."""
    return msgspec.structs.replace(op(name, start, dur), args=Args(sequence=sequence, forward_thread=forward_thread))


def python(name: str, start: float, dur: float) -> Row:
    """A frame on the main thread, or the forward of a module (`nn.Module: MLP_3`), as torch.profiler records them."""
    return Row(ph="X", cat="python_function", name=name, pid=100, tid=MAIN, ts=start, dur=dur)


def step(number: int, start: float, end: float) -> Row:
    return Row(
        ph="X", cat="user_annotation", name=f"ProfilerStep#{number}", pid=100, tid=MAIN, ts=start, dur=end - start
    )


def call(name: str, start: float, dur: float, correlation: int = 0, tid: int = MAIN) -> Row:
    args = Args(correlation=correlation)
    return Row(ph="X", cat="cuda_runtime", name=name, pid=100, tid=tid, ts=start, dur=dur, args=args)


def kernel(name: str, start: float, dur: float, correlation: int, stream: int = 7, **args: Any) -> Row:
    arguments = Args(correlation=correlation, stream=stream, device=0, **args)
    return Row(ph="X", cat="kernel", name=name, pid=0, tid=stream, ts=start, dur=dur, args=arguments)


def launched(name: str, at: float, start: float, dur: float, correlation: int, stream: int = 7) -> list[Row]:
    """A launch of 5 µs at `at`, and its kernel."""
    return [call("cudaLaunchKernel", at, 5, correlation), kernel(name, start, dur, correlation, stream)]


def gloo(launched: float, start: float, end: float, tid: int = GLOO) -> list[Row]:
    """An all-reduce of 4,000 bytes: the call on the main thread, 5 µs long, and the communication."""
    shape = msgspec.Raw(b"[[1000]]")
    call_row = Row(
        ph="X", cat="cpu_op", name="c10d::allreduce_", pid=100, tid=MAIN, ts=launched, dur=5,
        args=Args(dims=msgspec.Raw(b"[[[1000]]]"), types=msgspec.Raw(b'["TensorList"]')),
    )  # fmt: skip
    communication = Row(
        ph="X", cat="user_annotation", name="gloo:all_reduce", pid=100, tid=tid, ts=start, dur=end - start,
        args=Args(dims=shape, types=msgspec.Raw(b'["float"]')),
    )  # fmt: skip
    return [call_row, communication]


def load_call(start: float, end: float, worker: bool = True) -> Row:
    kind = "MultiProcessing" if worker else "SingleProcess"
    return Row(
        ph="X", cat="user_annotation", name=f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__",
        pid=100, tid=MAIN, ts=start, dur=end - start,
    )  # fmt: skip


def stage(kind: StageKind, batch: int, start: float, end: float, worker: int = 0, prefetch: int = 2) -> dict[str, Any]:
    return {
        "kind": kind, "loader": 0, "batch": batch, "worker": worker, "pid": 500 + worker,
        "start_ns": EPOCH_NS + round(start * 1000), "end_ns": EPOCH_NS + round(end * 1000),
        "samples": 8, "workers": 1, "prefetch": prefetch,
    }  # fmt: skip


def events_of(rows: Sequence[Row], groups: dict[str, Group]) -> Table:
    starts = np.array([EPOCH_NS + round(row.ts * 1000) for row in rows], np.int64)
    durations = np.array([round(row.dur * 1000) for row in rows], np.int64)
    scanned = scan(bytearray(msgspec.json.encode(list(rows))), 1 << 30)
    return event_table(TraceRows(scanned, Misfits()), (starts, durations), groups)[0]


def columns_of(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row.get(name) for row in rows] for name in rows[0]} if rows else {}


def run_of(
    ranks: dict[int, Sequence[Row]],
    *,
    world: int | None = None,
    stages: dict[int, Sequence[dict[str, Any]]] | None = None,
    stacks: dict[int, Sequence[dict[str, Any]]] | None = None,
    steps: dict[int, Table] | None = None,
    accesses: dict[int, Table] | None = None,
    hosts: dict[int, str] | None = None,
    cpus: dict[int, tuple[int, ...]] | None = None,
    quotas: dict[int, float] | None = None,
    subgroups: Sequence[tuple[int, ...]] = (),
    windows: tuple[Window, ...] = (),
) -> Run:
    """A Run of these rows, by rank. By default all ranks are on one host (`hosts`). They are in one process group, and in
    `subgroups`."""
    world = world or len(ranks)
    everybody = [tuple(range(world)), *subgroups] if world > 1 else []
    groups = {str(number): Group(name=group_name(some), ranks=some) for number, some in enumerate(everybody)}
    tables: dict[tuple[str, int], Table] = {}
    for rank, rows in ranks.items():
        tables["events", rank] = events_of(rows, groups)
        if stages and rank in stages:
            tables["stages", rank] = table(columns_of(stages[rank]), STAGES)
        if stacks and rank in stacks:
            tables["stacks", rank] = table(columns_of(stacks[rank]), STACKS)
        if steps and rank in steps:
            tables["steps", rank] = steps[rank]
        if accesses and rank in accesses:
            tables["accesses", rank] = accesses[rank]
    host = hosts or {}
    meta = RunMeta(
        world_size=world,
        ranks=tuple(
            RankMeta(
                rank=rank,
                host=host.get(rank, "here"),
                device="CPU",
                events=len(ranks[rank]),
                windows=windows,
                cpus=(cpus or {}).get(rank, ()),
                cpu_quota=(quotas or {}).get(rank),
            )
            for rank in sorted(ranks)
        ),
        groups=tuple(groups.values()),
    )
    return Run(meta, lambda name, rank: tables.get((name, rank)))


def ddp_rank(slow: float = 0.0, begin: float = 0.0) -> list:
    """Forward 10 ms (and `slow` ms of nothing recorded), backward 20 ms, all-reduce, optimizer 5 ms.

    Both ranks issue the all-reduce at the end of the backward; it takes 4 ms from the last arrival, at 40 ms.
    """
    ms = 1000.0
    arrive = begin + (30 + slow) * ms
    return [
        step(1, begin, 50 * ms),
        op("aten::linear", begin, 10 * ms),
        op("autograd::engine::evaluate_function: AddmmBackward0", begin + (10 + slow) * ms, 20 * ms),
        *gloo(arrive - 5, arrive, 44 * ms),
        op("Optimizer.step", 45 * ms, 5 * ms),
    ]


def nccl(at: float, start: float, end: float, correlation: int, **args: Any) -> list[Row]:
    return [
        call("cudaLaunchKernelExC", at, 5, correlation),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", start, end - start, correlation, stream=20, **args),
    ]


def nccl_ranks(late: float = 300.0) -> dict[int, list[Row]]:
    """An all-reduce at which rank 1 arrives `late` µs after rank 0; it takes 50 µs from then. Both wait for it."""
    end = 110 + late + 50
    return {
        rank: [
            step(1, 0, end + 200),
            op("aten::mm", 0, 90 + rank * late),
            *nccl(90 + rank * late, 110 + rank * late, end, 1),
            call("cudaStreamSynchronize", 100 + rank * late, end + 10 - 100 - rank * late, 2),
            op("aten::item", end + 10, 190),
        ]
        for rank in (0, 1)
    }


def nodes_of(dfg: Dfg, name: str, rank: int = 0) -> list[int]:
    """The nodes of this name, in order of time."""
    found = [n for n in range(dfg.nodes) if dfg.rank[n] == rank and dfg.label(n) == name]
    return sorted(found, key=lambda n: int(dfg.recorded_ns[n]))


def node(dfg: Dfg, name: str, rank: int = 0) -> int:
    """The only node of this name."""
    found = nodes_of(dfg, name, rank)
    assert len(found) == 1, (name, [dfg.label(n) for n in range(dfg.nodes)])
    return found[0]


def reasons(dfg: Dfg, target: int) -> dict[str, Edge]:
    """Predecessors of a node, by name."""
    edges = range(dfg.pred_ptr[target], dfg.pred_ptr[target + 1])
    return {dfg.label(int(dfg.pred_idx[e])): Edge(dfg.pred_kind[e]) for e in edges}


def predicted(rows: Sequence[Row], *specs: str) -> list[float]:
    """Mean step of a job of one rank under each scenario, µs."""
    run = run_of({0: rows})
    answers = what_if(run, build(run), specs)
    assert all(answer.answered for answer in answers), answers
    return [answer.predicted_us or 0.0 for answer in answers]
