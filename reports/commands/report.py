"""`esprof report`."""

from pathlib import Path

import click

from esprof.analyzers import summarize
from esprof.analyzers.ignore import Ignores
from esprof.reports.commands.common import (
    STDOUT,
    check_output,
    ignore_option,
    json_option,
    open_run,
    output_options,
    run_argument,
    status,
    window_option,
    wrote,
)
from esprof.reports.commands.written import answer_written
from esprof.reports.html.page import render_html, write_report


@click.command("report")
@run_argument
@window_option
@ignore_option
@json_option
@output_options("report.html", "page")
def command(
    sources: tuple[str, ...], window: int | None, ignores: Ignores, as_json: bool, output: Path, force: bool
) -> None:
    """Write a self-contained HTML report of a run.

    RUN… is one run: a Run directory, or all traces of one job (files, folders or glob patterns).

    The page works offline. It holds the data that it displays, and no raw traces. With --json, esprof prints the path
    and size of the page, and the warnings of the run.

    \b
    esprof report RUN -o report.html
    """
    check_output(output, "page", as_json=as_json, force=force)
    run, _ = open_run(sources, window)
    with status("Drawing the page"):
        report = summarize(run, ignores)
        if output == STDOUT:
            click.echo(render_html(report))
        else:
            write_report(report, output)
    if output != STDOUT:
        wrote("page", output)
    if as_json:
        answer_written("page", output, run, report.diagnosis.warnings)
