"""`esprof compare`."""

from pathlib import Path

import click

from esprof.core.errors import UsageError
from esprof.reports.commands.common import (
    STDOUT,
    answer_remembered,
    columns_option,
    ignore_option,
    json_option,
    open_run,
    output_options,
    refuse_on_terminal,
    status,
    text_of,
    window_option,
)
from esprof.reports.commands.target import Target, target_options
from esprof.reports.pyproject import IgnoreList

_BY_SUFFIX = {".html": "html", ".md": "markdown", ".json": "json"}


@click.command("compare")
@click.argument("sources", metavar="BEFORE AFTER | A…", nargs=-1, required=True)
@click.option("--anyway", is_flag=True, help="Compare runs of other hardware, world size or versions.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "markdown", "html", "json"]),
    help="Output format. Default: by the name of FILE, which ends in .html, .md or .json; else text.",
)
@target_options
@window_option
@columns_option
@ignore_option
@json_option
@output_options("-", "result")
def command(
    sources: tuple[str, ...],
    anyway: bool,
    style: str | None,
    window: int | None,
    ignores: IgnoreList,
    target: Target,
    as_json: bool,
    output: Path,
    force: bool,
) -> None:
    """Compare two runs: by how much a step differs, and where.

    BEFORE and AFTER are each a Run directory, or a file, folder or glob pattern of the traces of one job.

    The change of a mean step is divided along the critical path. Each part has its interval; a part whose interval
    holds zero is marked as noise. Runs of other hardware, world size or versions are an error (exit code 1), unless
    --anyway.

    A… and B are logs of trainings instead: evaluations in CSV or JSON lines, with steps, seconds and a loss or score
    (--columns step=STEP,time=SECONDS,metric=LOSS names the columns). Steps to the target and seconds of a step are
    listed separately. Trainings that never reach it count as slower than all others.

    \b
    esprof compare old-run new-run
    esprof compare old-run new-run -o changes.html
    esprof compare old-run new-run --format markdown
    esprof compare a/*.csv --with 'b/*.csv' --to-loss 2.5
    """
    if as_json and style not in (None, "text", "json"):
        raise UsageError(f"--json and --format {style} exclude each other")
    if target.is_asked:
        if style not in (None, "text", "json"):
            raise UsageError(f"--format {style} excludes --to-loss and --to-score")
        target.answer(sources, as_json=as_json or style == "json", output=output, force=force)
        return
    before, after = _two(sources)
    style = "json" if as_json else style or _BY_SUFFIX.get(output.suffix, "text")
    if style == "html" and output == STDOUT:
        refuse_on_terminal("page")
    as_json = style == "json"

    def compute() -> str:
        from esprof.analyzers.comparison.compare import compare
        from esprof.reports.html.comparison_page import render_comparison
        from esprof.reports.terminal.comparison import draw_comparison, markdown_comparison

        ignored = ignores.parsed()
        (first, _), (second, _) = open_run([before], window), open_run([after], window)
        with status("Comparing"):
            found = compare(first, second, anyway=anyway, ignores=ignored)
        if style == "markdown":
            return markdown_comparison(found)
        if style == "html":
            return render_comparison(found)
        return text_of(found, draw_comparison, as_json=as_json, output=output)

    # The form may follow from the name of the file, which is no part of the question.
    answer_remembered(compute, [before, after], as_json=as_json, output=output, force=force, style=style)


def _two(sources: tuple[str, ...]) -> tuple[str, str]:
    """BEFORE and AFTER. Raises UsageError."""
    if len(sources) != 2:
        raise UsageError(
            f"BEFORE and AFTER are two runs, not {len(sources)}", remedy="Trainings need --to-loss and --with."
        )
    return sources[0], sources[1]
