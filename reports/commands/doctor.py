"""`esprof doctor`."""

from pathlib import Path

import click

from esprof.core.errors import EXIT_ERROR, EXIT_OK
from esprof.recorder.doctor.examine import examine
from esprof.reports.commands.common import answer, json_option, output_options, status
from esprof.reports.terminal.health import draw_health


@click.command("doctor")
@json_option
@output_options("-", "result")
def command(as_json: bool, output: Path, force: bool) -> int:
    """Examine this installation, and what a cluster must allow.

    esprof tries what recording needs: Python, the libraries, torch and its profiler, a process group of two processes,
    the current folder, and the files of the kernel that the recorder reads. It takes some seconds and leaves nothing.

    Exit code 1: a check failed. Warnings name what esprof cannot record or measure here.

    \b
    esprof doctor
    esprof doctor --json
    """
    with status("Examining"):
        found = examine(Path.cwd())
    answer(found, draw_health, as_json=as_json, output=output, force=force)
    return EXIT_OK if found.sound else EXIT_ERROR
