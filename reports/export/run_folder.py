"""Write a Run to share, and say what became of it."""

import glob
from collections.abc import Sequence
from pathlib import Path

import msgspec

from esprof.analyzers.sharing.shared import SharedRun
from esprof.analyzers.sharing.shrink import LeftOut
from esprof.analyzers.sharing.verdict import SharedVerdict
from esprof.core.errors import OutputError
from esprof.core.output import atomic_folder
from esprof.core.types import Bytes
from esprof.run.directory import read_run
from esprof.run.files import is_complete

_OF_RUN = (".json", ".jsonl", ".parquet")
"""Suffixes of the files of a Run."""


class SharedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What `esprof export --format run` wrote, in `Written`."""

    redacted: bool
    changed_from: str | None
    """The verdict of the original, if it rests on names that were replaced; None if not."""
    bytes_before: Bytes
    """Size of the files that the run was read from."""
    left_out: tuple[LeftOut, ...]
    preserved: str | None
    """What a smaller or redacted run preserves of the diagnosis; None if it has none."""
    saving_us: float | None
    """Saving of the first finding in the written run; so is `step_us`."""
    step_us: float | None


def write_shared(
    shared: SharedRun,
    out: Path,
    sources: Sequence[str],
    *,
    redacted: bool,
    max_error_pct: float,
) -> SharedAnswer:
    """Write the Run directory `out`, read it back, and compare its diagnosis.

    Raises OutputError, and leaves nothing, if it cannot be written or has another verdict than the original.
    """
    with atomic_folder(out, private=True) as folder:
        shared.contents.write(folder)
        found = shared.verdict_of(read_run(folder), max_error_pct)
        if shared.verdict is not None and found is not None and not shared.verdict.is_kept_by(found):
            raise OutputError(
                f"is not written, as its diagnosis would be {found.preserved}, and not {shared.verdict.preserved}",
                path=out,
                remedy="Report this as a bug of esprof.",
            )
    return _answer(shared, found, sources, redacted=redacted)


def _answer(shared: SharedRun, found: SharedVerdict | None, sources: Sequence[str], *, redacted: bool) -> SharedAnswer:
    return SharedAnswer(
        redacted=redacted,
        changed_from=None if shared.verdict_changed_from is None else shared.verdict_changed_from.preserved,
        bytes_before=sum(map(bytes_in, sources)),
        left_out=shared.left_out,
        preserved=None if shared.verdict is None else shared.verdict.preserved,
        saving_us=None if found is None else found.saving_us,
        step_us=None if found is None else found.step_us,
    )


def bytes_in(source: str | Path) -> Bytes:
    """Bytes of a file, of the files of a Run, of all files in another folder, or of all that match a pattern; 0 for what is
    none of them."""
    paths = [Path(source)] if Path(source).exists() else map(Path, glob.glob(str(source)))
    return sum(file.stat().st_size for path in paths for file in _files(path))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = [file for file in path.rglob("*") if file.is_file()]
    # A report may lie in the folder of a Run.
    return [file for file in found if file.suffix in _OF_RUN] if is_complete(path) else found
