"""`esprof diagnose`."""

from pathlib import Path

import click

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
from esprof.reports.pyproject import IgnoreList


@click.command("diagnose")
@run_argument
@max_error_option
@window_option
@ignore_option
@json_option
@output_options("-", "result")
def command(
    sources: tuple[str, ...],
    max_error: float,
    window: int | None,
    ignores: IgnoreList,
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

    def compute() -> str:
        from esprof.analyzers import diagnose
        from esprof.reports.terminal.diagnosis import draw_diagnosis

        ignored = ignores.parsed()
        run, _ = open_run(sources, window)
        with status("Diagnosing"):
            found = diagnose(run, ignored, max_error)
        return text_of(found, draw_diagnosis, as_json=as_json, output=output)

    answer_remembered(compute, sources, as_json=as_json, output=output, force=force)
