"""Folders `raw` written by hand: files of the processes of a recorded job for the launcher."""

import json
from pathlib import Path

from esprof.run.raw.settings import Settings

EPOCH_NS = 1_700_000_000_000_000_000
STEP_NS = 1_000_000
SETTINGS = Settings(skip=2, warmup=1, steps=3, stack_steps=0)


def make(run: Path, ranks: int = 1, **settings: object) -> Path:
    """The `raw` folder of the Run `run` with only the launcher's files."""
    raw = run / "raw"
    raw.mkdir(mode=0o700, parents=True)
    Settings(**({"skip": 2, "warmup": 1, "steps": 3, "stack_steps": 0} | settings)).write(str(raw))
    (raw / "job.json").write_text(json.dumps({"command": ["train.py"], "launcher_pid": 1, "started_ns": EPOCH_NS}))
    for number in range(ranks):
        (raw / f"python.{number}").touch()
        (raw / f"torch.{number}").touch()
    return raw


def note(raw: Path, rank: int, *rows: dict) -> None:
    """Permanent rows of a rank."""
    with (raw / f"rank-{rank:05d}.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def identity(rank: int = 0, world_size: int = 1, **fields) -> dict:
    who = {"rank": rank, "world_size": world_size, "host": "a", "pid": 10 + rank, "device": "cpu", "accelerators": 0}
    return {"kind": "rank", "versions": {"torch": "2.13.0"}} | who | fields


def roll(raw: Path, name: str, kind: str, *rows: list) -> None:
    """One line of rolling rows in the file `name`, such as `rank-00000.roll.0`."""
    with (raw / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps({"kind": kind, "rows": rows}) + "\n")


def step(number: int, phase: str = "plain") -> list:
    """Row of a step; steps follow each other without a gap."""
    return [number, EPOCH_NS + number * STEP_NS, STEP_NS, phase]


def window(first: int, last: int, phase: str = "timed") -> dict:
    return {"kind": "window", "phase": phase, "first": first, "last": last}


def trace(raw: Path, rank: int, first: int, last: int, *more: dict, phase: str = "timed", correlation: int = 1) -> Path:
    """A Kineto trace of the steps `first` to `last`: in each one operation, a runtime call and its kernel."""
    rows = list(more)
    for number in range(first, last + 1):
        start_us = (EPOCH_NS + number * STEP_NS) / 1000
        rows.append(event("user_annotation", f"ProfilerStep#{number}", start_us, 1000))
        rows.append(event("cpu_op", "aten::mm", start_us + 100, 200))
        rows.append(event("cuda_runtime", "cudaLaunchKernel", start_us + 150, 50, correlation=correlation))
        rows.append(event("kernel", "gemm", start_us + 300, 400, tid=7, device=0, stream=7, correlation=correlation))
        correlation += 1
    path = raw / f"rank-{rank:05d}.{phase}.{first}.json"
    config = [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cpu:gloo", "ranks": [0, 1]}]
    info = {"backend": "gloo", "rank": rank, "world_size": 2, "pg_config": config}
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": rows}))
    return path


def event(category: str, name: str, start_us: float, dur_us: float, tid: int = 10, **arguments: object) -> dict:
    return {"ph": "X", "cat": category, "name": name, "ts": start_us, "dur": dur_us, "pid": 1, "tid": tid} | {
        "args": arguments
    }


def whole_rank(raw: Path, rank: int = 0, world_size: int = 1, *windows: tuple[int, int], steps: int = 8) -> None:
    """A rank with these timed windows (first, last), which ended normally."""
    timed = {number for first, last in windows for number in range(first, last + 1)}
    note(raw, rank, identity(rank, world_size))
    for first, last in windows:
        trace(raw, rank, first, last)
        note(raw, rank, window(first, last))
    numbers = range(1, steps + 1)
    rows = [step(number, "timed" if number in timed else "plain") for number in numbers]
    roll(raw, f"rank-{rank:05d}.roll.0", "steps", *rows)
    note(raw, rank, {"kind": "memory", "peak": 1 << 20, "of": "rss"}, {"kind": "end", "step": steps + 1})


def shaped_rank(raw: Path, *widths: int) -> None:
    """A rank with timed steps 3 to 5 and, after them, steps with stacks that tell shapes: one for each of `widths`."""

    def linear(number: int, **arguments: object) -> dict:
        return event("cpu_op", "aten::linear", (EPOCH_NS + number * STEP_NS) / 1000 + 10, 20, **arguments)

    note(raw, 0, identity(), window(3, 5))
    trace(raw, 0, 3, 5, *map(linear, (3, 4, 5)))
    if widths:
        last = 6 + len(widths)
        shaped = [linear(7 + at, **{"Input Dims": [[width, 4]]}) for at, width in enumerate(widths)]
        trace(raw, 0, 7, last, *shaped, phase="stack")
        note(raw, 0, window(7, last, "stack"))
    roll(raw, "rank-00000.roll.0", "steps", *[step(n, "timed" if n in (3, 4, 5) else "plain") for n in range(1, 11)])
    note(raw, 0, {"kind": "memory", "peak": 1 << 20, "of": "rss"}, {"kind": "end", "step": 11})
