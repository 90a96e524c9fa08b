"""`esprof record`."""

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from esprof.core.errors import EXIT_ERROR, EXIT_OK, EsprofError, MissingDependencyError, UsageError
from esprof.core.output import claim
from esprof.recorder.launcher.launch import HOOK, can_analyse, place
from esprof.recorder.launcher.order_window import attach as attach_to
from esprof.recorder.launcher.raw_folder import open_to_all
from esprof.recorder.shared.environment import with_hook
from esprof.reports.commands.common import (
    STDOUT,
    answer_text,
    job_arguments,
    json_text,
    refuse_stdout,
    say,
    status,
)
from esprof.reports.commands.run_job import diagnosed, record, say_recorded, say_verdict
from esprof.reports.commands.values import Duration, Finite, Size, StepsOrTime
from esprof.reports.pyproject import read_ignores
from esprof.run.raw.settings import Settings

if TYPE_CHECKING:  # A host that only records has none of the libraries that these need.
    from esprof.analyzers.finding import Diagnosis

_DEFAULT = Settings()


@click.command("record", context_settings={"allow_interspersed_args": False})
@job_arguments("The Run directory to write.")
@click.option("-f", "--force", is_flag=True, help="Overwrite RUN, and the FILE of --json, if they exist.")
@click.option(
    "--skip",
    type=StepsOrTime(),
    default=str(_DEFAULT.skip),
    show_default=True,
    help="Steps, or a time such as 30s, before the profiler starts.",
)
@click.option(
    "--warmup",
    metavar="N",
    type=click.IntRange(0),
    default=_DEFAULT.warmup,
    show_default=True,
    help="Warm-up steps of the profiler.",
)
@click.option(
    "--steps",
    metavar="N",
    type=click.IntRange(1),
    default=_DEFAULT.steps,
    show_default=True,
    help="Steps of a window that are timed.",
)
@click.option(
    "--stack-steps",
    metavar="N",
    type=click.IntRange(0),
    default=_DEFAULT.stack_steps,
    show_default=True,
    help="Further steps that record Python stacks (file and line) and, with --shapes, shapes; they are not timed.",
)
@click.option(
    "--every",
    type=StepsOrTime(),
    help="Repeat the window after this many steps, or a time such as 10min. Default: one window.",
)
@click.option(
    "--flight",
    metavar="N",
    type=click.IntRange(1),
    help="Profile no window, and log only the last N steps.",
)
@click.option(
    "--hang",
    metavar="SECONDS",
    type=Finite(0, 86_400),
    default=_DEFAULT.hang_s,
    show_default=True,
    help=(
        "Report a hang if a step takes longer than SECONDS and longer than 3 times the longest recent step. 0: never."
    ),
)
@click.option(
    "--shapes",
    is_flag=True,
    help="Record input shapes in the steps with stacks. With --stack-steps 0: in timed steps, which slows them.",
)
@click.option("--memory", is_flag=True, help="Record allocations, for the peak memory of what-ifs.")
@click.option(
    "--sample-keys",
    is_flag=True,
    help="Note which samples DataLoaders read, for the what-ifs cache= and order=; 11 bytes of log per sample.",
)
@click.option(
    "--probe",
    type=Duration(),
    is_flag=False,
    flag_value="120",
    help=(
        "After the window, benchmark devices, links, gradient compression and storage for TIME, such as 2min. Without a "
        "time: 120 s."
    ),
)
@click.option(
    "--max-log", type=Size(), default="64M", show_default=True, help="Maximum size of the step log of a process."
)
@click.option(
    "--max-trace", type=Size(), default="2G", show_default=True, help="Maximum size of all windows of a rank."
)
@click.option(
    "--max-memory",
    type=Size(),
    default="4G",
    show_default=True,
    help="Maximum memory of a rank for the current window.",
)
@click.option(
    "--attach",
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="Record another window of a running job that was recorded into RUN. CMD is not given.",
)
@click.option("--at", metavar="STEP", type=click.IntRange(1), help="With --attach: start the window at this step.")
@click.option(
    "--print-env",
    is_flag=True,
    help="Create RUN and print the environment variables that make a Python process record into it; start nothing.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only errors and warnings.")
@click.option(
    "--json",
    "answer_to",
    metavar="[FILE]",
    is_flag=False,
    flag_value=str(STDOUT),
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the diagnosis as JSON to FILE. Without FILE it goes to stdout, and the job's own output to stderr.",
)
def command(
    job: tuple[str, ...],
    output: Path,
    force: bool,
    attach: Path | None,
    at: int | None,
    print_env: bool,
    quiet: bool,
    answer_to: Path | None,
    **options: Any,
) -> int:
    """Run a training command and record all its ranks.

    CMD is python, torchrun, srun or a script that calls them. CMD needs no change. esprof exits with the exit code of
    CMD. esprof profiles a window of a few steps on every rank, and logs the duration of all other steps.

    Messages of esprof go to stderr. If a rank hangs or dies, esprof reports it at once, while the job is running.

    To record workers that another program starts (Ray, a scheduler), use --print-env. To record another window of a
    running job, use --attach from another terminal, or send SIGUSR2 to esprof.

    \b
    esprof record -o RUN -- torchrun --nproc-per-node 2 train.py
    esprof record --every 10min -- torchrun --nproc-per-node 2 train.py
    esprof record --attach RUN
    """
    if attach is not None:
        return _attach(attach, at, job)
    if at is not None:
        raise UsageError("--at needs --attach RUN")
    if print_env:
        return _print_env(output, _settings(**options), job)
    if not job:
        raise UsageError("no command to record", remedy="esprof record -o RUN -- torchrun … train.py")
    refuse_stdout(output)
    settings = _settings(**options, quiet=quiet)
    output = place(output, os.environ)
    if answer_to is not None and not can_analyse():
        raise MissingDependencyError(
            "this installation of esprof can only record", remedy="Omit --json, or: pip install esprof"
        )
    if answer_to is not None:
        _claim_answer(answer_to, force=force)
    beginning = None if quiet else f"{_planned(settings)} into {output}"
    stdout = 2 if answer_to == STDOUT else 1
    recording = record(job, output, settings, force=force, beginning=beginning, stdout=stdout)
    say_recorded(recording, quiet=quiet)
    diagnosis = diagnosed(recording, read_ignores) if answer_to is not None or not quiet else None
    if diagnosis is not None and not quiet:
        say_verdict(diagnosis)
    if diagnosis is not None and answer_to is not None:
        _hand_over(diagnosis, answer_to, force=force, quiet=quiet)
    return recording.exit_code


def _print_env(output: Path, settings: Settings, job: Sequence[str]) -> int:
    if job:
        raise UsageError("--print-env starts nothing: give no command")
    refuse_stdout(output)
    variables = with_hook(os.environ, str(open_to_all(output, settings)), str(HOOK))
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")
    say(
        f"{_planned(settings)} into {output}; `esprof diagnose {shlex.quote(str(output))}` after all processes have ended"
    )
    return 0


def _claim_answer(file: Path, *, force: bool) -> None:
    """Raise an error if the diagnosis cannot be written to `file`."""
    if file == STDOUT:
        return
    if shutil.which(file):  # `--json python train.py`: click took the first word of the command for FILE.
        raise UsageError(f"--json would write to {file}, which is a command", remedy="Put -- before the command.")
    claim(file, force=force)


def _hand_over(diagnosis: "Diagnosis", file: Path, *, force: bool, quiet: bool) -> None:
    """Write the diagnosis. An unwritable file is only reported, since the exit code belongs to the job."""
    try:
        answer_text(json_text(diagnosis), output=file, force=force, quiet=quiet)
    except EsprofError as trouble:
        say(str(trouble))


def _settings(
    skip: tuple[int, float],
    every: tuple[int, float] | None,
    flight: int | None,
    hang: float,
    probe: float | None = None,
    **same: Any,
) -> Settings:
    skip_steps, skip_s = skip
    every_steps, every_s = every or (0, 0.0)
    if flight and every:
        raise UsageError("--flight and --every exclude each other: --flight records no window")
    if skip_s and every_steps:
        raise UsageError("--every STEPS needs --skip STEPS: give both in steps, or --every as a time")
    if probe and (skip_s or flight):
        raise UsageError(
            "--probe needs a window that starts at a step", remedy="Give --skip in steps, and omit --flight."
        )
    try:
        return Settings(
            probe_s=probe or 0,
            windows=flight is None,
            flight_steps=flight or 0,
            skip=skip_steps or _DEFAULT.skip,
            skip_s=skip_s,
            every=every_steps,
            every_s=every_s,
            hang_s=hang,
            **same,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def _planned(settings: Settings) -> str:
    if not settings.windows:
        return f"flight recorder on, logging the last {settings.flight_steps} steps,"
    if settings.by_steps:
        first = settings.first_timed
        again = f", and again every {settings.every} steps," if settings.every else ""
        return f"recording steps {first} to {first + settings.steps - 1} of the job{again}"
    again = f", and again every {settings.every_s:g} s," if settings.every_s else ""
    return f"recording {settings.steps} steps of the job after {settings.skip_s:g} s{again}"


def _attach(run: Path, at: int | None, job: Sequence[str]) -> int:
    if job:
        raise UsageError("--attach records a window of a running job: give no command")
    with status("Waiting for the window"):
        report = attach_to(run, at)
    if at is not None and report.begins_after(at):
        say(f"warning: step {at} had passed or was too near; the next steps that could be recorded were")
    say(str(report))
    return EXIT_OK if report.whole else EXIT_ERROR
