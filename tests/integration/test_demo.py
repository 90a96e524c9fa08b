"""`esprof demo`: a planted fault is found on its rank, and none is found without a fault.

Others may need the machine as much as the demo does. Then it has to say so.
"""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from esprof import load
from esprof.analyzers import diagnose
from esprof.analyzers.finding import CPU_CONTENTION
from esprof.reports.commands.demo import FAMILY_OF_FAULT, MAX_QUIET_COST_PCT
from tests.cases.browser import chromium, wait_for_charts
from tests.cases.command_line import esprof
from tests.cases.marks import soak
from tests.cases.record import ESPROF, Ended, run
from tests.cases.run_directory import names_in

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Demo:
    """A demo that has run, and the diagnosis that it printed."""

    ended: Ended
    diagnosis: dict[str, Any]

    @property
    def findings(self) -> list[dict[str, Any]]:
        return self.diagnosis["findings"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Runs the demo with a fault on a rank; once for each pair, as it takes some seconds."""
    seen: dict[tuple[str, int], Demo] = {}

    def run_demo(fault: str, rank: int) -> Demo:
        if (fault, rank) not in seen:
            out = tmp_path_factory.mktemp("demo") / "out"
            ended = run([*ESPROF, "demo", f"--fault={fault}", f"--rank={rank}", "-o", str(out), "--json"], out)
            assert ended.code == 0, ended.stderr
            seen[fault, rank] = Demo(ended, json.loads(ended.stdout))
        return seen[fault, rank]

    return run_demo


PLANTED = [("slow-loader", 1), ("slow-rank", 0)]
BOTH = [pytest.param(*PLANTED[0], marks=pytest.mark.promise), PLANTED[1], *(soak(f, 1 - rank) for f, rank in PLANTED)]
BUSY = "esprof: this machine is busy: "


@pytest.mark.parametrize(("fault", "rank"), BOTH)
def test_the_planted_fault_is_the_first_finding_or_the_demo_reports_why_not(demo, fault, rank):
    found = demo(fault, rank)
    first = next((finding for finding in found.findings if finding["id"] != CPU_CONTENTION), None)
    if first is None or not (first["id"].startswith(FAMILY_OF_FAULT[fault]) and first["ranks"] == [rank]):
        assert BUSY in found.ended.stderr, found.findings
    priced = [finding for finding in found.findings if finding["saving_us"]]
    order = [(one["is_bound"] or one["saving_pct"] < 3, is_doubtful(one), -one["saving_us"]) for one in priced]
    assert order == sorted(order)


def is_doubtful(finding):
    return finding["saving_low_us"] < finding["saving_us"] / 2


def test_without_a_fault_nothing_is_found_above_5_percent_or_the_demo_reports_why(demo):
    found = demo("none", 1)
    if any(finding["saving_pct"] > MAX_QUIET_COST_PCT for finding in found.findings if finding["id"] != CPU_CONTENTION):
        assert BUSY in found.ended.stderr, found.findings


def test_the_run_contains_neither_the_name_of_the_fault_nor_its_rank(demo):
    """All that differs between the commands is the name of a temporary folder."""
    runs = [demo(*planted).ended.run for planted in PLANTED]
    commands = [[word for word in run.meta.command if not word.startswith("--config=")] for run in runs]
    assert commands[0] == commands[1]
    for run_ in runs:
        said = " ".join(run_.meta.command)
        assert "slow" not in said
        assert "loader" not in said


@pytest.mark.promise
def test_the_demo_prints_the_path_of_its_report(demo):
    ended = demo("slow-loader", 1).ended
    assert (ended.out / "report.html").stat().st_size > 100_000
    assert str(ended.out / "report.html") in ended.stderr


@pytest.mark.promise
def test_the_report_draws_the_finding_in_a_browser(demo, tmp_path):
    found = demo("slow-loader", 1)
    with chromium(tmp_path / "profile") as browser:
        browser.get((found.ended.out / "report.html").as_uri())
        wait_for_charts(browser)
        text = browser.execute_script("return document.body.innerText")
        bars = browser.execute_script("return document.querySelectorAll('#breakdown-chart .bars .point path').length")
        assert browser.get_log("browser") == []
    assert found.findings[0]["title"] in text
    assert bars >= 2


@pytest.mark.promise
def test_the_jobs_own_output_stays_off_stdout_under_json(demo):
    ended = demo("slow-loader", 1).ended
    assert "loss" in ended.stderr
    assert "loss" not in ended.stdout


def test_the_demo_refuses_to_overwrite(demo):
    out = demo("slow-loader", 1).ended.out
    again = run([*ESPROF, "demo", "-o", str(out)])
    assert again.code == 1
    assert "already exists" in again.stderr
    assert "--force" in again.stderr


def test_a_redacted_export_of_the_run_has_no_name_of_the_job(demo, tmp_path):
    run_, file = demo(*PLANTED[0]).ended.run, tmp_path / "export.json"
    assert esprof("export", run_.path, "--format", "chrome", "--redact", "-o", file).returncode == 0
    names = {name for rank in run_.ranks for name in run_.events(rank).texts("name")}
    names = {name for name in names if not name.startswith(("ProfilerStep#", "esprof.step#"))}
    assert len(names) > 100
    text = file.read_text()
    assert not [name for name in names if json.dumps(name, ensure_ascii=False)[1:-1] in text]
    assert not [name for name in (str(run_.path), *(meta.host for meta in run_.meta.ranks)) if f'"{name}' in text]


def test_a_redacted_run_has_no_name_of_the_job(demo, tmp_path):
    run_, out = demo(*PLANTED[0]).ended.run, tmp_path / "shared"
    assert esprof("export", run_.path, "--format", "run", "--redact", "-o", out).returncode == 0
    names = ["demo_job", "GPT.forward", "Block.attention", "Corpus.read", "AdamW"]
    assert names_in(run_.path, names) == names
    names += [str(run_.path), *run_.meta.command, *(meta.host or "" for meta in run_.meta.ranks)]
    assert not names_in(out, [name for name in names if len(name) > 4])  # Bytes may form a shorter word by chance.
    first, found = (diagnose(one).findings[0] for one in (run_, load(out)))
    assert (found.id, found.ranks, found.saving_us) == (first.id, first.ranks, first.saving_us)
