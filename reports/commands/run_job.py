"""Run a job with the recorder, and say what was recorded: shared by the verbs that start a job.

Libraries of the analysis are imported on use: a host that only records has none of them.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from esprof.core import readable
from esprof.core.text import printable
from esprof.recorder.launcher.launch import Recording, collect, launch, prepare
from esprof.reports.commands.common import say, status
from esprof.run.raw.settings import Settings

if TYPE_CHECKING:
    from esprof.analyzers.finding import Diagnosis
    from esprof.analyzers.ignore import Ignores
    from esprof.run.run import Run


def record(
    job: Sequence[str], output: Path, settings: Settings, *, force: bool, beginning: str | None = None, stdout: int = 1
) -> Recording:
    """Run `job` to its end and write its Run. Its standard output goes to the file descriptor `stdout`.

    `beginning` is printed on stderr before the job starts, once all checks have passed.
    """
    raw = prepare(job, output, settings, force=force)
    if beginning is not None:
        say(beginning)
    exit_code = launch(job, raw, stdout=stdout)
    with status("Reading what was recorded"):
        return collect(job, output, settings, exit_code)


def say_recorded(recording: Recording, *, quiet: bool = False) -> None:
    """Print on stderr what was recorded and its warnings; without a Run, the reason and the command's exit code."""
    if recording.run is None:
        say(f"the command ended with {recording.exit_code}; {recording.trouble}")
        return
    for warning in recording.run.warnings:
        say(f"warning: {printable(warning.message, 2_000)}")
    if not quiet:
        say(_recorded(recording.run))


def diagnosed(recording: Recording, ignores: "Callable[[], Ignores] | None" = None) -> "Diagnosis | None":
    """The Run's diagnosis. None without a Run, and if the diagnosis fails, with the reason on stderr.

    `ignores` returns the ignore rules, none by default; it is called only if there is a Run.
    """
    if recording.run is None:
        return None
    try:
        from esprof.analyzers import diagnose
        from esprof.analyzers.ignore import NOTHING

        with status("Diagnosing"):
            return diagnose(recording.run, ignores=ignores() if ignores else NOTHING)
    except Exception as fault:  # noqa: BLE001  the job has ended: its exit code must be passed on
        say(f"the run is complete, but its diagnosis failed: {printable(str(fault), 2_000)}")
        return None


def say_verdict(diagnosis: "Diagnosis") -> None:
    from esprof.reports.terminal.diagnosis import draw_verdict
    from esprof.reports.terminal.screen import Screen

    screen = Screen.of(sys.stderr)
    click.echo(f"\n{draw_verdict(diagnosis, screen)}", err=True, color=screen.colour)


def _recorded(run: "Run") -> str:
    from esprof.reports import units

    steps = sorted(
        {(window.first, window.last) for rank in run.meta.ranks for window in rank.windows if not window.stacks}
    )
    if not steps:
        return f"recorded {readable.ranks(run.ranks)}, no window, into {run.path}"
    known = [rank.overhead for rank in run.meta.ranks if rank.overhead is not None]
    cost = (
        f"{units.overhead(max(known, key=lambda one: one.pct))} overhead"
        if known
        else "overhead unknown: too few or too uneven steps"
    )
    which = f"steps {steps[0][0]} to {steps[0][1]}" if len(steps) == 1 else f"{len(steps)} windows"
    return f"recorded {readable.ranks(run.ranks)}, {which} ({cost}), into {run.path}"
