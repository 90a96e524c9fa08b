"""The command line: load a verb when it is called, run it, and print its error."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from esprof.core.errors import EXIT_ERROR, EXIT_OK, EXIT_USAGE, EsprofError, MissingDependencyError, UsageError
from esprof.core.text import nearest, printable
from esprof.verbs import COMPLETION, GROUPS, VERBS, module_of
from esprof.version import __version__


class Verbs(click.Group):
    """A click group that loads a verb's module only when that verb is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        try:
            command: click.Command = import_module(module_of(name)).command
        except ModuleNotFoundError as missing:
            _name_library(missing, name)
            raise
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb. Some verbs import most libraries only then."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as missing:
            _name_library(missing, ctx.invoked_subcommand)
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, VERBS))
        for group, verbs in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(verb.ljust(widest), summary) for verb, summary in verbs.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The verbs that begin with `incomplete`; click would load the module of each for its summary."""
        verbs = [CompletionItem(verb, help=text) for verb, text in VERBS.items() if verb.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in VERBS and not name.startswith("-") and not ctx.resilient_parsing:
            close = nearest(name, VERBS)
            hint = f"Did you mean {close}?" if close else f"Verbs: {', '.join(VERBS)}."
            raise click.UsageError(f"No verb {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="esprof")
def root() -> None:
    """Profile distributed PyTorch training, explain its step time, and make it faster.

    \b
    esprof record -o RUN -- torchrun --nproc-per-node 8 train.py
    esprof diagnose RUN
    esprof report RUN -o report.html

    RUN is a directory that `esprof record` wrote, or traces of torch.profiler: a file, a folder or a glob pattern.

    Results go to stdout; progress and warnings go to stderr.

    Exit codes: 0 success, 1 error, 2 wrong usage, 3 regression or difference found.

    Environment: COLUMNS sets the width of the output; NO_COLOR turns colour off.
    """


def main() -> None:
    """Run the verb, print its error, and exit."""
    _fill_closed_streams()
    try:
        refuse_another_checkout(Path(__file__).resolve().parents[1])
        code = root.main(standalone_mode=False, complete_var=COMPLETION)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else EXIT_OK)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_USAGE)
    except EsprofError as error:
        click.echo(f"esprof: {_shown(str(error))}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("esprof: stopped", err=True)
        sys.exit(128 + 2)
    except BrokenPipeError:
        _forget_stdout()  # The reader of the output has ended (`esprof … | head`).
        sys.exit(EXIT_ERROR)
    except OSError as error:
        _forget_stdout()
        click.echo(f"esprof: cannot write the output: {_shown(error.strerror or str(error))}", err=True)
        sys.exit(EXIT_ERROR)


def refuse_another_checkout(ours: Path) -> None:
    """Raise UsageError if the current folder is in another checkout of esprof than the running one, `ours`.

    An installed esprof is not a checkout and runs anywhere.
    """
    if not _is_checkout(ours):
        return
    try:
        here = Path.cwd()
    except OSError:  # The current folder was deleted.
        return
    theirs = next((folder for folder in (here, *here.parents) if _is_checkout(folder)), ours)
    if not theirs.samefile(ours):
        raise UsageError(
            f"this command belongs to {ours}, and you are in another checkout, {theirs}",
            remedy="Run `python -m esprof` at the top of the checkout that you mean: it takes the code from there.",
        )


def _name_library(missing: ModuleNotFoundError, verb: str | None) -> None:
    """Raise MissingDependencyError if it is a library that is missing, not a module of esprof."""
    if missing.name is not None and missing.name.split(".")[0] != "esprof":
        raise MissingDependencyError(
            f"`esprof {verb}` needs {missing.name}, which is not installed", remedy="pip install esprof"
        ) from missing


def _is_checkout(folder: Path) -> bool:
    return (folder / "esprof" / "cli.py").is_file() and (folder / "pyproject.toml").is_file()


def _fill_closed_streams() -> None:
    """Open /dev/null in place of a closed stdin, stdout or stderr, whose number a file opened later would get."""
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(number)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115  open until the process ends
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _forget_stdout() -> None:
    """Redirect stdout to /dev/null, so that Python reports no second error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _shown(message: str) -> str:
    return "\n".join(printable(line, 2_000) for line in message.splitlines())
