"""`esprof ops`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from esprof.analyzers.ops.sort import By, Sort
from esprof.core.errors import InputError, UsageError
from esprof.core.types import Rank
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

if TYPE_CHECKING:
    from esprof.run.run import Run


@click.command("ops")
@run_argument
@click.option(
    "--sort",
    type=click.Choice(get_args(Sort)),
    help="Sort by this column, largest first. Default: own-gpu, or own-cpu without a GPU.",
)
@click.option(
    "--by",
    type=click.Choice(get_args(By)),
    default="operation",
    help="With module: list modules only, by total time.",
)
@click.option("--top", metavar="N", type=click.IntRange(min=1), default=20, show_default=True, help="Number of rows.")
@click.option(
    "--rank", metavar="RANK", type=click.IntRange(min=0), help="Show this rank only. Default: the mean of all ranks."
)
@click.option(
    "--by-shape", is_flag=True, help="Show a row for each combination of input shapes (needs `record --shapes`)."
)
@click.option("--filter", "pattern", metavar="REGEX", help="Show only names that match this regular expression.")
@click.option(
    "--flame",
    is_flag=True,
    help="Print the sampled Python stacks instead, in the format of flamegraph.pl and speedscope.",
)
@window_option
@json_option
@output_options("-", "result")
def command(
    sources: tuple[str, ...],
    sort: Sort | None,
    by: By,
    top: int,
    rank: int | None,
    by_shape: bool,
    pattern: str | None,
    flame: bool,
    window: int | None,
    as_json: bool,
    output: Path,
    force: bool,
) -> None:
    """List operators and modules by own and total time.

    RUN… is one run: a Run directory, or all traces of one job (files, folders or glob patterns).

    Like key_averages() of torch.profiler: times are per steady-state step, averaged over steps and ranks. Own CPU
    time (self time of torch.profiler) excludes the operators called inside. Own GPU time is that of the kernels and
    copies that an operator launched itself; total GPU time includes those of the operators in it. Bandwidths
    of collectives, MFU and kinds of attention follow.

    \b
    esprof ops RUN --by module --top 50     # with their backward pass
    esprof ops RUN --flame -o stacks.txt
    """
    matching = _pattern(pattern)
    if flame and (as_json or sort or by != "operation" or by_shape or pattern is not None):
        raise UsageError("--flame cannot be combined with --json, --sort, --by, --by-shape or --filter")

    def compute() -> str:
        from esprof.analyzers.ops.over_ranks import Asked, ops_run
        from esprof.reports.terminal.ops import render_text

        run, _ = open_run(sources, window)
        if flame:
            return stacks_of(run, rank)
        with status("Adding up operations"):
            found = ops_run(run, Asked(sort, top, rank, by_shape, matching, by))
        return text_of(found, render_text, as_json=as_json, output=output)

    answer_remembered(compute, sources, as_json=as_json, output=output, force=force)


def stacks_of(run: "Run", rank: Rank | None) -> str:
    """The sampled stacks of `rank`, or of all ranks.

    Raises UsageError if the run lacks the rank, and InputError if no stacks were sampled.
    """
    from esprof.analyzers.ops.over_ranks import check_rank
    from esprof.analyzers.samples.flame import collapsed
    from esprof.analyzers.samples.job_samples import JobSamples
    from esprof.analyzers.steps.job_steps import JobSteps

    if rank is not None:
        check_rank(run, rank)
    found = collapsed(JobSamples(JobSteps(run)), rank)
    if not found:
        of = "the run" if rank is None else f"rank {rank}"
        raise InputError(f"{of} holds no samples of Python stacks", path=run.path, remedy="`esprof record` takes them.")
    return found.removesuffix("\n")


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text is not None else None
    except re.error as error:
        raise UsageError(f"--filter {text!r} is not a regular expression: {error}") from error
