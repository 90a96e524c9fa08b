"""Every file of a recording's folder `raw`, and what it is called: made by the job's processes, read by the launcher and by
`esprof.run.collect`.

==================================  ==================================================================================
Name                                What it holds
==================================  ==================================================================================
`settings.json`                     What is recorded, and within which bounds: `Settings`.
`job.json`                          What the launcher started, and when: `LaunchedJob`.
`orders/<ns>.json`                  What the launcher or a person asks of the running job.
`python.<pid>`, `torch.<pid>`       Marks: a Python process has found the recorder; it has imported torch.
`joined-00000`                      Mark: a process of `esprof.record` is this rank.
`again-00000.<process>`             Mark: a second process claims to be this rank.
`rank-00000.jsonl`                  Notes of a rank that are kept for good; locked as long as the rank lives.
`rank-00000.roll.[01].jsonl`        What the rank notes at every step: two files, the older one is begun anew.
`fetch.<owner>.<pid>.roll.[01].…`   The same of a loader worker.
`rank-00000.<phase>.<first>.json`   The Kineto trace of a window: `timed` or `stack`, by its first step; with `calls` what
                                    PyTorch's own flight recorder knew at the window's end.
`flight-00000.<n>.json`             A snapshot of a rank's flight recorder: `Snapshot`.
`fatal-00000.txt`                   All stacks at the signal that ended the rank.
`starting-00000.<ns>.…`             Notes, snapshots and stacks of a process that has not ended a step yet.
`opened.<pid>.txt`                  The files that a process has opened for reading.
`probes-00000.jsonl`                What the rank has measured.
`save-00000.tmp`                    What the rank writes to measure the storage; removed then.
==================================  ==================================================================================

`python.<pid>` and the name `raw` itself are spelled once more by the hook, which imports nothing of the recorder.
"""

import glob
import re
from pathlib import Path
from typing import NamedTuple

_NOTES = re.compile(r"rank-(\d{5,})\.jsonl")
_AGAIN = re.compile(r"again-(\d{5,})\..+")
_SNAPSHOT = re.compile(r"flight-(\d{5,})\.\d+\.json")
_STARTING = re.compile(r"(starting-(\d{5,})\.\d+)\.(?:jsonl|\d+\.json)")
_WORKER = re.compile(r"fetch\..+\.(\d+)\.roll\.[01]\.jsonl")

SETTINGS = "settings.json"
JOB = "job.json"
ORDERS = "orders"
PYTHONS = "python.*"
"""Pattern of the marks of Python processes that have found the recorder."""
TORCHES = "torch.*"
"""Pattern of the marks of processes that have imported torch."""
ALL_STARTING = "starting-*.jsonl"
"""Pattern of the notes of all processes that have ended no step."""
ALL_AGAIN = "again-*"
"""Pattern of the marks of second processes."""

ROLLING = "rank-*.roll.[01].jsonl"
"""Pattern of the files to which any rank notes what it notes at every step."""

OPENED = "opened.*.txt"
"""Pattern of the lists of files that a process has opened for reading."""

PROBES = "probes-*.jsonl"
"""Pattern of what any rank has measured."""


class RankFiles(NamedTuple):
    """The names of what a rank leaves but for its steps and windows."""

    notes: str
    """The rows that are kept for good. Their writer holds the lock of this file as long as it lives."""
    snapshots: str
    """Pattern of the snapshots of its flight recorder."""
    fatal: str
    """All stacks at the signal that ended it."""


def files_of(rank: int) -> RankFiles:
    """The files of a rank that has ended a step."""
    return RankFiles(notes_of(rank), snapshots_of(rank), fatal(rank))


def starting_prefix(rank: int, since_ns: int) -> str:
    """What the names of the files begin with of a process that has not ended a step yet, and is to be this rank.

    They are gone when it has ended a step, or itself, in good order. Of several lives of a rank the latest counts.
    """
    return f"starting-{rank:05d}.{since_ns}"


def starting_files(prefix: str) -> RankFiles:
    return RankFiles(notes(prefix), f"{prefix}.*.json", f"{prefix}.txt")


def starting_snapshot(prefix: str, number: int) -> str:
    return f"{prefix}.{number}.json"


def starting(name: str) -> tuple[str, int] | None:
    """The prefix and the rank of the starting process whose notes or snapshot `name` is; None for any other file."""
    found = _STARTING.fullmatch(name)
    return (found[1], int(found[2])) if found else None


def rank_prefix(rank: int) -> str:
    """What the names of a rank's notes, windows and rolling files begin with."""
    return f"rank-{rank:05d}"


def notes(prefix: str) -> str:
    """The rows that are kept for good, of a rank by its prefix."""
    return f"{prefix}.jsonl"


def notes_of(rank: int) -> str:
    """The rows of a rank that are kept for good. The rank holds the lock of this file as long as it lives."""
    return notes(rank_prefix(rank))


def rank_of_notes(name: str) -> int | None:
    """The rank whose notes `name` is to hold; None for any other file."""
    return _number(_NOTES, name)


def all_notes(raw: Path) -> dict[Path, int]:
    """The notes in `raw`, each with the rank whose they are to be, by rank. Empty where `raw` is gone."""
    found = {file: rank for file in raw.glob("rank-*.jsonl") if (rank := rank_of_notes(file.name)) is not None}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def rolling(prefix: str) -> tuple[str, str]:
    """The two files of the newest rows, of a rank or of a loader worker by its prefix."""
    return f"{prefix}.roll.0.jsonl", f"{prefix}.roll.1.jsonl"


def workers_prefix(owner: str) -> str:
    """What the names of the files of loader workers begin with, whose rank process is called `owner`. The process id of the
    worker ends its own prefix."""
    return f"fetch.{owner}"


def workers_of(owner: str) -> str:
    """Pattern of the files of all loader workers of one rank process."""
    return f"{glob.escape(workers_prefix(owner))}.*.roll.[01].jsonl"


def pid_of_worker(name: str) -> int | None:
    """The process id of the loader worker whose file `name` is; None for any other file."""
    return _number(_WORKER, name)


def window(rank: int, phase: str, first: int) -> str:
    """The Kineto trace of the window of a rank that begins with step `first`."""
    return f"{rank_prefix(rank)}.{phase}.{first}.json"


def calls(rank: int, first: int) -> str:
    """What PyTorch's own flight recorder knew when that window was closed."""
    return window(rank, "calls", first)


def snapshot(rank: int, number: int) -> str:
    """A snapshot of a rank's flight recorder."""
    return f"flight-{rank:05d}.{number}.json"


def snapshots_of(rank: int) -> str:
    """Pattern of the snapshots of one rank."""
    return f"flight-{rank:05d}.*.json"


def is_snapshot(name: str) -> bool:
    return _SNAPSHOT.fullmatch(name) is not None


def fatal(rank: int) -> str:
    """All stacks of a rank at the signal that ended it."""
    return f"fatal-{rank:05d}.txt"


def again(rank: int, process: str) -> str:
    """The mark of a second `process` that is this rank."""
    return f"again-{rank:05d}.{process}"


def rank_claimed_again(name: str) -> int | None:
    """The rank that the mark `name` tells of; None for any other file."""
    return _number(_AGAIN, name)


def joined(rank: int) -> str:
    """The mark of a process that records itself as this rank."""
    return f"joined-{rank:05d}"


def torch_of(pid: int) -> str:
    """The mark of a process that has imported torch."""
    return f"torch.{pid}"


def opened(pid: int) -> str:
    """The list of files that a process has opened for reading, a path a line."""
    return f"opened.{pid}.txt"


def probes_of(rank: int) -> str:
    """What a rank has measured."""
    return f"probes-{rank:05d}.jsonl"


def saved(rank: int) -> str:
    """What a rank writes to measure the storage."""
    return f"save-{rank:05d}.tmp"


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    found = pattern.fullmatch(name)
    return int(found[1]) if found else None
