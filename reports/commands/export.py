"""`esprof export`."""

import gzip
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import click

from esprof.analyzers.ghost.peers import ghost_schedule
from esprof.analyzers.tracks.content import Exported
from esprof.analyzers.tracks.node_rows import node_rows
from esprof.analyzers.tracks.step_series import StepSeries
from esprof.core.errors import UsageError
from esprof.core.output import atomic_file
from esprof.core.types import Rank
from esprof.replay import Replayed
from esprof.replay.whatif.grammar import parse
from esprof.reports.commands.common import (
    STDOUT,
    check_output,
    json_option,
    max_error_option,
    open_run,
    output_options,
    run_argument,
    status,
    window_option,
    wrote,
)
from esprof.reports.commands.shared_run import RunToShare
from esprof.reports.commands.written import answer_written
from esprof.reports.export.chrome import write_chrome
from esprof.reports.export.event_file import EVENT_FILE, require_tensorboard, write_event_file
from esprof.reports.export.ghost import claim_ghost, write_ghost
from esprof.reports.export.perfetto import write_perfetto
from esprof.reports.export.step_lines import write_step_lines
from esprof.reports.export.tables import write_csv, write_parquet
from esprof.run.run import Run, RunWarning

_FORMATS: dict[str, Callable[[Exported, BinaryIO], None]] = {
    "perfetto": lambda exported, file: write_perfetto(exported.processes(), file),
    "chrome": write_chrome,
    "csv": lambda exported, file: write_csv(node_rows(exported), file, exported.start_ns),
    "parquet": lambda exported, file: write_parquet(node_rows(exported), file),
}
_SERIES: dict[str, Callable[[StepSeries, BinaryIO], None]] = {
    "jsonl": write_step_lines,
    "tensorboard": write_event_file,
}
_GHOST = "ghost"
_RUN = "run"
"""Format of a Run directory: it holds what was recorded, no timelines."""
_TEXT = ("chrome", "csv", "jsonl")
_GZIP = ".gz"


@click.command("export")
@run_argument
@click.option(
    "--format", "form", type=click.Choice([*_FORMATS, *_SERIES, _GHOST, _RUN]), required=True, help="Format of FILE."
)
@click.option(
    "--what-if",
    "scenarios",
    metavar="SPEC",
    multiple=True,
    help="Add the timeline of this scenario, such as network=2x. Repeat the option to add several.",
)
@click.option("--step", metavar="STEP", type=click.IntRange(min=0), help="Export this step only. Default: all steps.")
@click.option("--rank", metavar="RANK", type=click.IntRange(min=0), help="With ghost: the rank that runs for real.")
@click.option("--redact", is_flag=True, help="Replace the names of the job by hashes, to share the file.")
@click.option("--shrink", is_flag=True, help="With --format run: leave out all that the first finding does not need.")
@max_error_option
@window_option
@json_option
@output_options(None, "export", or_folder=True)
def command(
    sources: tuple[str, ...],
    form: str,
    scenarios: tuple[str, ...],
    step: int | None,
    rank: int | None,
    redact: bool,
    shrink: bool,
    max_error: float,
    window: int | None,
    as_json: bool,
    output: Path,
    force: bool,
) -> None:
    """Write a run for Perfetto and other tools, or to share it.

    RUN… is one run: a Run directory, or all traces of one job (files, folders or glob patterns).

    perfetto and chrome have a process for each rank as recorded, as replayed, and in each scenario, with a thread for
    each CPU thread, GPU stream, link and loader worker. Arrows show launches, collectives and waits. The critical path
    is a thread of the process `job`. csv and parquet have a row for each node of the graph in each timeline.

    jsonl and tensorboard have step time, throughput and shares of a step for every step: lines for Weights & Biases, and
    an event file in the folder FILE.

    ghost is a folder with a program that runs your script as one rank of the job on one machine, with replayed peers.

    run is a Run directory, which esprof reads like any other. With --redact it has no name of the job; with --shrink it is
    the smallest run found that has the same first finding, with the step time and the saving within 1 %.

    \b
    esprof export RUN --format perfetto -o run.pftrace     # open it at ui.perfetto.dev
    esprof export RUN --format chrome -o run.json.gz --what-if network=2x
    esprof export RUN --format tensorboard -o logs/esprof  # tensorboard --logdir logs
    esprof export RUN --format ghost --rank 2 -o ghost     # python ghost/run.py train.py ARGUMENTS
    esprof export RUN --format run --shrink --redact -o FOLDER     # for a bug report
    """
    _refuse_unfit(form, scenarios, step, rank, output, shrink=shrink)
    if form == _RUN:
        RunToShare(sources, output, force, redact, shrink, max_error, window).export(as_json=as_json)
        return
    if rank is not None:
        _export_ghost(sources, window, rank, output, as_json=as_json, force=force)
        return
    if form == "tensorboard":
        require_tensorboard()
        output /= EVENT_FILE
    check_output(output, "export", as_json=as_json, force=force)
    run, read_s = open_run(sources, step if window is None else window)
    with status("Replaying"):
        write, warnings = _writer(form, run, read_s, max_error, scenarios, step, redact=redact)
    with status("Writing the export"):
        if output == STDOUT:
            write(sys.stdout.buffer)
            return
        with atomic_file(output) as file:
            _write(write, file, is_packed=output.suffix == _GZIP)
    wrote("export", output)
    if as_json:
        answer_written("export", output, run, warnings)


def _writer(
    form: str, run: Run, read_s: float, max_error: float, scenarios: Sequence[str], step: int | None, *, redact: bool
) -> tuple[Callable[[BinaryIO], None], tuple[RunWarning, ...]]:
    """(what writes the export of a run, warnings about it)."""
    if form in _SERIES:
        series = StepSeries.of(run, max_error, redact=redact)
        return partial(_SERIES[form], series), series.warnings
    exported = Exported.of(Replayed.of(run, read_s, max_error_pct=max_error), scenarios, step, redact=redact)
    return partial(_FORMATS[form], exported), exported.replayed.warnings


def _refuse_unfit(
    form: str, scenarios: Sequence[str], step: int | None, rank: int | None, output: Path, *, shrink: bool
) -> None:
    """Raise UsageError for options that do not go together, before the run is read, which may take minutes."""
    for spec in scenarios:
        parse(spec)
    if output == STDOUT and form not in (*_TEXT, _RUN):
        raise UsageError(f"{form} is no text and cannot be written to stdout", remedy="Name a file with -o.")
    if form not in _FORMATS and (scenarios or step is not None):
        raise UsageError(f"{form} is about all steps and has no timelines", remedy="Leave --what-if and --step out.")
    if shrink and form != _RUN:
        raise UsageError("only a run can be made smaller", remedy="Pass --format run, or leave out --shrink.")
    if (form == _GHOST) != (rank is not None):
        raise UsageError("--format ghost and --rank belong together", remedy="Name the rank that runs for real.")


def _export_ghost(
    sources: Sequence[str], window: int | None, rank: Rank, output: Path, *, as_json: bool, force: bool
) -> None:
    claim_ghost(output, force=force)
    run, read_s = open_run(sources, window)
    with status("Replaying"):
        replayed = Replayed.of(run, read_s)
        schedule = ghost_schedule(replayed, rank)
    write_ghost(schedule, output, force=force)
    wrote("export", output)
    if as_json:
        answer_written("export", output, run, replayed.warnings)


def _write(write: Callable[[BinaryIO], None], file: BinaryIO, *, is_packed: bool) -> None:
    if not is_packed:
        write(file)
        return
    with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
        write(cast(BinaryIO, packed))
