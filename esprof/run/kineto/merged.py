"""Traces of several ranks that were merged into one file: the ranks by the evidence that the rows give."""

import re
from dataclasses import dataclass

import numpy as np

from esprof.core.types import Rank
from esprof.run.groups import MAX_RANKS
from esprof.run.kineto.categories import kind_of
from esprof.run.kineto.rows import TraceRows
from esprof.run.kineto.scan import MISSING
from esprof.run.run import RunWarning

_RANK = re.compile(r"\brank[ _:-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_POSITION = re.compile(r"\[((?:[A-Z]{2}\d+-?)+)\]")
"""Position of a rank in parallel groups, as serving engines prefix it to the process: `[TP03-DP00] 4711`."""
_LAUNCHED = ("kernel", "memcpy", "memset", "sync")


@dataclass(frozen=True)
class MergedRank:
    """The rows of one rank; its number is None if the file does not name it."""

    rows: np.ndarray
    rank: Rank | None
    warnings: tuple[RunWarning, ...] = ()


def rows_by_rank(rows: TraceRows) -> list[MergedRank]:
    """Split rows by rank: by labels of their processes, or else by the processes that ran operations.

    A profiler records the operations of its own process only, so operations of several processes are of several ranks. GPU
    rows belong to the process whose call has their correlation id. If processes share ids, the rows are one rank with a
    warning.
    """
    labelled = _by_label(rows)
    if labelled is not None:
        return labelled
    categories = rows.texts("cat")
    is_op = categories.map(lambda name: name.lower() in ("cpu_op", "operator"), bool, False)
    pid = rows.numbers("pid")
    processes = np.unique(pid[is_op & (pid != MISSING)])
    if len(processes) < 2:
        return [MergedRank(np.arange(len(rows)), None)]
    owner = _owners(rows, processes)
    if owner is None:
        text = (
            f"operations of {len(processes)} processes with the same correlation ids are read as one rank; name the file "
            "of each rank instead"
        )
        return [MergedRank(np.arange(len(rows)), None, (RunWarning("ranks-merged", text),))]
    lost = int((owner < 0).sum())
    text = f"the file holds {len(processes)} processes; their ranks are assumed by process id"
    text += f", and {lost} events of no known process are left out" if lost else ""
    warning = (RunWarning("rank-guessed", text),)
    return [MergedRank(np.flatnonzero(owner == rank), rank, warning) for rank in range(len(processes))]


def _by_label(rows: TraceRows) -> list[MergedRank] | None:
    """The ranks by the labels in process ids; None if there are fewer than two labels."""
    written = rows.written("pid")
    label = written.map(_label, object, None)
    names = sorted({one for one in label.tolist() if one is not None}, key=_numbers)
    if len(names) < 2:
        return None
    ranks, how = _ranks(names)
    is_read = rows.texts("cat").map(lambda category: kind_of(category) is not None, bool, False)
    lost = int(sum(one is None for one in label[is_read].tolist()))
    text = f"{lost} events of no known rank are left out of the merged file" if lost else ""
    warnings = tuple(RunWarning("rank-guessed", one) for one in (how, text) if one)
    return [MergedRank(np.flatnonzero(label == name), rank, warnings) for name, rank in zip(names, ranks, strict=True)]


def _label(pid: str) -> str | None:
    match = _RANK.search(pid) or _POSITION.search(pid)
    return match.group(1) if match else None


def _numbers(label: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", label))


def _ranks(labels: list[str]) -> tuple[list[Rank], str]:
    """The rank of each label: the number that differs between them, or else their order, with a warning."""
    positions = (
        np.array([_numbers(label) for label in labels]) if len({len(_numbers(one)) for one in labels}) == 1 else None
    )
    if positions is not None:
        varying = np.flatnonzero((positions != positions[0]).any(axis=0))
        if len(varying) == 1 and positions.max() < MAX_RANKS:
            return positions[:, varying[0]].tolist(), ""
    return list(range(len(labels))), "the ranks in the merged file are assumed by the order of their labels"


def _owners(rows: TraceRows, processes: np.ndarray) -> np.ndarray | None:
    """Index in `processes` of each row's process, -1 for none; None if processes share correlation ids."""
    pid, correlation = rows.numbers("pid"), rows.numbers("correlation")
    at = np.minimum(np.searchsorted(processes, pid), len(processes) - 1)
    is_work = rows.texts("cat").map(lambda name: name.lower().split("_")[-1] in _LAUNCHED, bool, False)
    owner = np.where((processes[at] == pid) & ~is_work, at, -1)
    calls = np.flatnonzero((owner >= 0) & (correlation != MISSING))
    pairs = np.unique(np.stack([correlation[calls], owner[calls]]), axis=1)
    if (np.diff(pairs[0]) == 0).any():
        return None
    if len(pairs[0]):
        work = np.flatnonzero(is_work)
        found = np.minimum(np.searchsorted(pairs[0], correlation[work]), len(pairs[0]) - 1)
        owner[work] = np.where(pairs[0][found] == correlation[work], pairs[1][found], -1)
    # Other rows of a process or device whose rows all have one owner, such as work that was launched before the trace.
    for number in np.unique(pid[owner < 0]).tolist():
        known = np.unique(owner[(pid == number) & (owner >= 0)])
        if len(known) == 1:
            owner[(pid == number) & (owner < 0)] = known[0]
    return owner
