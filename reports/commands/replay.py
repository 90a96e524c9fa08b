"""`esprof replay`."""

from pathlib import Path

import click

from esprof.reports.answers.store import Kept
from esprof.reports.commands.common import (
    answer_remembered,
    json_option,
    max_error_option,
    open_run,
    output_options,
    run_argument,
    status,
    text_of,
    window_option,
)
from esprof.reports.commands.rank_workers import WhereRanksAre, is_final, rank_workers, rank_workers_options


@click.command("replay")
@run_argument
@click.option(
    "--what-if",
    "scenarios",
    metavar="SPEC",
    multiple=True,
    help=(
        "Predict this scenario, such as gpu=2x, network=2x, data=0 or straggler=fix. Terms joined by commas "
        "are applied together. Repeat the option to predict several scenarios."
    ),
)
@max_error_option
@window_option
@rank_workers_options
@json_option
@output_options("-", "result")
def command(
    sources: tuple[str, ...],
    scenarios: tuple[str, ...],
    max_error: float,
    window: int | None,
    where: WhereRanksAre,
    as_json: bool,
    output: Path,
    force: bool,
) -> None:
    """Replay a run's steps and predict what a change would save.

    RUN… is one run: a Run directory, or all traces of one job (files, folders or glob patterns).

    Step times and predictions are of steps under the profiler. The step time without the profiler is shown as well,
    where it is known.

    \b
    esprof replay RUN
    esprof replay RUN --what-if network=2x --what-if gpu=2x,cpu=2x
    """

    def compute() -> Kept:
        from esprof import replay
        from esprof.replay.skeleton.large import answered
        from esprof.replay.whatif.grammar import parse
        from esprof.reports.terminal.replay import draw_replay

        for spec in scenarios:
            parse(spec)  # Report a typo before reading the run, which may take minutes.
        run, read_s = open_run(sources, window)
        with status("Replaying") as tell, rank_workers(run, where, tell) as workers:
            answer = answered(run, lambda found: replay.answer(found, scenarios), read_s, max_error, workers)
        text = text_of(answer, draw_replay, as_json=as_json, output=output)
        return Kept(text, is_final=is_final(answer.warnings))

    answer_remembered(compute, sources, as_json=as_json, output=output, force=force)
