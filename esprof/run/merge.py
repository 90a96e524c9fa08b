"""Merge the Runs that several launchers recorded of one job, each on its host or for its rank.

All times are on the clock of rank 0 already (`esprof.run.clocks.by_exchange`), so the tables are copied unchanged. The
residual clock error is corrected when the graph is built (`esprof.run.clocks.by_collectives`).
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from esprof.core import readable
from esprof.core.errors import InputError, OutputError
from esprof.core.output import atomic_folder
from esprof.core.types import NS_PER_S, Ns, Rank
from esprof.run import files
from esprof.run.directory import SCHEMAS, claim_run, read_run, write_flight, write_meta, write_probes
from esprof.run.files import table_path
from esprof.run.groups import joined_groups
from esprof.run.load import load
from esprof.run.probes import joined
from esprof.run.run import RankMeta, Run, RunMeta, RunWarning, WarningCode

_CLOCKS_APART_NS = 10 * NS_PER_S
"""Longest time between the end of one host's Run and the start of another, ns: no clock is wrong by more."""


def merge(sources: Sequence[Path], out: Path, *, force: bool = False) -> Run:
    """Write the Run `out` from the Runs `sources`, each a Run directory or a folder of them (`part-00000`, …).

    Incomplete Runs are finished first. With `force` an older Run at `out` is replaced. Raises InputError if the Runs are
    of different jobs or a job is still running, and OutputError if `out` cannot be written.
    """
    paths = [part for source in sources for part in _parts(source)]
    _keep_sources(out, sources)
    claim_run(out, force=force)
    runs = {path: _finished(path) for path in paths}
    _refuse_strangers(runs)
    with atomic_folder(out, private=True) as folder:
        _write(runs, folder)
    return read_run(out)


def _parts(source: Path) -> list[Path]:
    """Return `source` itself if it is a Run, otherwise the Runs in that folder. Raises InputError if there is none."""
    if files.is_complete(source) or (source / files.RAW).exists():
        return [source]
    parts = sorted(part for part in source.glob(files.PARTS) if part.is_dir())
    if not parts:
        remedy = "Name Run directories, or the folder of `part-…` directories that `esprof record` wrote."
        raise InputError("is not a Run" if source.exists() else "does not exist", path=source, remedy=remedy)
    return parts


def _keep_sources(out: Path, sources: Sequence[Path]) -> None:
    whole = out.resolve()
    for source in sources:
        if source.resolve().is_relative_to(whole) or whole.is_relative_to(source.resolve()):
            raise OutputError(f"overlaps with the input {source}", path=out, remedy="Choose another name.")


def _finished(path: Path) -> Run:
    run = load(path)
    if not files.is_complete(path):
        why = next(
            (warning.message for warning in run.warnings if warning.code == WarningCode.STILL_RUNNING),
            "it is incomplete",
        )
        raise InputError(f"cannot be merged yet: {why}", path=path, remedy="Merge after the job has ended.")
    return run


def _refuse_strangers(runs: dict[Path, Run]) -> None:
    """Raise InputError if the Runs are of different jobs."""
    worlds = {run.world_size for run in runs.values()}
    if len(worlds) > 1:
        raise _not_one_job(f"their world sizes are {', '.join(map(str, sorted(worlds)))}")
    of_rank: dict[Rank, Path] = {}
    for path, run in runs.items():
        for meta in run.meta.ranks:
            if meta.rank in of_rank:
                raise _not_one_job(f"rank {meta.rank} is in both {of_rank[meta.rank]} and {path}")
            of_rank[meta.rank] = path
    spans = {path: span for path, run in runs.items() if (span := _span(run)) is not None}
    if not spans:
        return
    latest, earliest = max(spans, key=lambda path: spans[path][0]), min(spans, key=lambda path: spans[path][1])
    pause_ns = spans[latest][0] - spans[earliest][1]
    if pause_ns > _CLOCKS_APART_NS:
        raise _not_one_job(f"{latest} starts {readable.duration(pause_ns)} after the end of {earliest}")


def _not_one_job(why: str) -> InputError:
    return InputError(f"these runs are not of one job: {why}", remedy="Name the runs of one job, each once.")


def _span(run: Run) -> tuple[Ns, Ns] | None:
    """Start of the first step and end of the last one, over all ranks; None without any steps."""
    tables = [steps for meta in run.meta.ranks if len(steps := run.steps(meta.rank))]
    if not tables:
        return None
    starts, ends = zip(*((t.ints("start_ns"), t.ints("start_ns") + t.ints("dur_ns")) for t in tables), strict=True)
    return int(min(start.min() for start in starts)), int(max(end.max() for end in ends))


def _write(runs: dict[Path, Run], out: Path) -> None:
    for path, run in runs.items():
        for meta in run.meta.ranks:
            for name in SCHEMAS:
                _copy(path, table_path(path, name, meta.rank), table_path(out, name, meta.rank))
            write_flight(out, meta.rank, run.flight(meta.rank))
    probes = [run.probes for run in runs.values() if run.probes is not None]
    if probes:
        write_probes(out, joined(probes))
    write_meta(out, _joined(list(runs.values())))


def _copy(run: Path, table: Path, to: Path) -> None:
    """Copy a table, readable by its owner only; skip a missing side table.

    Raises InputError for a link to a file that is not of the Run: whoever gets the whole Run would get that file.
    """
    if not table.resolve().is_relative_to(run.resolve()):
        raise InputError("is a link that leads out of the run", path=table, remedy="Replace it by the file itself.")
    if table.is_file():
        to.parent.mkdir(mode=0o700, exist_ok=True)
        to.touch(mode=0o600)
        shutil.copyfile(table, to)


def _joined(runs: Sequence[Run]) -> RunMeta:
    metas = [run.meta for run in runs]
    ranks = sorted((rank for meta in metas for rank in meta.ranks), key=lambda rank: rank.rank)
    leading = min(metas, key=lambda meta: meta.ranks[0].rank)
    versions = {name: version for meta in metas for name, version in meta.versions.items()} | leading.versions
    codes = [meta.exit_code for meta in metas if meta.exit_code is not None]
    return msgspec.structs.replace(
        leading,
        created_ns=min((meta.created_ns for meta in metas if meta.created_ns is not None), default=None),
        exit_code=next((code for code in codes if code), 0 if codes else None),
        versions=versions,
        ranks=tuple(ranks),
        groups=joined_groups(group for meta in metas for group in meta.groups),
        warnings=tuple(_warnings(runs, ranks)),
    )


def _warnings(runs: Sequence[Run], ranks: Sequence[RankMeta]) -> Iterator[RunWarning]:
    """Yield the warnings of the merged Run: a rank that one Run lacks may be in another."""
    here = {rank.rank for rank in ranks}
    named: set[Rank] = set()
    # A broken side table is copied unchanged, and reported whenever the Run is opened.
    for warning in dict.fromkeys(w for run in runs for w in run.warnings if w.code != WarningCode.TABLE_UNREADABLE):
        if warning.code != WarningCode.RANK_MISSING or here.isdisjoint(warning.ranks):
            named.update(warning.ranks)
            yield warning
    missing = tuple(sorted(set(range(runs[0].world_size)) - here - named))
    if missing:
        yield RunWarning(WarningCode.RANK_MISSING, f"nothing was recorded of {readable.ranks(missing)}", missing)
    unread = tuple(rank.rank for rank in ranks if rank.clock_residual_ns is None)
    if unread and len({rank.host for rank in ranks}) > 1:
        message = (
            f"{readable.ranks(unread)}: the clock was not compared with that of rank 0; collectives alone align it"
        )
        yield RunWarning("clock-unknown", message, unread)
