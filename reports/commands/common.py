"""Arguments, options and output shared by the verbs.

Libraries other than click and msgspec are imported on first use: a host that only records has no others.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click
import msgspec

from esprof.core.errors import EXIT_OK, UsageError
from esprof.core.output import claim, unwritable, write_bytes
from esprof.core.text import printable, printable_json
from esprof.reports.answers.question import remembered
from esprof.reports.answers.store import Kept
from esprof.reports.commands.values import Finite
from esprof.reports.pyproject import NO_LIST, IgnoreList, read_ignore_list
from esprof.reports.terminal.stream import columns_of, takes_colour

if TYPE_CHECKING:
    from esprof import Run
    from esprof.reports.terminal.screen import Screen

STDOUT = Path("-")
_Command = TypeVar("_Command", bound=Callable[..., Any])
_Answer = TypeVar("_Answer", bound=msgspec.Struct)


MAX_ERROR_PCT = 10.0
"""Like `replay.whatif.pricing`, whose import takes longer than an answer that is stored."""
_NOT_ASKED = ("output", "force", "as_json", "processes", "dask")
"""Arguments that do not change an answer, only its form and place, and where it is computed."""
_COLUMNS = "esprof.columns"
"""Key of the value of --columns in the context of a verb, where `open_run` finds it."""


def run_argument(command: _Command) -> _Command:
    """RUN…: a Run directory, or any number of traces of one job; and --columns."""
    # Of type Path, so that shells complete it; `load` alone judges what it is.
    path = click.Path(readable=False)
    return click.argument("sources", metavar="RUN…", nargs=-1, required=True, type=path)(columns_option(command))


def columns_option(command: _Command) -> _Command:
    """--columns: what the columns of tables are called, for `open_run`."""

    def keep(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        pairs = [pair.partition("=") for pair in value.split(",")] if value else []
        if not all(name and column for name, _, column in pairs):
            raise click.BadParameter("write NAME=COLUMN,…, such as op=optype,start=start_ts:s", ctx, param)
        ctx.meta[_COLUMNS] = {name.strip(): column.strip() for name, _, column in pairs}

    return click.option(
        "--columns",
        metavar="NAME=COLUMN,…",
        callback=keep,
        expose_value=False,
        help="Names of the columns of a table of operations (docs/how-to/tables.md).",
    )(command)


def named_columns() -> dict[str, str]:
    """The value of --columns of this call."""
    named: dict[str, str] = click.get_current_context().meta.get(_COLUMNS, {})
    return named


def json_option(command: _Command) -> _Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def job_arguments(help: str) -> Callable[[_Command], _Command]:
    """-- CMD… and -o RUN, the Run directory of the job; `help` describes RUN."""

    def with_arguments(command: _Command) -> _Command:
        output = click.option(
            "-o",
            "--output",
            metavar="RUN",
            type=click.Path(path_type=Path),
            default="esprof-run",
            show_default=True,
            help=help,
        )
        return click.argument("job", metavar="-- CMD…", nargs=-1, type=click.UNPROCESSED)(output(command))

    return with_arguments


def max_error_option(command: _Command) -> _Command:
    """--max-error PERCENT: the largest replay error on this run at which predictions are still made."""
    return click.option(
        "--max-error",
        "max_error",
        metavar="PERCENT",
        type=Finite(min=0),
        default=MAX_ERROR_PCT,
        show_default=True,
        help="Make no predictions if the replayed step time differs from the measured one by more than PERCENT.",
    )(command)


def window_option(command: _Command) -> _Command:
    """--window STEP: which of the run's windows to analyse."""
    return click.option(
        "--window",
        metavar="STEP",
        type=click.IntRange(min=0),
        help=(
            "Analyse the window that contains this step. Default: the longest window; of equally long ones, the latest."
        ),
    )(command)


def ignore_option(command: _Command) -> _Command:
    """--no-ignore. The verb gets `ignores`, the ignore list of pyproject.toml."""

    def read(ctx: click.Context, param: click.Parameter, no_ignore: bool) -> IgnoreList:
        return NO_LIST if no_ignore else read_ignore_list()

    return click.option(
        "--no-ignore",
        "ignores",
        is_flag=True,
        callback=read,
        help="Disregard the ignore list in pyproject.toml.",
    )(command)


def output_options(default: str | None, what: str, *, or_folder: bool = False) -> Callable[[_Command], _Command]:
    """-o FILE and --force. `-` is stdout; without a default, FILE must be named. It may be a folder if `or_folder`."""

    def with_options(command: _Command) -> _Command:
        force = click.option("-f", "--force", is_flag=True, help="Overwrite FILE if it exists.")
        output = click.option(
            "-o",
            "--output",
            metavar="FILE",
            type=click.Path(dir_okay=or_folder, path_type=Path),
            help=f"Write the {what} to FILE, and create its folder if necessary; - is stdout.",
            # With a default of None, click would not require the option.
            **({"required": True} if default is None else {"default": default, "show_default": True}),
        )
        return output(force(command))

    return with_options


def open_run(sources: Sequence[str], window: int | None = None) -> "tuple[Run, float]":
    """The run, and the seconds that reading it took. If `window` is given, only the window with that step is
    retained."""
    from esprof import load
    from esprof.replay.steps import at_window

    started = time.perf_counter()
    with status("Reading the run"):
        run = load(sources, columns=named_columns())
    if window is not None:
        run = at_window(run, window)
    return run, time.perf_counter() - started


def answer(
    value: _Answer,
    draw: "Callable[[_Answer, Screen], str]",
    *,
    as_json: bool,
    output: Path = STDOUT,
    force: bool = False,
) -> None:
    """Write `value` to stdout or a file, as JSON or as drawn by `draw`."""
    text = text_of(value, draw, as_json=as_json, output=output)
    answer_text(text, output=output, force=force, colour=takes_colour(_stream(output)))


def text_of(value: _Answer, draw: "Callable[[_Answer, Screen], str]", *, as_json: bool, output: Path) -> str:
    """`value` as JSON, or as drawn by `draw` for the screen or file that `output` is."""
    from esprof.reports.terminal.screen import Screen

    return json_text(value) if as_json else draw(value, Screen.of(_stream(output)))


def answer_remembered(
    compute: Callable[[], str | Kept],
    sources: Sequence[str],
    *,
    as_json: bool,
    output: Path,
    force: bool,
    style: str = "text",
) -> int:
    """Write the answer of this verb about the files `sources` to stdout or a file: the stored one to the same arguments,
    else that of `compute`. Return the exit code. `style` is the form of an answer that is not JSON."""
    stream = _stream(output)
    form = "json" if as_json else (style, columns_of(stream), takes_colour(stream))
    found = recall(compute, sources, form)
    answer_text(found.text, output=output, force=force, colour=takes_colour(stream))
    return found.exit_code


def recall(compute: Callable[[], str | Kept], sources: Sequence[str], form: object = None) -> Kept:
    """The stored answer to the arguments of this verb, in the same form, about the files `sources`; else that of
    `compute`. All arguments count, except those for form and place."""
    context = click.get_current_context()
    arguments = sorted((name, value) for name, value in context.params.items() if name not in _NOT_ASKED)
    question = repr((context.command.name, arguments, context.meta.get(_COLUMNS), form))

    def kept() -> Kept:
        found = compute()
        return Kept(found, EXIT_OK) if isinstance(found, str) else found

    return remembered(question, sources, kept)


def _stream(output: Path) -> TextIO | None:
    return sys.stdout if output == STDOUT else None


def answer_text(text: str, *, output: Path, force: bool, colour: bool = False, quiet: bool = False) -> None:
    """Write `text` to stdout or a file. Unless `quiet`, report the file on stderr."""
    if output == STDOUT:
        click.echo(text, color=colour)
        return
    claim(output, force=force)
    write_bytes(output, f"{text}\n".encode())
    if not quiet:
        wrote("result", output)


def json_text(value: msgspec.Struct) -> str:
    return printable_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def say(message: str) -> None:
    """Print a message of esprof on stderr. Names in it may come from the job."""
    click.echo("esprof: " + "\n".join(printable(line, 2_000) for line in message.splitlines()), err=True)


def wrote(what: str, path: Path) -> None:
    click.echo(f"Wrote the {what} to {path}", err=True)


def write_advice(advice: msgspec.Struct, output: Path | None) -> None:
    """Write advice as JSON to `output`, if it is given, and report the file on stderr."""
    if output is not None:
        write_bytes(output, msgspec.json.format(msgspec.json.encode(advice), indent=1) + b"\n")
        wrote("advice", output)


def refuse_stdout(output: Path) -> None:
    """Raise UsageError if a Run is to be written to stdout."""
    if output == STDOUT:
        raise UsageError("a run is a folder and cannot be written to stdout", remedy="Name a folder with -o.")


def refuse_on_terminal(what: str) -> None:
    """Raise UsageError if stdout is a terminal: megabytes of markup are unreadable there."""
    if sys.stdout.isatty():
        raise UsageError(
            f"the {what} cannot be shown on a terminal", remedy="Name a file with -o, or pipe stdout elsewhere."
        )


def check_output(output: Path, what: str, *, as_json: bool, force: bool) -> None:
    """Raise an error if the `what` may not be written to `output`."""
    if output != STDOUT:
        claim(output, force=force)
    elif as_json:
        raise UsageError("--json and -o - would both write to stdout", remedy="Name a file with -o.")
    else:
        refuse_on_terminal(what)


@contextmanager
def status(message: str) -> Iterator[Callable[[str], None]]:
    """Show progress on stderr while the block runs, if stderr is a terminal. The block gets a function that tells what is
    being done."""
    if sys.stderr.isatty() and find_spec("rich") is not None:
        from rich.console import Console

        with Console(stderr=True).status(message) as shown:
            yield lambda what: shown.update(f"{message}: {what}")
    else:
        yield lambda what: None


@contextmanager
def staging_folder(output: Path) -> Iterator[Path]:
    """A temporary folder on the file system of `output`, so that results can be moved there; removed at the end."""
    parent = output.absolute().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=f".{output.name[:100]}.", suffix=".tmp", dir=parent)
    except OSError as error:
        raise unwritable(output, error) from error
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
