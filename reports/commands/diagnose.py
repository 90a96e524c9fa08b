"""`esprof diagnose`."""

from pathlib import Path

import click

from esprof.analyzers import diagnose
from esprof.analyzers.ignore import Ignores
from esprof.reports.commands.common import (
    answer,
    ignore_option,
    json_option,
    max_error_option,
    open_run,
    output_options,
    run_argument,
    status,
    window_option,
)
from esprof.reports.terminal.diagnosis import draw_diagnosis


@click.command("diagnose")
@run_argument
@max_error_option
@window_option
@ignore_option
@json_option
@output_options("-", "answer")
def command(
    sources: tuple[str, ...],
    max_error: float,
    window: int | None,
    ignores: Ignores,
    as_json: bool,
    output: Path,
    force: bool,
) -> None:
    """Name what the step time is lost to, and what it would gain.

    The finding that costs most time comes first; `esprof explain ID` says more about one. Findings that pyproject.toml
    ignores, with a reason and a last day, are listed separately.
    """
    run, _ = open_run(sources, window)
    with status("Diagnosing"):
        found = diagnose(run, ignores, max_error)
    answer(found, draw_diagnosis, as_json=as_json, output=output, force=force)
