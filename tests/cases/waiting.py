"""Tiny jobs whose steps wait for a DataLoader, by the rules of PyTorch's DataLoader, with what the recorder notes of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from esprof.analyzers.finding import Finding
from esprof.replay.replayed import Replayed
from esprof.run.run import Run
from tests.cases.findings import ungrouped
from tests.cases.graph import EPOCH_NS, Row, load_call, op, run_of, stage, step
from tests.cases.step_runs import step_table

MS = 1_000_000

STORED_BYTES = 1_000_000
"""Bytes that a batch asks for."""


def waiting_rank(
    took_ms: Sequence[float],
    *,
    workers: int = 1,
    prefetch: int = 2,
    step_ms: float = 20,
    ran: float = 0.1,
    starved: float = 0,
    parts: Mapping[str, tuple[float, float]] | None = None,
    passed_ms: float = 0,
    is_pinned: bool = False,
    missed: Sequence[float] = (),
    of_pass: int = 1000,
    start_up_ms: float = 0,
    in_order: bool | None = True,
) -> tuple[list[Row], list[dict[str, Any]], list[float]]:
    """Events, stages, and durations of the steps in ms, of a rank whose steps take `step_ms` without waiting.

    Batch k takes `took_ms[k]` to make, of which the shares `ran` and `starved` are on a CPU and waiting for one; `parts`
    gives the share that a part takes, and that it runs. It is there `passed_ms` later. `missed[k]` is the share of its bytes
    that came from storage; without it no reads were counted. A pass has `of_pass` batches, and begins with the start of
    workers, which takes `start_up_ms`.
    """
    rows, stages, lengths, at, done = [], [], [], [], []
    begin = 0.0
    for k, took in enumerate(took_ms):
        free = done[k - workers] if workers and k >= workers else 0.0
        asked = at[k - workers * prefetch] if workers and k >= workers * prefetch else 0.0
        start = max(free, asked, begin + start_up_ms if k and k % of_pass == 0 else 0.0) if workers else begin
        done.append(start + took)
        at.append(max(begin, done[k] + (passed_ms if workers else 0)))
        end = at[k] + step_ms
        rows += [
            step(k, begin * 1000, end * 1000),
            load_call(begin * 1000, at[k] * 1000, worker=workers > 0),
            op("forward", at[k] * 1000 + 1, step_ms * 1000 - 2),
        ]
        lengths.append(end - begin)
        noted = dict.fromkeys(("name", "took_ns", "ready_ns", "read_bytes", "read_chars", "cpu_ns"))
        noted |= {"loader": k // of_pass, "workers": workers, "in_order": in_order, "batches": of_pass}
        counted = {"cpu_ns": round(ran * took * MS), "ready_ns": round(starved * took * MS)}
        if missed:
            counted |= {"read_chars": STORED_BYTES, "read_bytes": round(missed[k] * STORED_BYTES)}
        taken = stage("next", k % of_pass, begin * 1000, at[k] * 1000, worker=k % max(1, workers), prefetch=prefetch)
        made = stage("fetch", k % of_pass, start * 1000, done[k] * 1000, worker=k % max(1, workers), prefetch=prefetch)
        taken, made = taken | noted, made | noted | counted
        stages += [taken, made] if workers else [taken | counted | {"worker": None}]
        stages += [
            made | {"kind": "part", "name": name, "took_ns": round(of * took * MS), "cpu_ns": round(on_cpu * took * MS)}
            for name, (of, on_cpu) in (parts or {}).items()
        ]
        if is_pinned:
            pinned = {"kind": "pin", "name": "pinning", "loader": None, "batch": None, "worker": None}
            stages.append(made | pinned | {"start_ns": made["end_ns"], "end_ns": taken["end_ns"]})
        begin = end
    return rows, stages, lengths


def waiting_job(
    *ranks: tuple[list[Row], list[dict[str, Any]], list[float]],
    hosts: dict[int, Any] | None = None,
    cpus: dict[int, tuple[int, ...]] | None = None,
    ready_ms: float = 0,
) -> Run:
    """A job of these ranks, which do not communicate. By default they are on one host. Their training threads wait for a CPU
    for `ready_ms` in each step."""
    return run_of(
        {rank: rows for rank, (rows, _, _) in enumerate(ranks)},
        stages={rank: stages for rank, (_, stages, _) in enumerate(ranks)},
        steps={
            rank: step_table(
                lengths, start_ns=EPOCH_NS, phase="timed", first=0, ready_ns=[round(ready_ms * MS)] * len(lengths)
            )
            for rank, (_, _, lengths) in enumerate(ranks)
        },
        hosts=hosts,
        cpus=cpus,
    )


def input_findings(run: Run) -> list[Finding]:
    """The findings on input data, ESP1xx."""
    replayed = Replayed.of(run, max_error_pct=1000)
    return [one for one in ungrouped(replayed) if one.id.startswith("ESP1")]
