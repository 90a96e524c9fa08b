"""`esprof record`."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from esprof.analyzers.finding import Diagnosis
from esprof.output import claim
from esprof.reports.commands.common import json_option, json_text, status
from esprof.text import printable
from esprof.trace.groups import group_name
from esprof.trace.run import Run
from esprof.tracer.injected.settings import Settings
from esprof.tracer.launch import Recording, collect, launch, require_torch

_DEFAULT = Settings()


@click.command("record", context_settings={"allow_interspersed_args": False})
@click.argument("job", metavar="-- CMD…", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "-o",
    "--output",
    metavar="RUN",
    type=click.Path(path_type=Path),
    default="esprof-run",
    show_default=True,
    help="The Run directory to write.",
)
@click.option("-f", "--force", is_flag=True, help="Overwrite RUN if it exists.")
@click.option(
    "--skip", type=click.IntRange(1), default=_DEFAULT.skip, show_default=True, help="Steps before the profiler starts."
)
@click.option(
    "--warmup", type=click.IntRange(0), default=_DEFAULT.warmup, show_default=True, help="Steps for it to warm up."
)
@click.option("--steps", type=click.IntRange(1), default=_DEFAULT.steps, show_default=True, help="Timed steps.")
@click.option(
    "--stack-steps",
    type=click.IntRange(0),
    default=_DEFAULT.stack_steps,
    show_default=True,
    help="Steps recorded apart with Python stacks, for file and line; left out of all timing.",
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors and warnings.")
@json_option
def command(
    job: tuple[str, ...],
    output: Path,
    force: bool,
    skip: int,
    warmup: int,
    steps: int,
    stack_steps: int,
    quiet: bool,
    as_json: bool,
) -> int:
    """Run a training command and record it on every rank.

    CMD is python, torchrun or a script around them, unchanged. It keeps its output, its terminal and its exit code.
    esprof talks on stderr; with --json the diagnosis goes to stdout after the job's own output.
    """
    settings = Settings(skip=skip, warmup=warmup, steps=steps, stack_steps=stack_steps)
    require_torch(job[0])
    claim(output, force=force)
    if not quiet:
        first, last = settings.first_timed, settings.after_timed - 1
        say(f"recording steps {first} to {last} of the job into {output}")
    recording = record(job, output, settings, force=force)
    say_recorded(recording, quiet=quiet)
    diagnosis = diagnosed(recording) if as_json or not quiet else None
    if diagnosis is not None and as_json:
        click.echo(json_text(diagnosis))
    if diagnosis is not None and not quiet:
        say_verdict(diagnosis)
    return recording.exit_code


def record(job: Sequence[str], output: Path, settings: Settings, *, force: bool, stdout: int = 1) -> Recording:
    """Run `job` to its end, and make its Run."""
    exit_code = launch(job, output, settings, force=force, stdout=stdout)
    with status("Reading what was recorded"):
        return collect(job, output, settings, exit_code)


def say_recorded(recording: Recording, *, quiet: bool = False) -> None:
    """Say on stderr what was recorded and what it lacks; where there is no Run, why, and how the command ended."""
    if recording.run is None:
        say(f"the command ended with {recording.exit_code}; {recording.trouble}")
        return
    for warning in recording.run.warnings:
        say(f"warning: {warning.message}")
    if not quiet:
        say(_recorded(recording.run))


def diagnosed(recording: Recording) -> Diagnosis | None:
    """The Run's diagnosis; None where there is no Run, or, with the reason on stderr, where it cannot be diagnosed."""
    if recording.run is None:
        return None
    try:
        from esprof.analyzers import diagnose_run

        with status("Diagnosing"):
            return diagnose_run(recording.run)
    except Exception as fault:  # noqa: BLE001  the job is done and recorded: nothing here may hide how it ended
        say(f"the run is whole, but could not be diagnosed: {fault}")
        return None


def say_verdict(diagnosis: Diagnosis) -> None:
    from esprof.reports.terminal import Screen, verdict

    screen = Screen.of(sys.stderr)
    click.echo(f"\n{verdict(diagnosis, screen)}", err=True, color=screen.colour)


def say(message: str) -> None:
    click.echo("esprof: " + "\n".join(printable(line, 2_000) for line in message.splitlines()), err=True)


def _recorded(run: Run) -> str:
    steps = sorted(
        {(window.first, window.last) for rank in run.meta.ranks for window in rank.windows if not window.stacks}
    )
    overheads = [rank.overhead_pct for rank in run.meta.ranks if rank.overhead_pct is not None]
    cost = f", at {max(0.0, max(overheads)):.0f} % overhead" if overheads else ""
    first, last = steps[0]
    return f"recorded rank {group_name(run.ranks)}, steps {first} to {last}{cost}, into {run.path}"
