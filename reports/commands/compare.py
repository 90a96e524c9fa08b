"""`esprof compare`."""

from pathlib import Path

import click

from esprof.analyzers.comparison.compare import compare
from esprof.analyzers.ignore import Ignores
from esprof.core.errors import UsageError
from esprof.reports.commands.common import (
    answer,
    columns_option,
    ignore_option,
    json_option,
    open_run,
    output_options,
    status,
)
from esprof.reports.terminal.comparison import draw_comparison, markdown_comparison


@click.command("compare")
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@click.option("--anyway", is_flag=True, help="Compare runs of other hardware, world size or versions.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "markdown", "json"]),
    default="text",
    show_default=True,
    help="Output format.",
)
@columns_option
@ignore_option
@json_option
@output_options("-", "result")
def command(
    before: str,
    after: str,
    anyway: bool,
    style: str,
    ignores: Ignores,
    as_json: bool,
    output: Path,
    force: bool,
) -> None:
    """Compare two runs: by how much a step differs, and where.

    BEFORE and AFTER are each a Run directory, or a file, folder or glob pattern of the traces of one job.

    The change of a mean step is divided along the critical path. Each part has its interval; a part whose interval
    holds zero is marked as noise. Runs of other hardware, world size or versions are an error (exit code 1), unless
    --anyway.

    \b
    esprof compare old-run new-run
    esprof compare old-run new-run --format markdown
    """
    if as_json and style not in ("text", "json"):
        raise UsageError(f"--json and --format {style} exclude each other")
    (first, _), (second, _) = open_run([before]), open_run([after])
    with status("Comparing"):
        found = compare(first, second, anyway=anyway, ignores=ignores)
    answer(
        found,
        lambda value, screen: markdown_comparison(value) if style == "markdown" else draw_comparison(value, screen),
        as_json=as_json or style == "json",
        output=output,
        force=force,
    )
