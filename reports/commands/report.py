"""`esprof report`."""

from pathlib import Path

import click

from esprof.analyzers import report_run
from esprof.analyzers.ignore import Ignores
from esprof.output import claim
from esprof.reports.commands.common import (
    STDOUT,
    ignore_option,
    open_run,
    output_options,
    refuse_on_terminal,
    run_argument,
    status,
    window_option,
    wrote,
)
from esprof.reports.html.page import render_html, write_report


@click.command("report")
@run_argument
@window_option
@ignore_option
@output_options("report.html", "page")
def command(sources: tuple[str, ...], window: int | None, ignores: Ignores, output: Path, force: bool) -> None:
    """Write one self-contained HTML page about a run.

    The page needs no network and holds no more than it shows: it can be kept, attached and sent.
    """
    if output == STDOUT:
        refuse_on_terminal("page")
    else:
        claim(output, force=force)
    run, _ = open_run(sources, window)
    with status("Drawing the page"):
        report = report_run(run, ignores)
        if output == STDOUT:
            click.echo(render_html(report))
        else:
            write_report(report, output)
    if output != STDOUT:
        wrote("page", output)
