"""Dumps of PyTorch's Flight Recorder, one file per rank and backend, and stacks of its debug server in the same folder."""

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from esprof.core import readable
from esprof.core.errors import InputError
from esprof.core.text import printable
from esprof.core.types import Rank
from esprof.run.files import SERVER_STACKS
from esprof.run.flight.dump import HEAD_BYTES, Dump, is_dump, read_dump, snapshots_of
from esprof.run.flight.log import FlightLog, Snapshot, StackFrame, main_stack
from esprof.run.groups import MAX_RANKS, Group, group_name, joined_groups
from esprof.run.kineto.content import content
from esprof.run.readers.reader import Reader
from esprof.run.reading import memory_limit, run_all
from esprof.run.run import RankMeta, Run, RunMeta, RunWarning, WarningCode
from esprof.run.schema import EVENTS, table

SOURCE = "flight-recorder"
"""`source` of a Run of dumps."""
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,9})|(?<!\d)(\d{1,9})(\.\w+)?$", re.IGNORECASE)
_STACKS_OF_RANK = re.compile(r"^=== Rank (\d{1,9}): .*===$", re.MULTILINE)
_Found = tuple[Path, Rank, Dump]


def _recognises(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return is_dump(file.read(HEAD_BYTES))
    except OSError:  # Reading it will raise the error.
        return False


def _read(paths: Sequence[Path], named: Path, executor: Executor | None) -> Run:
    """Read all dumps. Unreadable ones become warnings, unless all are unreadable."""
    results = run_all(executor, _attempt, paths)
    found = [result for result in results if not isinstance(result, InputError)]
    faults = [result for result in results if isinstance(result, InputError)]
    if not found:
        raise faults[0]
    warnings = [RunWarning("trace-unreadable", str(fault)) for fault in faults]
    return _run_of(_by_rank(found, named), named, warnings)


def _attempt(path: Path) -> _Found | InputError:
    try:
        return path, _rank_in(path), read_dump(path, bytes(content(path, memory_limit())))
    except InputError as error:
        return error


def _rank_in(path: Path) -> Rank:
    """Return the rank in the file name. The dump itself does not contain it."""
    match = _RANK_IN_NAME.search(path.name)
    rank = int(match[1] or match[2]) if match else MAX_RANKS
    if rank >= MAX_RANKS:
        remedy = "Rename it as torch does, such as nccl_trace_rank_0: the dump does not contain its rank."
        raise InputError("has no rank in its name", path=path, remedy=remedy)
    return rank


def _by_rank(found: list[_Found], named: Path) -> dict[Rank, list[tuple[Path, Dump]]]:
    """Return the dumps by rank. Two dumps of one rank must have different backends."""
    by_rank: dict[Rank, list[tuple[Path, Dump]]] = {}
    for path, rank, dump in sorted(found, key=lambda one: one[1]):
        for other, earlier in by_rank.get(rank, []):
            if earlier.backends & dump.backends or not (earlier.backends and dump.backends):
                raise _mixed(named, f"both {other.name} and {path.name} are of rank {rank}")
        by_rank.setdefault(rank, []).append((path, dump))
    worlds = {group.ranks for _, _, dump in found for group in dump.members.values() if group.name == "0"}
    if len(worlds) > 1:
        raise _mixed(named, f"they are of jobs with {' and '.join(str(len(ranks)) for ranks in sorted(worlds))} ranks")
    strangers = sorted(by_rank.keys() - set(*worlds)) if worlds else []
    if strangers:
        raise _mixed(named, f"{readable.ranks(strangers)} are not in the job of the dumps")
    return by_rank


def _mixed(path: Path, how: str) -> InputError:
    remedy = "Name the dumps of one job and one time, one per rank and backend."
    return InputError(f"these dumps are not of one job: {how}", path=path, remedy=remedy)


def _run_of(by_rank: Mapping[Rank, list[tuple[Path, Dump]]], path: Path, warnings: list[RunWarning]) -> Run:
    dumps = {rank: [dump for _, dump in of_rank] for rank, of_rank in by_rank.items()}
    latest = {rank: max(dump.latest_ns for dump in of_rank) for rank, of_rank in dumps.items()}
    written = {rank: max(file.stat().st_mtime_ns for file, _ in of_rank) for rank, of_rank in by_rank.items()}
    seen_ns = {rank: max(latest[rank], written[rank]) for rank in dumps}
    stacks, unread = _server_stacks([file for of_rank in by_rank.values() for file, _ in of_rank])
    snapshots, guessed = snapshots_of(dumps, seen_ns, stacks)
    world = max([max(dumps)] + [rank for one in snapshots.values() for group in one.groups for rank in group.ranks]) + 1
    run_warnings = [*warnings, *unread, *_what_lacks(dumps, guessed, world)]
    logs = {rank: FlightLog(snapshots=(one,), ended=False, counts_steps=False) for rank, one in snapshots.items()}
    meta = RunMeta(
        source=SOURCE,
        world_size=world,
        ranks=tuple(RankMeta(rank=rank, ended=False) for rank in logs),
        groups=_groups(snapshots.values()),
    )
    nothing = table({}, EVENTS)
    return Run(meta, lambda name, _: nothing if name == "events" else None, path, tuple(run_warnings), flight=logs.get)


def _groups(snapshots: Iterable[Snapshot]) -> tuple[Group, ...]:
    """Return the process groups of all ranks, named by their ranks: PyTorch's names differ between ranks."""
    return joined_groups(
        Group(name=group_name(group.ranks), ranks=group.ranks, description=group.description)
        for one in snapshots
        for group in one.groups
    )


def _what_lacks(dumps: Mapping[Rank, list[Dump]], guessed: list[str], world: int) -> Iterable[RunWarning]:
    yield RunWarning(
        "times-of-files", "dumps do not contain the time at which they were taken; the times of the files are used"
    )
    missing = tuple(sorted(set(range(world)) - set(dumps)))
    if missing:
        message = f"no dump of {readable.ranks(missing)}; the job had {world} ranks"
        yield RunWarning(WarningCode.RANK_MISSING, message, missing)
    if guessed:
        which = ", ".join(printable(name) for name in guessed[:8])
        message = f"the ranks of process group {which} are unknown; those that entered a collective in it are used"
        yield RunWarning("group-guessed", message)
    empty = tuple(rank for rank, of_rank in dumps.items() if not any(dump.entries for dump in of_rank))
    if empty:
        message = f"the dump of {readable.ranks(empty)} contains no collective: set TORCH_FR_BUFFER_SIZE=2000"
        yield RunWarning("dump-empty", message, empty)


def _server_stacks(files: Iterable[Path]) -> tuple[dict[Rank, tuple[StackFrame, ...]], list[RunWarning]]:
    """Return the stack of each rank's main thread, from the debug server's latest dump in the folders of `files`."""
    texts = [text for folder in {file.parent for file in files} for text in folder.glob(SERVER_STACKS)]
    if not texts:
        return {}, []
    latest = max(texts, key=lambda text: text.name)
    try:
        text = bytes(content(latest, memory_limit())).decode(errors="replace")
    except InputError as error:
        return {}, [RunWarning("stacks-unreadable", str(error))]
    pieces = _STACKS_OF_RANK.split(text)[1:]
    return {int(rank): main_stack(text) for rank, text in zip(pieces[::2], pieces[1::2], strict=True)}, []


READER = Reader(name="Flight Recorder dumps", recognises=_recognises, read=_read)
