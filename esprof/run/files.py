"""Names of all files in a Run directory. No other module spells them.

`esprof record` and an elastic job (`ElasticTrainer(telemetry=RUN)`) create a Run; other verbs add files to it. Every
complete Run has `run.json` and the events of at least one rank; all other files are optional.

============================  ==========================  ==============================================================
Name                          Written by                  Content
============================  ==========================  ==============================================================
`run.json`                    record, elastic job, merge  `RunMeta`: command, versions, ranks, process groups, warnings.
                                                          Written last: without it the Run is incomplete.
`events/rank-00000.parquet`   record, elastic job, merge  Profiler events of one rank, one row per event: `EVENTS`.
`steps/rank-….parquet`        record, elastic job, merge  Start, duration and phase of every step: `STEPS`.
`stages/rank-….parquet`       record, merge               Data loading and the stages that the job marks: `STAGES`.
`accesses/rank-….parquet`     record, merge               Samples that DataLoaders read, by key: `ACCESSES`.
`labels/rank-….parquet`       record, merge               Labels that the rank trained on, by class: `LABELS`.
`travels/rank-….parquet`      record, merge               Scores of the ranks' models on its batch: `TRAVELS`.
`memory/rank-….parquet`       record, merge               Memory use at each step: `MEMORY`.
`allocations/rank-….parquet`  record, merge               Allocations in timed steps: `ALLOCATIONS`.
`modules/rank-….parquet`      record, merge               Sizes of modules, and who takes whose output: `MODULES`.
`samples/rank-….parquet`      record, merge               Sampled stacks of the training thread: `SAMPLES`.
`stacks/rank-….parquet`       record, merge               Python frames of the steps recorded with stacks: `STACKS`.
`flight/rank-00000.json`      record, merge               `FlightLog`: snapshots of a slow or hung rank, and its end.
`probes.json`                 record --probe, probe       `Probes`: measured speed of devices, links, codecs, storage.
`history.jsonl`               elastic job, serve          `JobEvent`: starts, rescaling, plans and checkpoints of the job.
`rounds.jsonl`                tune                        `Round`: the advice of each round, predicted and measured gain.
`live.jsonl`                  elastic job                 `LiveStep`: the latest steps of the running job. Emptied when
                                                          it exceeds 8 MiB.
`ledger.jsonl`                verify                      `LedgerLine`: predictions of what-ifs and measured outcomes.
`….1.jsonl`                   as the log itself           The lines before those of `history.jsonl`, `rounds.jsonl` or
                                                          `ledger.jsonl`, once that exceeded 8 MiB. Earlier ones are gone.
`telemetry.request`           serve, tune                 `TelemetryRequest`: asks the job to write the Run now. The job
                                                          removes the file.
`plan.json`                   apply, serve, tune          `Plan`: the change that the running job is to adopt.
`plan.status.json`            elastic job                 `PlanStatus`: whether the job adopted that plan.
`advice.json`                 serve                       `LatestSearch`: the latest advice on the live page.
`serve.lock`                  serve                       Locked while a process serves the Run.
`raw/`                        the job's processes         Logs written during the job: `esprof.run.raw.names`. Removed
                                                          when the Run is complete.
`part-00000/`                 record under a launcher     The Run of one node, until `merge` joins the nodes.
============================  ==========================  ==============================================================

`esprof.run.schema` describes the tables, `esprof.run.logs` the logs (`….jsonl`). The files of `esprof elastic launch` are in
a folder of their own (`esprof-launch/` by default); `esprof.run.files` names them.
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
"""`hook/sitecustomize.py` repeats this name, as it imports nothing."""
PARTS = "part-*"
"""Pattern of the Runs of single nodes."""

MARKS_OF_RUNS = (META, RAW, LIVE, HISTORY)
"""Files of which any Run, complete or not, has at least one."""


SERVER_STACKS = "stacks_*.txt"
"""Pattern, beside dumps of the Flight Recorder, of the debug server's dumps of all ranks' stacks; names end in the time."""


def table_path(run: Path, name: str, rank: Rank) -> Path:
    """Path of the table `name` (`events`, `steps`, …) of one rank."""
    return run / name / f"rank-{rank:05d}.parquet"


def flight_path(run: Path, rank: Rank) -> Path:
    """Path of the flight log of one rank."""
    return run / "flight" / f"rank-{rank:05d}.json"


def older(log: Path) -> Path:
    """Path of the older part of a log."""
    return log.with_name(f"{log.stem}.1{log.suffix}")


def part(run: Path, node: int) -> Path:
    """Path of the Run of one node in the folder `run` of a job on several nodes."""
    return run / f"part-{node:05d}"


def status_path(plan: Path) -> Path:
    """Path of the status of the plan in the file `plan`."""
    return plan.with_name(f"{plan.stem}.status.json")


def is_complete(run: Path) -> bool:
    """Whether `run` is a complete Run; False if the folder may not be read."""
    return os.path.exists(run / META)  # `Path.exists` raises PermissionError.


LAUNCH = "esprof-launch"
"""The folder of `esprof elastic launch`, unless --folder names another."""
LAUNCH_LOCK = "lock"
"""Locked while a launcher uses the folder."""
LAUNCH_STATE = "launch.json"
"""`LaunchState`: the launcher's process and the number of its workers."""
LAUNCH_LOG = "launch.jsonl"
"""`Logged`: actions of the launcher with their reasons."""
WORLD_WANTED = "world"
"""The requested number of workers, in digits."""
ALL_LEFT = "left-*.json"
"""Pattern of the final reports of generations."""


def left_path(folder: Path, generation: int) -> Path:
    """Path of `Left`, the report of a generation of workers after its last checkpoint."""
    return folder / f"left-{generation}.json"


def ready_path(folder: Path, generation: int, rank: Rank) -> Path:
    """Path of the file by which a worker shows that its slow imports are done and it waits for its generation to start."""
    return folder / f"ready-{generation}-{rank}"
