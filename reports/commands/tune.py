"""`esprof tune`."""

import os
import shutil
import sys
from pathlib import Path
from threading import Event, Thread

import click

from esprof.analyzers.advisors.compression.answer import MAX_VNMSE
from esprof.core.errors import EXIT_OK, UsageError
from esprof.core.processes import end_with_parent
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
"""How long to wait for the loop after the job has ended."""


@click.command("tune", context_settings={"allow_interspersed_args": False})
@job_arguments("Run directory of the job.")
@click.option("-f", "--force", is_flag=True, help="Overwrite RUN if it exists.")
@click.option(
    "--attach",
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="Tune the running job that writes RUN; give no CMD.",
)
@click.option(
    "--with-parent",
    type=int,
    metavar="PID",
    help="Stop when the process PID ends, such as the program that started esprof.",
)
@click.option(
    "--rounds",
    "most_rounds",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Stop after N rounds. Default: no limit.",
)
@click.option(
    "--steps",
    metavar="N",
    type=click.IntRange(5),
    default=_DEFAULT.steps,
    show_default=True,
    help="Steps that a prediction is based on.",
)
@click.option(
    "--block-steps",
    metavar="N",
    type=click.IntRange(4),
    default=_DEFAULT.window,
    show_default=True,
    help="Steps in each block of a trial.",
)
@click.option(
    "--blocks",
    metavar="N",
    type=click.IntRange(2),
    default=_DEFAULT.blocks,
    show_default=True,
    help="A trial has N blocks with the change and N without.",
)
@click.option(
    "--allow",
    "allowed",
    type=click.Choice(["compression"]),
    multiple=True,
    help="Also try a codec for the gradients. The trained weights are then no longer bit-identical.",
)
@click.option(
    "--max-vnmse",
    metavar="SHARE",
    type=click.FloatRange(0, 1, min_open=True),
    default=MAX_VNMSE,
    show_default=True,
    help="Largest compression error: squared error over the squared norm of the gradient.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only errors and warnings.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout; the job's own output goes to stderr.")
def command(
    job: tuple[str, ...],
    output: Path,
    force: bool,
    attach: Path | None,
    with_parent: int | None,
    most_rounds: int,
    steps: int,
    block_steps: int,
    blocks: int,
    allowed: tuple[str, ...],
    max_vnmse: float,
    quiet: bool,
    as_json: bool,
) -> int:
    """Run an elastic job and tune it while it runs.

    CMD starts a script that trains with esprof.elastic.ElasticTrainer; the script needs no change.

    In each round, replay predicts the best assignment of logical workers (ESTs) to ranks. The job alternates blocks
    of steps with and without the change, and accepts it if steps become significantly shorter. The trained weights
    are bit-identical to those without tuning. Another round starts only after a lasting change of the step time.
    RUN/rounds.jsonl lists all rounds.

    With --allow compression, the job also benchmarks codecs for its gradients and tries the best one, once. A codec
    changes the trained weights. The job removes the codec if steps do not become shorter, or if the compression error
    exceeds --max-vnmse.

    \b
    esprof tune -o RUN -- torchrun --nproc-per-node 4 train.py
    esprof tune --attach RUN
    """
    if with_parent is not None:
        end_with_parent(with_parent)
    run = _run_of(job, output, attach, force=force)
    found: list[Round] = []

    def report(one: Round) -> None:
        found.append(one)
        if not quiet:
            click.echo(draw_round(one, Screen.of(sys.stderr)), err=True)

    stop = Event()
    settings = TuningSettings(
        steps=steps,
        window=block_steps,
        blocks=blocks,
        most_rounds=most_rounds,
        max_vnmse=max_vnmse if "compression" in allowed else 0.0,
    )
    tuner = Tuner(run, settings, stop, report)
    stdout = 2 if as_json else 1
    code = _tune_running(run, tuner) if attach else _run_tuned(job, run, tuner, stop, stdout=stdout)
    if not quiet or as_json:
        answer(Tuned(run=str(run), rounds=tuple(found)), draw_tuned, as_json=as_json)
    return code


def _tune_running(run: Path, tuner: Tuner) -> int:
    """Tune until the job ends or Ctrl-C; in both cases the rounds are printed."""
    try:
        tuner.tune()
    except KeyboardInterrupt:
        request.withdraw(run)
    return EXIT_OK


def _run_of(job: tuple[str, ...], output: Path, attach: Path | None, *, force: bool) -> Path:
    """The Run directory, emptied if a job is to be started. Raises UsageError if there is nothing to tune."""
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


def _run_tuned(job: tuple[str, ...], run: Path, tuner: Tuner, stop: Event, stdout: int) -> int:
    """Run the job, and the tuning loop in a thread. Returns the job's exit code."""

    def loop() -> None:
        try:
            tuner.tune()
        except Exception as fault:  # noqa: BLE001  The job continues without the loop.
            click.echo(f"esprof: error: tuning stopped, the job continues: {fault}", err=True)

    thread = Thread(target=loop, name="esprof-tune", daemon=True)

    def begin() -> None:
        if thread.ident is None:
            thread.start()

    # Started while the signals for the job are blocked: a thread inherits the signal mask.
    code = run_child(job, os.environ | {VARIABLE: str(run.absolute())}, stdout=stdout, glance=begin)
    stop.set()
    if thread.ident is not None:
        thread.join(_MAX_WAIT_FOR_LOOP_S)
    request.withdraw(run)
    return code
