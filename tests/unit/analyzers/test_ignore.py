"""Ignored findings: valid entries, the findings and dates that they cover, and the resulting diagnosis."""

import tomllib
from datetime import date
from pathlib import Path

import msgspec
import pytest

from esprof.analyzers import diagnose, summarize
from esprof.analyzers.ignore import NOTHING, Ignores, parse
from esprof.core.errors import UsageError
from tests.cases import report as reportcase
from tests.cases import step_runs
from tests.cases.graph import ddp_rank, run_of
from tests.cases.step_runs import step_table

FILE = Path("pyproject.toml")
TODAY = date(2027, 5, 30)
ENTRY = 'id = "ESP301"\nreason = "the link is upgraded in May"\nuntil = 2027-05-31\n'


def parsed(*entries: str, today: date = TODAY) -> Ignores:
    text = "".join(f"[[ignore]]\n{entry}\n" for entry in entries)
    return parse(tomllib.loads(text)["ignore"], FILE, today)


def finding(id: str, *ranks: int):
    return msgspec.structs.replace(reportcase.findings()[0], id=id, ranks=ranks)


def test_ignored_findings_are_listed_separately_with_a_reason():
    reported, ignored = parsed(ENTRY).split([finding("ESP101", 1), finding("ESP301", 0, 1)])
    assert [one.id for one in reported] == ["ESP101"]
    (one,) = ignored
    assert (one.finding.id, one.reason, one.until) == ("ESP301", "the link is upgraded in May", date(2027, 5, 31))


@pytest.mark.parametrize(
    ("ranks", "is_ignored"), [((3,), True), ((3, 4), True), ((4, 5), False), ((5,), False), ((), False)]
)
def test_an_entry_for_ranks_covers_no_other_ranks(ranks, is_ignored):
    _, ignored = parsed(f"{ENTRY}ranks = [3, 4]").split([finding("ESP301", *ranks)])
    assert bool(ignored) == is_ignored


@pytest.mark.parametrize("today", [date(2027, 5, 30), date(2027, 5, 31)])
def test_an_entry_is_valid_through_its_last_day(today):
    ignores = parsed(ENTRY, today=today)
    assert len(ignores.entries) == 1
    assert ignores.warnings == ()


def test_an_expired_entry_ignores_nothing_and_warns():
    ignores = parsed(ENTRY, today=date(2027, 6, 1))
    reported, ignored = ignores.split([finding("ESP301", 0)])
    assert (len(reported), ignored) == (1, ())
    (warning,) = ignores.warnings
    assert warning.code == "ignore-expired"
    assert "ESP301" in warning.message
    assert "2027-05-31" in warning.message
    assert "the link is upgraded" in warning.message


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('id = "ESP301"\nuntil = 2027-05-31', "reason"),
        ('id = "ESP301"\nreason = " "\nuntil = 2027-05-31', "has an empty reason"),
        ('id = "ESP301"\nreason = "r"', "until"),
        ('id = "ESP301"\nreason = "r"\nuntil = "soon"', "date"),
        ('id = "ESP301"\nreason = "r"\nuntil = 2027', "date"),
        ('id = "ESP301"\nreason = "r"\nuntil = 2027-05-31T12:00:00', "Expected `date`, got `datetime`"),
        (f"{ENTRY}rank = 3", "rank"),
        (f"{ENTRY}ranks = []", "length"),
        (f"{ENTRY}ranks = [-1]", ">= 0"),
        (f"{ENTRY}ranks = 3", "array"),
        ('id = "ESP999"\nreason = "r"\nuntil = 2027-05-31', "no finding 'ESP999'"),
        ('id = "ESP801"\nreason = "r"\nuntil = 2027-05-31', "cannot be ignored because it stops the job"),
    ],
)
def test_an_invalid_entry_is_rejected(entry, said):
    with pytest.raises(UsageError) as caught:
        parsed(ENTRY, entry)
    assert str(caught.value).startswith("pyproject.toml: entry 2 of [[tool.esprof.ignore]]")
    assert said in caught.value.reason
    assert caught.value.remedy


def test_entries_must_be_a_list_of_tables():
    with pytest.raises(UsageError, match="not a list of tables"):
        parse({"id": "ESP301"}, FILE, TODAY)


def exposed_run():
    """Two ranks with exposed communication."""
    return run_of({0: ddp_rank(), 1: ddp_rank(slow=10)})


def test_a_diagnosis_omits_ignored_findings_and_lists_them():
    run = exposed_run()
    complete = diagnose(run)
    first = complete.findings[0]
    ignores = parsed(f'id = "{first.id}"\nreason = "known"\nuntil = 2027-05-31')
    less = diagnose(run, ignores=ignores)
    assert [one.finding for one in less.ignored] == [one for one in complete.findings if one.id == first.id]
    assert list(less.findings) == [one for one in complete.findings if one.id != first.id]
    assert first.title not in less.verdict
    assert less.verdict.endswith(f"Ignored by configuration: {first.id}.")
    assert summarize(run, ignores).diagnosis == less
    assert b'"until":"2027-05-31"' in msgspec.json.encode(less)


def test_entries_without_a_match_change_nothing():
    run = exposed_run()
    assert diagnose(run, ignores=parsed('id = "ESP601"\nreason = "r"\nuntil = 2027-05-31')) == diagnose(run)
    assert diagnose(run, ignores=NOTHING) == diagnose(run)


def test_findings_of_a_run_without_a_window_can_be_ignored():
    slow = step_runs.run(step_table([100.0 if n % 5 else 200.0 for n in range(60)]))
    assert [one.id for one in diagnose(slow).findings] == ["ESP806"]
    found = diagnose(slow, ignores=parsed('id = "ESP806"\nreason = "validation"\nuntil = 2027-05-31'))
    assert found.findings == ()
    assert [one.finding.id for one in found.ignored] == ["ESP806"]


def test_an_expired_entry_is_a_warning_of_the_diagnosis():
    found = diagnose(exposed_run(), ignores=parsed(ENTRY, today=date(2028, 1, 1)))
    assert found.warnings[-1].code == "ignore-expired"
