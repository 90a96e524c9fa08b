"""Arguments of `esprof probe`, and its errors before it starts anything."""

import pytest
from click.testing import CliRunner

from esprof.core.errors import InputError, OutputError, UsageError
from esprof.reports.commands.probe import Variation, command
from esprof.run.directory import write_probes
from tests.cases.probed import link, probes


def asked(*arguments):
    return CliRunner().invoke(command, [str(one) for one in arguments], standalone_mode=False)


@pytest.mark.parametrize(
    ("text", "job", "expected"),
    [
        (
            "--batch=8,16",
            ["a.py", "--batch", "4", "-x"],
            [["a.py", "--batch", "8", "-x"], ["a.py", "--batch", "16", "-x"]],
        ),
        ("--batch=8", ["a.py", "--batch=4"], [["a.py", "--batch=8"]]),
        ("-b=8", ["a.py"], [["a.py", "-b", "8"]]),
        ("BATCH=8,16", ["a.py"], [["env", "BATCH=8", "a.py"], ["env", "BATCH=16", "a.py"]]),
    ],
)
def test_an_option_or_variable_gets_each_of_its_values(text, job, expected):
    assert [changed for _, changed in Variation.read(text).settings(job)] == expected


@pytest.mark.parametrize("text", ["", "batch", "--batch=", "--batch=8,,16", "=8", "a b=8", "--=8"])
def test_a_variation_without_values_is_refused(text):
    with pytest.raises(UsageError, match="--vary"):
        Variation.read(text)


@pytest.mark.parametrize(
    "arguments",
    [(), ("--show", "x", "--", "python"), ("--budget", "0s", "--", "python"), ("--budget", "5x", "--", "python")],
)
def test_an_invalid_command_is_a_usage_error(arguments):
    found = asked(*arguments)
    assert found.exception is not None
    assert getattr(found.exception, "exit_code", None) == 2


def test_a_run_without_probes_has_none_to_show(tmp_path):
    found = asked("--show", tmp_path)
    assert isinstance(found.exception, InputError)
    assert "holds no probe" in str(found.exception)


def test_a_completed_probe_is_not_repeated_without_force(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    write_probes(tmp_path, probes(link(1e6, 10.0)))
    found = asked("-o", tmp_path, "--", "python", "train.py")
    assert isinstance(found.exception, UsageError)
    assert "another command" in str(found.exception)


def test_a_folder_that_is_not_a_run_is_left_unchanged(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    found = asked("-o", tmp_path, "--", "python", "train.py")
    assert isinstance(found.exception, OutputError)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_curves_are_shown_as_a_table_and_as_json(tmp_path):
    write_probes(tmp_path, probes(link(1e6, 10.0)))
    table, answer = asked("--show", tmp_path), asked("--show", tmp_path, "--json")
    assert "all_reduce" in table.output
    assert '"schema": "esprof.probe/1"' in answer.output
