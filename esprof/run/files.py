"""Every file of a Run directory, and what it is called. No other module spells its name.

A Run is written by `esprof record`, or by an elastic job (`ElasticTrainer(telemetry=RUN)`); verbs add their own files. Only
`run.json` and the events of a rank are in every whole Run.

===========================  ==========================  ==============================================================
Name                         Written by                  What it holds
===========================  ==========================  ==============================================================
`run.json`                   record, elastic job, merge  `RunMeta`: command, versions, ranks, process groups, warnings.
                                                         Written last: a folder without it is no whole Run yet.
`events/rank-00000.parquet`  record, elastic job, merge  What the profiler saw of a rank, a row an event: `EVENTS`.
`steps/rank-….parquet`       record, elastic job, merge  Every step of the rank, in windows and out: `STEPS`.
`stages/rank-….parquet`      record, merge               Data loading, and what the job marked as stages: `STAGES`.
`memory/rank-….parquet`      record, merge               Memory at each step: `MEMORY`.
`samples/rank-….parquet`     record, merge               Where the training thread was, by time: `SAMPLES`.
`stacks/rank-….parquet`      record, merge               Python frames of steps recorded with stacks: `STACKS`.
`flight/rank-00000.json`     record, merge               `FlightLog`: snapshots of a slow or hung rank, and its end.
`probes.json`                record --probe, probe       `Probes`: what devices, links, codecs and storage can do.
`history.jsonl`              elastic job, serve          `JobEvent`: what happened to an elastic job.
`rounds.jsonl`               tune                        `Round`: what was advised, promised, and came of it.
`live.jsonl`                 elastic job                 `LiveStep`: its steps as they come; begun anew when large.
`ledger.jsonl`               verify                      `Line`: what what-ifs promised, and what was measured then.
`telemetry.request`          serve, tune                 `TelemetryRequest`: the job takes it away and writes the Run.
`plan.json`                  apply, serve, tune          `Plan`: what the running job is to change to.
`plan.status.json`           elastic job                 What became of that plan.
`advice.json`                serve                       `LatestSearch`: the latest advice, for the page.
`serve.lock`                 serve                       Locked as long as a process serves the Run.
`raw/`                       the job's processes         What they note while they run: `esprof.run.raw.names`. Gone when
                                                         the Run is whole.
`part-00000/`                record under a launcher     The Run of one of several nodes, until `merge` joins them.
===========================  ==========================  ==============================================================

Tables are described in `esprof.run.schema`, the logs (`….jsonl`) in `esprof.run.logs`. Beside Runs, `esprof elastic launch`
has a folder of its own, by default `esprof-launch/`: its names are at the end.
"""

import os
from pathlib import Path

from esprof.core.types import Rank

META = "run.json"
PROBES = "probes.json"

HISTORY = "history.jsonl"
ROUNDS = "rounds.jsonl"
LIVE = "live.jsonl"
LEDGER = "ledger.jsonl"

TELEMETRY_REQUEST = "telemetry.request"
PLAN = "plan.json"
ADVICE = "advice.json"
SERVE_LOCK = "serve.lock"

RAW = "raw"
"""The hook that starts the recorder spells this name once more: it imports nothing."""
PARTS = "part-*"
"""Pattern of the Runs of single nodes."""

MARKS_OF_RUNS = (META, RAW, LIVE, HISTORY)
"""What tells a Run, whole or begun, from other folders."""


def table_path(run: Path, name: str, rank: Rank) -> Path:
    """The table `name` (`events`, `steps`, …) of one rank."""
    return run / name / f"rank-{rank:05d}.parquet"


def flight_path(run: Path, rank: Rank) -> Path:
    """What the flight recorder of one rank left."""
    return run / "flight" / f"rank-{rank:05d}.json"


def part(run: Path, node: int) -> Path:
    """The Run of one of several nodes, whose recordings one after the other come to stand in the folder `run`."""
    return run / f"part-{node:05d}"


def status_path(plan: Path) -> Path:
    """What became of the plan in the file `plan`."""
    return plan.with_name(f"{plan.stem}.status.json")


def is_whole(run: Path) -> bool:
    """Whether `run` is a Run that was written to its end; not, where it may not be looked into."""
    return os.path.exists(run / META)  # `Path.exists` raises PermissionError.


LAUNCH = "esprof-launch"
"""The folder of `esprof elastic launch`, unless --folder names another."""
LAUNCH_LOCK = "lock"
"""Locked as long as a launcher has the folder."""
LAUNCH_STATE = "launch.json"
"""`LaunchState`: the launcher's process, and how many workers run."""
LAUNCH_LOG = "launch.jsonl"
"""`Logged`: what the launcher did, and why."""
WORLD_WANTED = "world"
"""How many workers somebody wants, in digits."""
ALL_LEFT = "left-*.json"
"""Pattern of what generations have told at their end."""


def left_path(folder: Path, generation: int) -> Path:
    """`Left`: what a generation of workers told when it had saved."""
    return folder / f"left-{generation}.json"


def ready_path(folder: Path, generation: int, rank: Rank) -> Path:
    """What a worker makes when it has imported what takes long, and waits for its generation to begin."""
    return folder / f"ready-{generation}-{rank}"
