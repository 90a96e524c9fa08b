"""Kineto traces (`torch.profiler`), one file per rank, and the execution traces of the same steps."""

import re
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from itertools import count
from pathlib import Path

from esprof.core import readable
from esprof.core.errors import InputError
from esprof.core.text import printable
from esprof.core.types import Rank
from esprof.run.execution.chakra import read_chakra
from esprof.run.execution.pytorch import is_execution_trace, read_execution_trace
from esprof.run.execution.trace import ExecutionTrace
from esprof.run.groups import MAX_RANKS, joined_groups
from esprof.run.kineto.reader import Trace, read_traces
from esprof.run.readers.reader import Reader
from esprof.run.reading import run_all
from esprof.run.run import RankMeta, Run, RunMeta, RunWarning, WarningCode
from esprof.run.schema import Table

_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,9})", re.IGNORECASE)
_CHAKRA = ".et"
_ASCEND = "_ascend_pt"
"""Ends the name of the folder that torch_npu writes for a rank."""
_SUFFIXES = (".json", *(f".json.{ending}" for ending in ("gz", "zst", "xz", "bz2", "lz4")))


def _recognises(path: Path) -> bool:
    return path.name.endswith((*_SUFFIXES, _CHAKRA))


def _read(paths: Sequence[Path], named: Path, executor: Executor | None) -> Run:
    traces = [path for path in paths if path.suffix != _CHAKRA and not is_execution_trace(path)]
    if not traces:
        raise InputError(
            "is an execution trace: it has operations and tensors, but no times",
            path=named,
            remedy="Record both together and name both: torch.profiler.profile(execution_trace_observer=…), "
            "then export_chrome_trace.",
        )
    twins, faults = _twins([path for path in paths if path not in traces])
    # A single file is read in this thread, so that Ctrl-C stops it.
    alone = len(traces) == 1 and executor is None
    results = [_attempt(traces[0], twins)] if alone else run_all(executor, _attempt, traces, [twins] * len(traces))
    run = run_of_results([one for result in results for one in result], named)
    used = {one[1].twin for result in results for one in result if not isinstance(one, InputError)}
    unused = [twin.name for twin in twins if twin.name not in used]
    texts = [*map(str, faults), *(f"{printable(name)} was left out: it is of none of the traces" for name in unused)]
    run.warnings += tuple(RunWarning("execution-trace-left-out", text) for text in texts)
    return run


def _twins(paths: Sequence[Path]) -> tuple[list[ExecutionTrace], list[InputError]]:
    """(the execution traces; errors of unreadable ones)."""
    twins, faults = [], []
    for path in paths:
        try:
            if path.suffix == _CHAKRA:
                twins.append(read_chakra(path).execution_trace())
            else:
                twins.append(replace(read_execution_trace(path), rank=_rank_in_name(path)))
        except InputError as error:
            faults.append(error)
    return twins, faults


def run_of_results(results: Sequence[tuple[Path, Trace] | InputError], named: Path, source: str = "kineto") -> Run:
    """The Run of the traces in files. Unreadable files become warnings, unless all are unreadable."""
    traces = [one for one in results if not isinstance(one, InputError)]
    faults = [one for one in results if isinstance(one, InputError)]
    if not traces:
        raise faults[0]
    return _run_of(traces, named, [RunWarning("trace-unreadable", str(fault)) for fault in faults], source)


def _attempt(file: Path, twins: Sequence[ExecutionTrace]) -> list[tuple[Path, Trace] | InputError]:
    try:
        return [(file, trace) for trace in read_traces(file, twins)]
    except InputError as error:
        return [error]


def _run_of(traces: list[tuple[Path, Trace]], path: Path, warnings: list[RunWarning], source: str) -> Run:
    by_rank = _by_rank(traces, path, warnings)
    _refuse_other_times(by_rank, path)
    world = max([trace.world_size or 0 for trace in by_rank.values()] + [max(by_rank) + 1])
    missing = tuple(sorted(set(range(world)) - set(by_rank)))
    if missing:
        message = f"no trace of {readable.ranks(missing)}; the job had {world} ranks"
        warnings.append(RunWarning(WarningCode.RANK_MISSING, message, missing))
    for rank, trace in by_rank.items():
        warnings.extend(RunWarning(w.code, f"rank {rank}: {w.message}", (rank,)) for w in trace.warnings)
    meta = RunMeta(
        source=source,
        versions=next(iter(by_rank.values())).versions,
        world_size=world,
        ranks=tuple(_rank_meta(rank, trace) for rank, trace in sorted(by_rank.items())),
        groups=joined_groups(group for trace in by_rank.values() for group in trace.groups),
    )

    def read(name: str, rank: Rank) -> Table | None:
        return {"events": by_rank[rank].events, "steps": by_rank[rank].steps}.get(name)

    return Run(meta, read, path, tuple(warnings))


def _by_rank(traces: list[tuple[Path, Trace]], path: Path, warnings: list[RunWarning]) -> dict[Rank, Trace]:
    worlds = {trace.world_size for _, trace in traces if trace.world_size is not None}
    if len(worlds) > 1:
        raise _mixed(path, f"their world sizes are {', '.join(map(str, sorted(worlds)))}")
    found: dict[Rank, tuple[Path, Trace]] = {}
    unknown = []
    for file, trace in traces:
        rank = _known_rank(file, trace)
        if rank is None:
            unknown.append((file, trace))
        elif rank in found:
            raise _mixed(path, f"both {found[rank][0].name} and {file.name} are of rank {rank}")
        else:
            found[rank] = (file, trace)
    free = (rank for rank in count() if rank not in found)
    for (file, trace), rank in zip(unknown, free, strict=False):
        found[rank] = (file, trace)
        if len(traces) > 1:
            message = f"{printable(file.name)} does not name its rank; rank {rank} is assumed"
            warnings.append(RunWarning("rank-guessed", message, (rank,)))
    return {rank: trace for rank, (_, trace) in sorted(found.items())}


def _known_rank(file: Path, trace: Trace) -> Rank | None:
    """Return the rank according to the trace, or else to its file name; None if unknown."""
    return trace.rank if trace.rank is not None else _rank_in_name(file)


def _rank_in_name(file: Path) -> Rank | None:
    """The rank in the name of a file, or in that of the folder of a rank in which torch_npu writes it."""
    names = [file.name, *(folder.name for folder in file.parents if folder.name.endswith(_ASCEND))]
    match = next(filter(None, map(_RANK_IN_NAME.search, names)), None)
    return int(match.group(1)) if match and int(match.group(1)) < MAX_RANKS else None


def _refuse_other_times(by_rank: dict[Rank, Trace], path: Path) -> None:
    """Raise InputError for traces that start more than an hour apart: no clock error explains that."""
    hour_ns = 3_600_000_000_000
    starts = {rank: int(trace.events.ints("start_ns").min()) for rank, trace in by_rank.items()}
    first, last = min(starts, key=starts.__getitem__), max(starts, key=starts.__getitem__)
    if starts[last] - starts[first] > hour_ns:
        raise _mixed(path, f"ranks {first} and {last} were recorded more than an hour apart")


def _mixed(path: Path, how: str) -> InputError:
    return InputError(
        f"these traces are not of one run: {how}",
        path=path,
        remedy="Name the files of one run and one window, one per rank.",
    )


def _rank_meta(rank: Rank, trace: Trace) -> RankMeta:
    device = trace.devices[0] if trace.devices else None
    return RankMeta(
        rank=rank, host=trace.host, device=device, accelerators=len(trace.devices) or None, events=len(trace.events)
    )


READER = Reader(name="Kineto", recognises=_recognises, read=_read)
