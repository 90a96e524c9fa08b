"""`esprof report`."""

from pathlib import Path

import click
import msgspec

from esprof.core.output import write_bytes
from esprof.reports.answers.store import Kept
from esprof.reports.commands.common import (
    STDOUT,
    check_output,
    ignore_option,
    json_option,
    open_run,
    output_options,
    recall,
    run_argument,
    status,
    window_option,
    wrote,
)
from esprof.reports.commands.rank_workers import WhereRanksAre, is_final, rank_workers, rank_workers_options
from esprof.reports.pyproject import IgnoreList


@click.command("report")
@run_argument
@window_option
@ignore_option
@rank_workers_options
@json_option
@output_options("report.html", "page")
def command(
    sources: tuple[str, ...],
    window: int | None,
    ignores: IgnoreList,
    where: WhereRanksAre,
    as_json: bool,
    output: Path,
    force: bool,
) -> None:
    """Write a self-contained HTML report of a run.

    RUN… is one run: a Run directory, or all traces of one job (files, folders or glob patterns).

    The page works offline. It holds the data that it displays, and no raw traces. With --json, esprof prints the path
    and size of the page, and the warnings of the run.

    \b
    esprof report RUN -o report.html
    """
    check_output(output, "page", as_json=as_json, force=force)

    def compute() -> Kept:
        from esprof.analyzers import summarize
        from esprof.reports.commands.written import unwritten
        from esprof.reports.html.page import render_html

        ignored = ignores.parsed()
        run, _ = open_run(sources, window)
        with status("Drawing the page") as tell, rank_workers(run, where, tell) as workers:
            report = summarize(run, ignored, workers)
        about = unwritten("page", run, report.diagnosis.warnings)
        encoded = msgspec.json.encode(about)
        return Kept(render_html(report), about=encoded, is_final=is_final(report.diagnosis.warnings))

    page = recall(compute, sources)
    if output == STDOUT:
        click.echo(page.text)
        return
    write_bytes(output, page.text.encode())
    wrote("page", output)
    if as_json:
        from esprof.reports.commands.written import Written, answer_placed

        answer_placed(msgspec.json.decode(page.about, type=Written), output)
