"""`esprof elastic`."""

from pathlib import Path

import click

from esprof.elastic.proof.diff import diff
from esprof.errors import EXIT_ERROR, EXIT_OK, EXIT_REGRESSION
from esprof.reports.commands.common import answer, json_option, output_options
from esprof.reports.terminal.elastic import render_diff

_EXIT_CODES = {"equal": EXIT_OK, "differ": EXIT_REGRESSION, "not-comparable": EXIT_ERROR}


@click.group("elastic")
def command() -> None:
    """Tell whether elastic jobs did the same, bit for bit."""


@command.command("diff")
@click.argument("log_a", metavar="A", type=click.Path(path_type=Path))
@click.argument("log_b", metavar="B", type=click.Path(path_type=Path))
@json_option
@output_options("-", "answer")
def diff_command(log_a: Path, log_b: Path, as_json: bool, output: Path, force: bool) -> int:
    """Compare two step-hash logs, and name the first step at which they part.

    A and B are what ElasticTrainer wrote with hash_log=. Equal at every step exits with 0; different with 3, and the first
    differing tensor is named, with its distance where hash_log_values=True kept the values; logs of different jobs, or of
    machines whose bits nobody promised to be equal, are not comparable: exit 1.

    \b
    esprof elastic diff static.jsonl elastic.jsonl
    """
    found = diff(log_a, log_b)
    answer(found, lambda value, _: render_diff(value), as_json=as_json, output=output, force=force)
    return _EXIT_CODES[found.outcome]
