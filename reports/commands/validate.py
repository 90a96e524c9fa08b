"""`esprof validate`."""

from pathlib import Path

import click

from esprof.analyzers.validity.validate import validate
from esprof.core.errors import EXIT_OK, EXIT_REGRESSION
from esprof.reports.commands.common import (
    answer,
    json_option,
    open_run,
    output_options,
    run_argument,
    status,
    window_option,
)
from esprof.reports.terminal.validity import draw_validation


@click.command("validate")
@run_argument
@window_option
@json_option
@output_options("-", "result")
def command(sources: tuple[str, ...], window: int | None, as_json: bool, output: Path, force: bool) -> int:
    """Tell whether a run is whole, and what is declined on it.

    RUN… is one run: a Run directory, or all traces of one job (files, folders or glob patterns).

    All files are read completely. The run is replayed, and an example of each what-if term is predicted, so that a
    term is listed here if and only if it is declined. Data that was not recorded is listed with what needs it.

    Exit codes: 0 the run is whole, 1 it is unreadable, 3 a rank is missing or a file is broken.

    \b
    esprof validate RUN
    esprof validate traces/ --json
    """
    run, _ = open_run(sources, window)
    with status("Validating"):
        found = validate(run)
    answer(found, draw_validation, as_json=as_json, output=output, force=force)
    return EXIT_OK if found.whole else EXIT_REGRESSION
