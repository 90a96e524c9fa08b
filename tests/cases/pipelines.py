"""Tables of operations of jobs with pipelines that run one forward and one backward in turn (1F1B)."""

from collections.abc import Sequence

from tests.cases.operation_tables import MS, SINCE, Rows

FORWARD_MS, BACKWARD_MS, MESSAGE_MS, REDUCE_MS = 10.0, 20.0, 0.2, 2.0


class Pipelines:
    """`lengths[step][pipeline][micro-batch]` scales its forward and backward on all stages; rank = stage · pipelines +
    pipeline. `slow` scales the work of each stage."""

    def __init__(self, lengths: Sequence[Sequence[Sequence[float]]], slow: Sequence[float]) -> None:
        self.rows: Rows = []
        self._slow, self._stages, self._pipelines = slow, len(slow), len(lengths[0])
        self._now = [SINCE] * (self._stages * self._pipelines)
        for number, step in enumerate(lengths, 1):
            for pipeline, batches in enumerate(step):
                self._run(number, pipeline, batches)
            self._reduce(number)

    def _rank(self, stage: int, pipeline: int) -> int:
        return stage * self._pipelines + pipeline

    def _row(self, rank: int, op: str, start: int, end: int, step: int, stream: int, group: str | None = None) -> None:
        self.rows.append(
            {"rank": rank, "op": op, "start": start, "end": end, "step": step, "stream": stream, "group": group}
        )

    def _order(self, stage: int, batches: int) -> list[tuple[str, int]]:
        warm = min(self._stages - stage - 1, batches)
        order = [("forward", batch) for batch in range(warm)]
        for batch in range(batches):
            order += [("forward", warm + batch)] if warm + batch < batches else []
            order.append(("backward", batch))
        return order

    def _run(self, step: int, pipeline: int, lengths: Sequence[float]) -> None:
        left = {stage: self._order(stage, len(lengths)) for stage in range(self._stages)}
        done: dict[tuple[str, int, int], int] = {}
        while any(left.values()):
            for stage in range(self._stages):
                while left[stage]:
                    op, batch = left[stage][0]
                    before = stage - 1 if op == "forward" else stage + 1
                    needs_message = 0 <= before < self._stages
                    if needs_message and (op, batch, before) not in done:
                        break
                    left[stage].pop(0)
                    rank = self._rank(stage, pipeline)
                    if needs_message:
                        self._message(step, rank, self._rank(before, pipeline), op, done[op, batch, before])
                    took = {"forward": FORWARD_MS, "backward": BACKWARD_MS}[op] * lengths[batch] * self._slow[stage]
                    start = self._now[rank]
                    self._now[rank] = done[op, batch, stage] = start + int(took * MS)
                    self._row(rank, op, start, self._now[rank], step, 0)

    def _message(self, step: int, receiver: int, sender: int, op: str, ready: int) -> None:
        what, group = ("act" if op == "forward" else "grad"), str(sorted([sender, receiver]))
        end = max(ready, self._now[receiver]) + int(MESSAGE_MS * MS)
        self._row(receiver, f"recv_{what}", self._now[receiver], end, step, 1, group)
        self._row(sender, f"send_{what}", ready, end, step, 2, group)
        self._now[receiver] = end

    def _reduce(self, step: int) -> None:
        for stage in range(self._stages):
            members = [self._rank(stage, pipeline) for pipeline in range(self._pipelines)]
            end = max(self._now[rank] for rank in members) + int(REDUCE_MS * MS)
            for rank in members:
                if len(members) > 1:
                    self._row(rank, "all_reduce", self._now[rank], end, step, 3, str(members))
                self._row(rank, "optimizer", end, end + MS, step, 0)
                self._now[rank] = end + MS
