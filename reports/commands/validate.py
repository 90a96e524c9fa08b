"""`esprof validate`."""

from pathlib import Path

import click

from esprof.core.errors import EXIT_OK, EXIT_REGRESSION
from esprof.reports.answers.store import Kept
from esprof.reports.commands.common import (
    answer_remembered,
    json_option,
    open_run,
    output_options,
    run_argument,
    status,
    text_of,
    window_option,
)


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

    def compute() -> Kept:
        from esprof.analyzers.validity.validate import validate
        from esprof.reports.terminal.validity import draw_validation

        run, _ = open_run(sources, window)
        with status("Validating"):
            found = validate(run)
        text = text_of(found, draw_validation, as_json=as_json, output=output)
        return Kept(text, EXIT_OK if found.whole else EXIT_REGRESSION)

    return answer_remembered(compute, sources, as_json=as_json, output=output, force=force)
