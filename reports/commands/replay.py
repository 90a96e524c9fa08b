"""`esprof replay`."""

from pathlib import Path

import click

from esprof import replay
from esprof.replay.whatif.grammar import parse
from esprof.reports.commands.common import (
    answer,
    json_option,
    max_error_option,
    open_run,
    output_options,
    run_argument,
    status,
    window_option,
)
from esprof.reports.terminal.replay import draw_replay


@click.command("replay")
@run_argument
@click.option(
    "--what-if",
    "scenarios",
    metavar="SPEC",
    multiple=True,
    help="A scenario, such as gpu=2x, network=2x, data=0, straggler=fix, or terms joined by commas. Repeatable.",
)
@max_error_option
@window_option
@json_option
@output_options("-", "answer")
def command(
    sources: tuple[str, ...],
    scenarios: tuple[str, ...],
    max_error: float,
    window: int | None,
    as_json: bool,
    output: Path,
    force: bool,
) -> None:
    """Replay a run's step time, and ask what would change it.

    All times but one are those of steps under the profiler, and so are the predictions; what a step takes without it is
    said beside them.

    \b
    esprof replay RUN
    esprof replay RUN --what-if network=2x --what-if gpu=2x,cpu=2x
    """
    for spec in scenarios:
        parse(spec)  # A slip of the pen is told before minutes go into reading the run.
    run, read_s = open_run(sources, window)
    with status("Replaying"):
        replayed = replay.answer(replay.Replayed.of(run, read_s, max_error_pct=max_error), scenarios)
    answer(replayed, draw_replay, as_json=as_json, output=output, force=force)
