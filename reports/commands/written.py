"""The JSON of verbs that write a file or a Run directory."""

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from esprof import Run
from esprof.core.types import Bytes, Rank
from esprof.reports.commands.common import json_text
from esprof.reports.export.run_folder import SharedAnswer, bytes_in
from esprof.run.run import RunWarning


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """`esprof report --json`, `esprof export --json` and `esprof merge --json`."""

    schema: str = "esprof.written/1"
    what: str
    """`page`, `export` or `run`."""
    path: str
    """The path as given on the command line."""
    bytes: Bytes
    """Size of the file, or of all files in the Run directory."""
    world_size: int
    ranks: tuple[Rank, ...]
    """The recorded ranks."""
    missing_ranks: tuple[Rank, ...]
    warnings: tuple[RunWarning, ...]
    shared: SharedAnswer | None = None
    """Of `export --format run`: what was left out, and what was preserved."""


def answer_written(
    what: str, path: Path, run: Run, warnings: Sequence[RunWarning], shared: SharedAnswer | None = None
) -> None:
    """Print JSON on stdout: `what` was written to `path`; its size, ranks and warnings."""
    answer_placed(unwritten(what, run, warnings, shared), path)


def unwritten(what: str, run: Run, warnings: Sequence[RunWarning], shared: SharedAnswer | None = None) -> Written:
    """`what` before it is written: without path and size."""
    return Written(
        what=what,
        path="",
        bytes=0,
        world_size=run.world_size,
        ranks=tuple(run.ranks),
        missing_ranks=run.missing_ranks,
        warnings=tuple(warnings),
        shared=shared,
    )


def answer_placed(written: Written, path: Path) -> None:
    """Print JSON on stdout: `written` is at `path` now, with its size."""
    click.echo(json_text(msgspec.structs.replace(written, path=str(path), bytes=bytes_in(path))))
