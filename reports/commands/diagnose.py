"""`esprof diagnose`."""

from pathlib import Path

import click

from esprof.reports.answers.store import Kept
from esprof.reports.commands.common import (
    answer_remembered,
    ignore_option,
    json_option,
    max_error_option,
    open_run,
    output_options,
    run_argument,
    status,
    text_of,
    window_option,
)
from esprof.reports.commands.rank_workers import WhereRanksAre, is_final, rank_workers, rank_workers_options
from esprof.reports.pyproject import IgnoreList


@click.command("diagnose")
@run_argument
@max_error_option
@window_option
@ignore_option
@rank_workers_options
@json_option
@output_options("-", "result")
def command(
    sources: tuple[str, ...],
    max_error: float,
    window: int | None,
    ignores: IgnoreList,
    where: WhereRanksAre,
    as_json: bool,
    output: Path,
    force: bool,
) -> None:
    """List what slows a run's steps, and what each fix would save.

    RUN… is one run: a Run directory, or all traces of one job (files, folders or glob patterns).

    The cause that saves most comes first, with its symptoms. `esprof explain ID` describes a finding in detail. A
    pyproject.toml in this folder or a parent folder can ignore findings. They are listed separately, with reason and
    expiry date.

    \b
    esprof diagnose RUN
    esprof diagnose RUN --json -o diagnosis.json
    """

    def compute() -> Kept:
        from esprof.analyzers import diagnose
        from esprof.reports.terminal.diagnosis import draw_diagnosis

        ignored = ignores.parsed()
        run, _ = open_run(sources, window)
        with status("Diagnosing") as tell, rank_workers(run, where, tell) as workers:
            found = diagnose(run, ignored, max_error, workers)
        text = text_of(found, draw_diagnosis, as_json=as_json, output=output)
        return Kept(text, is_final=is_final(found.warnings))

    answer_remembered(compute, sources, as_json=as_json, output=output, force=force)
