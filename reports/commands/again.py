"""`esprof again`."""

import contextlib
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import click
import msgspec

from esprof.analyzers.comparison.answer import RunComparison
from esprof.analyzers.comparison.compare import compare
from esprof.analyzers.finding import Diagnosis
from esprof.core.credentials import REDACTED, is_redacted
from esprof.core.errors import EsprofError, InputError
from esprof.core.text import printable
from esprof.recorder.shared.environment import changed
from esprof.reports.commands.common import json_option, json_text, open_run, refuse_stdout, say, status
from esprof.reports.commands.run_job import diagnosed, record, say_recorded, say_verdict
from esprof.reports.pyproject import read_ignores
from esprof.reports.terminal.comparison import draw_comparison
from esprof.reports.terminal.screen import Screen
from esprof.run.raw.relaunch import Relaunch, changes
from esprof.run.run import Run

_STDOUT, _STDERR = 1, 2


class AgainAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`esprof again --json`."""

    schema: str = "esprof.again/1"
    before: str
    """The recorded Run."""
    after: str
    """The new Run."""
    exit_code: int
    """Exit code of the command."""
    comparison: RunComparison | None
    """None if nothing was recorded, or if the runs cannot be compared."""
    diagnosis: Diagnosis | None
    """Diagnosis of the new Run."""


@click.command("again")
@click.argument("recorded", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="NEW",
    type=click.Path(path_type=Path),
    help="The Run directory to write. Default: RUN-again.",
)
@click.option("-f", "--force", is_flag=True, help="Overwrite NEW if it exists and is a Run directory.")
@click.option("-q", "--quiet", is_flag=True, help="Print only errors, warnings and the comparison.")
@json_option
def command(recorded: Path, output: Path | None, force: bool, quiet: bool, as_json: bool) -> int:
    """Run the command of a run again, record it, and compare.

    The command runs in the folder in which RUN was recorded, with the same settings of `esprof record`. Variables on
    which speed depends (OMP_…, NCCL_…, TORCH_…, CUDA_… and others) are set as they were; all others are as they are now.
    At the end, both runs are compared (`esprof compare`). esprof exits with the exit code of the command.

    With --json, the answer goes to stdout, and the output of the command to stderr.

    \b
    esprof again RUN
    esprof again RUN -o NEW
    """
    run, _ = open_run([str(recorded)])
    how = _relaunch(run)
    # The command starts in another folder, where these relative paths lead elsewhere.
    before = recorded.absolute()
    after = before.with_name(f"{before.name}-again") if output is None else output.absolute()
    refuse_stdout(output or after)
    variables = changes(how.environment, os.environ)
    for name, value in variables.items():
        say(f"as recorded: {printable(name)} is {'unset' if value is None else printable(value)}")
    beginning = f"running {printable(shlex.join(run.meta.command), 2_000)} again, into {after}"
    with contextlib.chdir(how.folder), changed(variables):
        made = record(
            run.meta.command,
            after,
            replace(how.settings, quiet=quiet),
            force=force,
            beginning=None if quiet else beginning,
            stdout=_STDERR if as_json else _STDOUT,
        )
    say_recorded(made, quiet=quiet)
    diagnosis = diagnosed(made, read_ignores)
    if diagnosis is not None and not quiet:
        say_verdict(diagnosis)
    comparison = None if made.run is None else _compared(run, made.run)
    if as_json:
        found = AgainAnswer(
            before=str(recorded),
            after=str(after),
            exit_code=made.exit_code,
            comparison=comparison,
            diagnosis=diagnosis,
        )
        click.echo(json_text(found))
    elif comparison is not None:
        screen = Screen.of(sys.stdout)
        click.echo(f"\n{draw_comparison(comparison, screen)}", color=screen.colour)
    return made.exit_code


def _compared(before: Run, after: Run) -> RunComparison | None:
    """The comparison of the two runs; None if they cannot be compared, with the reason on stderr. It is no error: the
    exit code belongs to the command."""
    try:
        with status("Comparing"):
            return compare(before, after)
    except EsprofError as reason:
        say(f"the two runs cannot be compared: {reason}")
        return None


def _relaunch(run: Run) -> Relaunch:
    """How to start the run's command. Raises InputError if that was not recorded, or its folder is gone."""
    how = run.meta.relaunch
    if how is None or not run.meta.command:
        reason = "does not tell how its command was started"
        raise InputError(
            reason, path=run.path, remedy="Record it with `esprof record -o RUN -- CMD…`, then run it again."
        )
    if is_redacted(run.meta.command):
        reason = f"a secret was taken out of its command ({REDACTED}), so it cannot be run again"
        raise InputError(reason, path=run.path, remedy="Record it again, and then use `esprof compare OLD NEW`.")
    if not Path(how.folder).is_dir():
        reason = f"its command ran in {printable(how.folder, 500)}, which does not exist here"
        remedy = f"Record it in another folder: esprof record -o NEW -- {shlex.join(run.meta.command)}"
        raise InputError(reason, path=run.path, remedy=remedy)
    return how
