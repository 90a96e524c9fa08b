"""Names of all files in the folder `raw` of a recording. The job's processes write them; the launcher and
`esprof.run.collect` read them.

==================================  ==================================================================================
Name                                Content
==================================  ==================================================================================
`settings.json`                     `Settings`: windows, limits and probes of the recording.
`job.json`                          `LaunchedJob`: the command and its start time.
`orders/<ns>.json`                  A request of the launcher or a person to the running job.
`python.<pid>`, `torch.<pid>`       Markers: a Python process loaded the recorder; it imported torch.
`joined-00000`                      Marker: a process of `esprof.record` has this rank.
`again-00000.<process>`             Marker: a second process claims this rank.
`rank-00000.jsonl`                  Permanent notes of a rank. Locked while the rank is alive.
`rank-00000.roll.[01].jsonl`        Rows of each step: two files, of which the older one is overwritten.
`fetch.<owner>.<pid>.roll.[01].…`   The same for a worker of a DataLoader.
`rank-00000.<phase>.<first>.json`   Kineto trace of a window, by its phase (`timed` or `stack`) and first step. The phase
                                    `calls` is a dump of PyTorch's own flight recorder at the end of the window.
`flight-00000.<n>.json`             `Snapshot` of a rank's flight recorder.
`fatal-00000.txt`                   All stacks at the signal that ended the rank.
`starting-00000.<ns>.…`             Notes, snapshots and stacks of a process before the end of its first step.
`opened.<pid>.txt`                  Files that a process opened for reading.
`probes-00000.jsonl`                Measurements of the rank.
`save-00000.tmp`                    Temporary file by which the rank measures the storage.
`finishing`                         Locked by the process that makes the Run of all these.
==================================  ==================================================================================

The hook imports nothing of the recorder, so it repeats `python.<pid>` and the name `raw`.
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
FINISHING = "finishing"
PYTHONS = "python.*"
"""Pattern of the markers of Python processes that loaded the recorder."""
TORCHES = "torch.*"
"""Pattern of the markers of processes that imported torch."""
ALL_STARTING = "starting-*.jsonl"
"""Pattern of the notes of all processes that have ended no step."""
ALL_AGAIN = "again-*"
"""Pattern of the markers of second processes with the same rank."""

ROLLING = "rank-*.roll.[01].jsonl"
"""Pattern of the rolling files of all ranks."""

OPENED = "opened.*.txt"
"""Pattern of the lists of files that a process has opened for reading."""

PROBES = "probes-*.jsonl"
"""Pattern of the measurements of all ranks."""


class RankFiles(NamedTuple):
    """Names of a rank's files, except those of its steps and windows."""

    notes: str
    """The permanent notes. The process that writes them holds a lock on the file while it is alive."""
    snapshots: str
    """Pattern of the snapshots of its flight recorder."""
    fatal: str
    """All stacks at the signal that ended it."""


def files_of(rank: int) -> RankFiles:
    """Files of a rank that has ended a step."""
    return RankFiles(notes_of(rank), snapshots_of(rank), fatal(rank))


def starting_prefix(rank: int, since_ns: int) -> str:
    """Prefix of the files of a process with this rank that has ended no step yet.

    The files are removed when the process ends a step or exits normally. If a rank was restarted, the latest process counts.
    """
    return f"starting-{rank:05d}.{since_ns}"


def starting_files(prefix: str) -> RankFiles:
    return RankFiles(notes(prefix), f"{prefix}.*.json", f"{prefix}.txt")


def starting_snapshot(prefix: str, number: int) -> str:
    return f"{prefix}.{number}.json"


def starting(name: str) -> tuple[str, int] | None:
    """Prefix and rank in the name of the notes or a snapshot of a starting process; None for any other file."""
    found = _STARTING.fullmatch(name)
    return (found[1], int(found[2])) if found else None


def rank_prefix(rank: int) -> str:
    """Prefix of a rank's notes, windows and rolling files."""
    return f"rank-{rank:05d}"


def notes(prefix: str) -> str:
    """Permanent notes of the rank with this prefix."""
    return f"{prefix}.jsonl"


def notes_of(rank: int) -> str:
    """Permanent notes of a rank, which holds a lock on the file while it is alive."""
    return notes(rank_prefix(rank))


def rank_of_notes(name: str) -> int | None:
    """Rank in the name of a file of notes; None for any other file."""
    return _number(_NOTES, name)


def all_notes(raw: Path) -> dict[Path, int]:
    """Map each file of notes in `raw` to its rank, ordered by rank. Empty if `raw` does not exist."""
    found = {file: rank for file in raw.glob("rank-*.jsonl") if (rank := rank_of_notes(file.name)) is not None}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def rolling(prefix: str) -> tuple[str, str]:
    """The two rolling files of the rank or loader worker with this prefix."""
    return f"{prefix}.roll.0.jsonl", f"{prefix}.roll.1.jsonl"


def workers_prefix(owner: str) -> str:
    """Common prefix of the files of the loader workers of the rank process `owner`; the worker's process id follows."""
    return f"fetch.{owner}"


def workers_of(owner: str) -> str:
    """Pattern of the files of all loader workers of one rank process."""
    return f"{glob.escape(workers_prefix(owner))}.*.roll.[01].jsonl"


def pid_of_worker(name: str) -> int | None:
    """Process id in the name of a loader worker's file; None for any other file."""
    return _number(_WORKER, name)


def window(rank: int, phase: str, first: int) -> str:
    """Kineto trace of the window of a rank that begins with step `first`."""
    return f"{rank_prefix(rank)}.{phase}.{first}.json"


def calls(rank: int, first: int) -> str:
    """Dump of PyTorch's own flight recorder at the end of that window."""
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
    """Marker of a second `process` with this rank."""
    return f"again-{rank:05d}.{process}"


def rank_claimed_again(name: str) -> int | None:
    """Rank in the name of such a marker; None for any other file."""
    return _number(_AGAIN, name)


def joined(rank: int) -> str:
    """Marker of a process that records itself as this rank."""
    return f"joined-{rank:05d}"


def torch_of(pid: int) -> str:
    """Marker of a process that imported torch."""
    return f"torch.{pid}"


def opened(pid: int) -> str:
    """List of the files that a process opened for reading, one path per line."""
    return f"opened.{pid}.txt"


def probes_of(rank: int) -> str:
    """Measurements of a rank."""
    return f"probes-{rank:05d}.jsonl"


def saved(rank: int) -> str:
    """Temporary file by which a rank measures the storage."""
    return f"save-{rank:05d}.tmp"


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    found = pattern.fullmatch(name)
    return int(found[1]) if found else None
