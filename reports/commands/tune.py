"""`esprof tune`."""

import os
import shutil
import sys
from pathlib import Path
from threading import Event, Thread

import click

from esprof.analyzers.advisors.compression.answer import MAX_VNMSE
from esprof.core.errors import EXIT_OK, UsageError
from esprof.core.parent import end_with_parent
from esprof.elastic.plans.tuning_loop import VARIABLE
from esprof.recorder.launcher.child import run_child
from esprof.recorder.launcher.launch import make_room
from esprof.reports.commands.common import answer, job_arguments
from esprof.reports.live.tuning import Tuner, TuningSettings
from esprof.reports.terminal.screen import Screen
from esprof.reports.terminal.tuned import Tuned, draw_round, draw_tuned
from esprof.run import request
from esprof.run.logs import Round

_DEFAULT = TuningSettings()

_MAX_WAIT_FOR_LOOP_S = 5.0
"""How long the loop gets to end once the job has."""


@click.command("tune", context_settings={"allow_interspersed_args": False})
@job_arguments("The Run directory of the job.")
@click.option("-f", "--force", is_flag=True, help="Begin RUN anew where it exists.")
@click.option(
    "--attach", metavar="RUN", type=click.Path(path_type=Path), help="Tune the job that writes RUN; without CMD."
)
@click.option("--with-parent", type=int, metavar="PID", help="End with this process, which has started the command.")
@click.option("--rounds", "most_rounds", type=click.IntRange(0), default=0, metavar="N", help="End after N rounds.")
@click.option(
    "--steps", type=click.IntRange(5), default=_DEFAULT.steps, show_default=True, help="Steps that advice rests on."
)
@click.option(
    "--window", type=click.IntRange(4), default=_DEFAULT.window, show_default=True, help="Steps of a block of a trial."
)
@click.option(
    "--blocks",
    type=click.IntRange(2),
    default=_DEFAULT.blocks,
    show_default=True,
    help="Blocks with the plan in a trial; as many without it come between.",
)
@click.option(
    "--allow",
    "allowed",
    type=click.Choice(["compression"]),
    multiple=True,
    help="What else may be tried: a codec for the gradients, which changes the training's bits.",
)
@click.option(
    "--max-vnmse",
    type=click.FloatRange(0, 1, min_open=True),
    default=MAX_VNMSE,
    show_default=True,
    help="Share of its square that the gradient may lose by a codec.",
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors and warnings.")
@click.option("--json", "as_json", is_flag=True, help="Answer as JSON, to stdout; the job then prints to stderr.")
def command(
    job: tuple[str, ...],
    output: Path,
    force: bool,
    attach: Path | None,
    with_parent: int | None,
    most_rounds: int,
    steps: int,
    window: int,
    blocks: int,
    allowed: tuple[str, ...],
    max_vnmse: float,
    quiet: bool,
    as_json: bool,
) -> int:
    """Run an elastic job, and make its steps shorter while it runs.

    CMD is a job whose script trains by esprof.elastic.ElasticTrainer; the script needs nothing for it. Again and again the
    job tells what its steps take, replay finds which ESTs should run where, and the job tries that in blocks of steps with
    and without it, by turns: it is kept where steps are surely shorter. Then the loop looks on until steps change lastingly.
    No bit of the training depends on that. With --allow compression the job also measures what codecs would make of its
    exchanges. It then tries the codec that gains most, once, and removes it where steps do not get shorter, or where
    gradients lose more than --max-vnmse. Each round is a line on stderr, and of rounds.jsonl in RUN.

    \b
    esprof tune -o RUN -- torchrun --nproc-per-node 4 train.py
    esprof report RUN
    """
    if with_parent is not None:
        end_with_parent(with_parent)
    run = _run_of(job, output, attach, force=force)
    found: list[Round] = []

    def tell(one: Round) -> None:
        found.append(one)
        if not quiet:
            click.echo(draw_round(one, Screen.of(sys.stderr)), err=True)

    stop = Event()
    settings = TuningSettings(
        steps=steps,
        window=window,
        blocks=blocks,
        most_rounds=most_rounds,
        max_vnmse=max_vnmse if "compression" in allowed else 0.0,
    )
    tuner = Tuner(run, settings, stop, tell)
    if attach is not None:
        try:
            tuner.tune()
        except KeyboardInterrupt:  # What there is will be told.
            request.withdraw(run)
        code = EXIT_OK
    else:
        code = _beside(job, run, tuner, stop, stdout=2 if as_json else 1)
    if not quiet or as_json:
        answer(Tuned(run=str(run), rounds=tuple(found)), draw_tuned, as_json=as_json)
    return code


def _run_of(job: tuple[str, ...], output: Path, attach: Path | None, *, force: bool) -> Path:
    """The Run directory, made anew for a job that is to be started. Raises UsageError where there is nothing to tune."""
    if bool(job) == (attach is not None):
        raise UsageError("tune needs either a command, after --, or --attach RUN")
    if attach is None:
        if shutil.which(job[0]) is None:
            raise UsageError(f"cannot run {job[0]!r}: no such command")
        make_room(output, force)
        return output
    if not attach.is_dir():
        raise UsageError(f"there is no Run directory {attach}")
    return attach


def _beside(job: tuple[str, ...], run: Path, tuner: Tuner, stop: Event, stdout: int) -> int:
    """Run the job with the loop beside it; the job's exit code."""

    def loop() -> None:
        try:
            tuner.tune()
        except Exception as fault:  # noqa: BLE001  Whatever is wrong with the loop, the job goes on without it.
            click.echo(f"esprof: error: the job is not tuned any more: {fault}", err=True)

    thread = Thread(target=loop, name="esprof-tune", daemon=True)

    def begin() -> None:
        if thread.ident is None:
            thread.start()

    # It begins while the signals that are meant for the job are blocked: a thread inherits that.
    code = run_child(job, os.environ | {VARIABLE: str(run.absolute())}, stdout=stdout, glance=begin)
    stop.set()
    if thread.ident is not None:
        thread.join(_MAX_WAIT_FOR_LOOP_S)
    request.withdraw(run)
    return code
