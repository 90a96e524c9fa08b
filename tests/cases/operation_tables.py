"""Tables of operations of a small job of known times, as another framework might write them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

MS = 1_000_000
SINCE = 1_700_000_000 * 10**9

Rows = list[dict[str, Any]]


def rows_of_a_job(ranks: int = 4, steps: int = 8, slow: Mapping[int, float] | None = None) -> Rows:
    """Data parallel training: forward, backward with two concurrently reduced buckets, then the optimizer.

    `slow` gives ranks whose operations take so many times as long. Those of others take 1 ms forward, 3 + 3 ms backward and
    1 ms for the optimizer; each bucket is reduced in 2 ms once the last rank has come to it.
    """
    slow = slow or {}
    rows: Rows = []
    now = dict.fromkeys(range(ranks), SINCE)

    def run(rank: int, op: str, start: int, took: float, step: int, **more: Any) -> int:
        end = start + int(took * MS)
        rows.append({"rank": rank, "op": op, "start": start, "end": end, "step": step, **more})
        return end

    for step in range(1, steps + 1):
        for rank in range(ranks):
            now[rank] = run(rank, "forward", now[rank], slow.get(rank, 1), step)
        free = 0
        for bucket in range(2):
            for rank in range(ranks):
                now[rank] = run(rank, f"backward {bucket}", now[rank], 3 * slow.get(rank, 1), step)
            came = dict(now)
            done = max(*came.values(), free) + 2 * MS
            for rank in range(ranks):
                rows.append(
                    {
                        "rank": rank,
                        "op": f"all_reduce {bucket}",
                        "start": max(came[rank], free),
                        "end": done,
                        "step": step,
                    }
                    | {"group": str(list(range(ranks))), "bytes": 1 << 20}
                )
            free = done
        for rank in range(ranks):
            now[rank] = run(rank, "optimizer", done, slow.get(rank, 1), step)
    return rows


def write_table(path: Path, rows: Rows) -> Path:
    """The rows as Parquet; a key that a row lacks is null."""
    names = {name: None for row in rows for name in row}
    pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), path)
    return path


def rows_of_a_pipeline(second: float = 2, steps: int = 8, batches: int = 4) -> Rows:
    """A pipeline of two stages over `batches` micro-batches: 1 ms a batch on rank 0 and `second` ms on rank 1, all forward
    first, with activations and gradients sent in 0.5 ms; then a step of the optimizer of 1 ms on both."""
    rows: Rows = []
    now = [SINCE, SINCE]

    def run(rank: int, op: str, took: float, step: int) -> None:
        end = now[rank] + int(took * MS)
        rows.append({"rank": rank, "op": op, "start": now[rank], "end": end, "step": step})
        now[rank] = end

    def send(sender: int, ready: int, step: int, free: dict[int, int]) -> None:
        """The receiver waits for it; the sender continues."""
        receiver = 1 - sender
        done = max(ready, free[sender], now[receiver]) + MS // 2
        both = {"group": "[0, 1]", "step": step, "end": done}
        rows.append({"rank": sender, "op": "send", "start": max(ready, free[sender])} | both)
        rows.append({"rank": receiver, "op": "recv", "start": now[receiver]} | both)
        free[sender] = now[receiver] = done

    for step in range(1, steps + 1):
        ready, free = [], dict.fromkeys((0, 1), 0)
        for _ in range(batches):
            run(0, "forward", 1, step)
            ready.append(now[0])
        for moment in ready:
            send(0, moment, step, free)
            run(1, "forward", second, step)
        for _ in range(batches):
            run(1, "backward", second, step)
            send(1, now[1], step, free)
            run(0, "backward", 1, step)
        for rank in (0, 1):
            run(rank, "optimizer", 1, step)
    return rows
