"""`esprof jobs`."""

import math
from pathlib import Path

import click

from esprof.core.errors import UsageError
from esprof.reports.commands.common import answer, json_option, output_options, status


@click.command("jobs")
@click.argument("log", metavar="LOG", type=click.Path(path_type=Path))
@click.option(
    "--size",
    "sizes",
    metavar="GPUS=HOURS",
    multiple=True,
    help="A number of GPUs that a job could ask for, and how long it then trains. Give at least two.",
)
@json_option
@output_options("-", "result")
def command(log: Path, sizes: tuple[str, ...], as_json: bool, output: Path, force: bool) -> None:
    """Summarise a cluster's job log: waits, GPU time, gang sizes.

    LOG is a job log of Philly, Helios, Acme or Alibaba PAI, or in one of their formats (docs/how-to/job-logs.md). The
    answer has the queueing delay by number of GPUs and servers, and the share of GPU time by number of GPUs and final
    state. It lists what the log lacks.

    With --size, it advises with how many GPUs a job completes soonest: the wait of jobs of its size plus its training.

    \b
    esprof jobs cluster_log.csv
    esprof jobs cluster_log.csv --size 1=40 --size 4=11 --size 16=3.5
    """
    hours = dict(map(_size, sizes))
    if sizes and len(hours) < 2:
        raise UsageError("--size needs at least two numbers of GPUs to choose from")

    from esprof.analyzers.jobs.read import read_log
    from esprof.analyzers.jobs.study import study
    from esprof.reports.terminal.jobs import draw_jobs

    with status("Reading the job log"):
        found = study(read_log(log), hours)
    answer(found, draw_jobs, as_json=as_json, output=output, force=force)


def _size(text: str) -> tuple[int, float]:
    """Read `4=11`: GPUs and hours. Raises UsageError."""
    gpus, _, hours = text.partition("=")
    try:
        size, time = int(gpus), float(hours)
    except ValueError:
        size, time = 0, 0.0
    if size < 1 or not 0 < time < math.inf:
        raise UsageError(f"--size {text!r} is not GPUS=HOURS", remedy="Write --size 4=11 for 11 hours on 4 GPUs.")
    return size, time
