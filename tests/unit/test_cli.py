"""The command line as a whole: what it loads, what it prints where, and how it exits."""

import os
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from esprof import __version__, cli
from esprof.core.errors import EsprofError, UsageError
from esprof.verbs import GROUPS, VERBS

HEAVY = {"jinja2", "msgspec", "networkx", "numba", "numpy", "pandas", "plotly", "pyarrow", "rich", "scipy", "torch"}


MAIN = [sys.executable, "-c", "from esprof.cli import main; main()"]


def run_main(monkeypatch, *arguments):
    """Exit code of `main` in this process."""
    monkeypatch.setattr(sys, "argv", ["esprof", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


@pytest.mark.parametrize("verb", VERBS)
def test_the_listed_summary_is_the_verb_s_own(verb):
    command = cli.root.get_command(click.Context(cli.root), verb)
    assert command.name == verb
    assert command.help.splitlines()[0] == VERBS[verb]


def test_help_loads_nothing_heavy():
    code = "import sys, esprof.cli; sys.argv = ['esprof', '--help']\ntry: esprof.cli.main()\n"
    code += "finally: print(*sys.modules, file=sys.stderr)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0
    assert not HEAVY & {name.split(".")[0] for name in answer.stderr.split()}
    for verb, summary in VERBS.items():
        assert verb in answer.stdout
        assert summary in answer.stdout


def test_an_unknown_verb_is_a_usage_error(monkeypatch, capsys):
    assert run_main(monkeypatch, "analyse") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "No verb 'analyse'" in said.err
    assert "diagnose" in said.err


def test_a_mistyped_verb_is_answered_by_the_one_that_it_resembles(monkeypatch, capsys):
    assert run_main(monkeypatch, "diagnoze") == 2
    assert "No verb 'diagnoze'. Did you mean diagnose?" in capsys.readouterr().err


def test_help_opens_with_an_example_and_groups_the_verbs():
    text = CliRunner().invoke(cli.root, ["--help"]).stdout
    first, *groups = re.split(r"^(?=\S.*:$)", text, flags=re.MULTILINE)
    assert re.search(r"^  esprof record .*\n  esprof diagnose .*\n  esprof report", first, re.MULTILINE)
    titles = [group.partition(":")[0] for group in groups]
    assert titles == ["Options", *GROUPS]
    assert titles.index("Elastic jobs") > titles.index("Guard")


def test_a_missing_argument_is_a_usage_error(monkeypatch, capsys):
    assert run_main(monkeypatch, "diagnose") == 2
    assert "Missing argument 'RUN" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(EsprofError, 1), (UsageError, 2)])
def test_an_error_is_printed_once_with_its_remedy_and_no_escape_of_its_own(monkeypatch, capsys, error, code):
    @click.command()
    def command():
        raise error("holds \x1b[31mnothing", path="a\x1b[2Jb", remedy="Record it again.")

    monkeypatch.setattr(cli.Verbs, "get_command", lambda *_: command)
    assert run_main(monkeypatch, "diagnose") == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "esprof: a\\x1b[2Jb: holds \\x1b[31mnothing\n  Record it again.\n"


def test_a_verb_s_exit_code_passes_through(monkeypatch):
    monkeypatch.setattr(cli.Verbs, "get_command", lambda *_: click.command()(lambda: 3))
    assert run_main(monkeypatch, "check") == 3


def test_an_interrupt_leaves_no_traceback(monkeypatch, capsys):
    @click.command()
    def command():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.Verbs, "get_command", lambda *_: command)
    assert run_main(monkeypatch, "record") == 130
    assert capsys.readouterr().err.strip() == "esprof: stopped"


def test_a_reader_that_leaves_early_is_no_error_of_ours():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        answer = subprocess.run([*MAIN, "--help"], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(writer)
    assert answer.returncode == 1
    assert answer.stderr == ""


def test_version():
    answer = subprocess.run([*MAIN, "--version"], capture_output=True, text=True, timeout=60)
    assert answer.stdout == f"esprof, version {__version__}\n"
