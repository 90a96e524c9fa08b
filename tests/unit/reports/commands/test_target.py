"""`esprof compare --to-loss` on logs of trainings."""

import json

import pytest

from esprof.core.errors import EsprofError, InputError, UsageError
from tests.unit.reports.commands.test_compare import invoke


@pytest.fixture
def logs(tmp_path):
    """Folder with logs a0 to a3, and b0 to b3, which reach a loss of 1 in half the time."""
    for seed in range(4):
        for side, interval in (("a", 20), ("b", 10)):
            rows = (f"{at},{interval * at + seed},{4 - at}\n" for at in range(1, 5))
            (tmp_path / f"{side}{seed}.csv").write_text("step,time,loss\n" + "".join(rows))
    return tmp_path


def sides(folder):
    return sorted(folder.glob("a*.csv")), ("--with", f"{folder}/b*.csv")


def test_text_and_json(logs):
    a, with_b = sides(logs)
    text = invoke(*a, *with_b, "--to-loss", 1).stdout
    assert text.startswith("B reaches the target in fewer seconds, ratio 1.95")
    found = json.loads(invoke(*a, *with_b, "--to-loss", 1, "--json").stdout)
    assert next(iter(found.items())) == ("schema", "esprof.to-target/1")
    assert found["outcome"] == "b"
    assert [run["seconds"] for run in found["b"]] == [30, 31, 32, 33]
    assert [one["ratio"] for one in found["measures"]] == [pytest.approx(61.5 / 31.5), 1, pytest.approx(81.5 / 41.5)]


def test_a_score(logs):
    a, with_b = sides(logs)
    found = json.loads(invoke(*a, *with_b, "--to-score", 3, "--columns", "metric=loss", "--json").stdout)
    assert found["better"] == "higher"
    assert [run["step"] for run in found["a"]] == [1, 1, 1, 1]
    assert [run["step_before"] for run in found["a"]] == [None] * 4


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--to-loss", 1), "--with needs --to-loss"),
        (("--with", "b.csv"), "--with needs --to-loss"),
        (("--with", "b.csv", "--to-loss", 1, "--to-score", 1), "exclude each other"),
        (("--with", "b.csv", "--to-loss", "nan"), "must be a finite number"),
        (("--with", "b.csv", "--to-loss", 1, "--format", "html"), "--format html excludes"),
        ((), "are two runs, not 4"),
    ],
)
def test_options_that_contradict_each_other(logs, arguments, reason):
    with pytest.raises(UsageError, match=reason):
        invoke(*sides(logs)[0], *arguments)


def test_a_pattern_without_a_file(logs):
    with pytest.raises(InputError, match="matches no file"):
        invoke(*sides(logs)[0], "--with", f"{logs}/c*.csv", "--to-loss", 1)


def test_a_run_is_no_log(logs):
    with pytest.raises(EsprofError, match="cannot be read"):
        invoke(logs, *sides(logs)[1], "--to-loss", 1)
