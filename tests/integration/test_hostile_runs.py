"""A Run whose every text tries to steer what shows it: terminals, pages, CI logs."""

import json
import re
import shutil

import pytest

from esprof.run.logs import HISTORY, ROUNDS, JobEvent, Round, Setting
from tests.cases.command_line import esprof
from tests.cases.elastic_runs import elastic_run
from tests.cases.report import HOSTILE
from tests.cases.run_directory import write_run

pytestmark = pytest.mark.integration

TEXT = f"{HOSTILE}\r\x07\x9b31m"
STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|^\s*::error", re.MULTILINE)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "run"
    whole = elastic_run([[0, 1], [2]], [5_000_000, 9_000_000])
    write_run(path, whole.meta, {("events", rank): whole.events(rank) for rank in whole.ranks})
    write_run(path, whole.meta, {("steps", rank): whole.steps(rank) for rank in whole.ranks})
    meta = json.loads((path / "run.json").read_text())
    for rank in meta["ranks"]:
        knob = {"name": TEXT, "value": TEXT, "reason": TEXT}
        rank |= {"host": TEXT, "device": TEXT, "peak_memory": 5, "peak_memory_of": TEXT, "knobs": [knob]}
    for group in meta["groups"]:
        group |= {"backend": TEXT, "description": TEXT}
    warning = {"code": TEXT, "message": TEXT, "ranks": [0]}
    meta |= {"command": [TEXT, "-m", TEXT], "versions": {TEXT: TEXT, "torch": TEXT}, "warnings": [warning]}
    (path / "run.json").write_text(json.dumps(meta))
    setting = Setting(ests=((0, 1), (2,)), codec=TEXT)
    HISTORY.append(path, JobEvent(what="adopted", step=7, version=2, plan=TEXT, reason=TEXT, was=setting))
    ROUNDS.append(path, Round(round=1, kind="compression", step=5, outcome="kept", plan=TEXT, codec=TEXT, why=TEXT))
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["diagnose"],
        ["diagnose", "--json"],
        ["replay", "--what-if", "network=2x"],
        ["ops"],
        ["recommend"],
        ["validate"],
        ["check", "--baseline", "SAME", "--format", "github"],
        ["check", "--baseline", "SAME", "--format", "markdown"],
        ["check", "--baseline", "SAME", "--format", "junit"],
        ["merge", "-o", "MERGED"],
    ],
    ids=" ".join,
)
def test_no_text_of_a_run_steers_a_terminal_or_a_ci_log(run, tmp_path, words):
    shutil.copytree(run, tmp_path / "same")
    names = {"SAME": str(tmp_path / "same"), "MERGED": str(tmp_path / "merged")}
    done = esprof(words[0], run, *(names.get(word, word) for word in words[1:]))
    assert done.returncode == 0, done.stderr
    assert not STEERS.search(done.stdout)
    assert not STEERS.search(done.stderr)
    if "markdown" in words:
        assert "<script" not in done.stdout


def test_no_text_of_a_run_becomes_a_part_of_the_report(run, tmp_path):
    assert esprof("report", run, "-o", tmp_path / "report.html").returncode == 0
    page = (tmp_path / "report.html").read_text()
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert not STEERS.search(page)
