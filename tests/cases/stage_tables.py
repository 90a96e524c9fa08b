"""Tables with the columns of ByteDance's public straggler traces (StragglerAnalysis): times in seconds, ranks by
data-parallel rank and pipeline stage, no process groups."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SINCE_S = 1_700_000_000.0
FORWARD_S, BACKWARD_S, TRANSFER_S, REDUCE_S, UPDATE_S = 0.001, 0.002, 0.0005, 0.002, 0.001

Rows = list[dict[str, Any]]


def rows_of_stages(
    data: int = 2,
    stages: int = 2,
    batches: int = 4,
    steps: Sequence[int] = tuple(range(8)),
    slow: Mapping[tuple[int, int], float] | None = None,
) -> Rows:
    """A job of `data` × `stages` ranks: one forward, one backward (1F1B) over micro-batches, then each stage reduces its
    gradients and updates its parameters. A second lies between steps for each number that is left out.

    `slow` gives ranks, by (data-parallel rank, stage), whose computations take so many times as long.
    """
    rows: Rows = []
    now = SINCE_S
    for index, step in enumerate(steps):
        now += step - steps[index - 1] - 1 if index else 0
        free: dict[tuple[int, int], float] = {}
        for dp in range(data):
            times = [(slow or {}).get((dp, stage), 1.0) for stage in range(stages)]
            for stage, optype, start, end in _pipeline(now, batches, times):
                rows.append(_row(dp, stage, stage * data + dp, step, optype, start, end))
                free[dp, stage] = max(free.get((dp, stage), 0.0), end)
        for stage in range(stages):
            done = max(free[dp, stage] for dp in range(data)) + REDUCE_S
            for dp in range(data):
                rank = stage * data + dp
                rows.append(_row(dp, stage, rank, step, "grads-reduce-scatter", free[dp, stage], done))
                rows.append(_row(dp, stage, rank, step, "optimizer", done, done + UPDATE_S))
                free[dp, stage] = done + UPDATE_S
        now = max(free.values())
    return rows


def _row(dp: int, stage: int, rank: int, step: int, optype: str, start: float, end: float) -> dict[str, Any]:
    where = {"dp_rank": dp, "stage": stage, "rank": rank, "step": step}
    return where | {"optype": optype, "start_ts": start, "duration": end - start}


def _pipeline(begin: float, batches: int, times: Sequence[float]) -> Iterator[tuple[int, str, float, float]]:
    """(stage, operation, start, end) of one pass of the micro-batches through the stages. A receiver waits in its call; a
    sender goes on."""
    last = len(times) - 1
    order = [_one_forward_one_backward(batches, last - stage) for stage in range(len(times))]
    now = [begin] * len(times)
    done: dict[tuple[str, int, int], float] = {}
    while any(order):
        for stage, todo in enumerate(order):
            while todo:
                kind, batch = todo[0]
                source = stage - 1 if kind == "forward" else stage + 1
                ready = 0.0
                if 0 <= source <= last:
                    if (kind, batch, source) not in done:
                        break
                    sent = done[kind, batch, source]
                    ready = max(sent, now[stage]) + TRANSFER_S
                    yield source, f"{kind}-send", sent, ready
                    yield stage, f"{kind}-recv", now[stage], ready
                start = max(now[stage], ready)
                now[stage] = start + times[stage] * (FORWARD_S if kind == "forward" else BACKWARD_S)
                done[kind, batch, stage] = now[stage]
                yield stage, f"{kind}-compute", start, now[stage]
                todo.pop(0)


def _one_forward_one_backward(batches: int, ahead: int) -> list[tuple[str, int]]:
    """The order of a stage that runs `ahead` forwards before its first pair of a forward and a backward."""
    ahead = min(ahead, batches)
    order = [("forward", batch) for batch in range(ahead)]
    for batch in range(batches - ahead):
        order += [("forward", ahead + batch), ("backward", batch)]
    return order + [("backward", batch) for batch in range(batches - ahead, batches)]
