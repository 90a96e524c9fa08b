"""Plans sent to a running elastic job by `esprof apply`, and their events in its Run."""

import json
import subprocess
import time

import pytest

from esprof.core.plan import write_plan
from esprof.run.logs import HISTORY
from tests.cases import record
from tests.cases.command_line import esprof
from tests.cases.elastic_job import small_trainer
from tests.cases.plans import plan_of

pytestmark = pytest.mark.integration

UNTIL, PAUSE_S = 90, 0.03
"""Steps, and a pause after each, so that the plans come in time."""
EVEN, OTHER = ((0, 1), (2, 3)), ((3,), (0, 1, 2))


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A folder: a job of two processes trained, and got a plan, one that does not fit, and one with another codec."""
    folder = tmp_path_factory.mktemp("job")
    run = folder / "run"
    options = {"telemetry": str(run), "plan": str(run / "plan.json"), "hash_log": str(folder / "moved.jsonl")}
    words = record.forks(
        2, record.JOBS / "elastic_steps.py", "--until", UNTIL, "--pause", PAUSE_S, "--options", json.dumps(options)
    )
    said = {}
    with subprocess.Popen(
        list(map(str, words)), env=record.environment(), text=True, stderr=subprocess.PIPE
    ) as process:
        while not HISTORY.read(run):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        plans = {"fits": plan_of(OTHER), "larger": plan_of(((0, 1), (2, 3), (4,)), n_est=5), "back": plan_of(EVEN)}
        for name, plan in plans.items():
            write_plan(folder / f"{name}.json", plan)
            said[name] = esprof("apply", folder / f"{name}.json", run, "--json")
        assert process.wait(timeout=200) == 0, process.stderr.read()
    return folder, said


@pytest.mark.promise
def test_the_job_reports_whether_it_adopts_a_plan(job):
    folder, said = job
    assert said["fits"].returncode == 0, said["fits"].stderr
    assert json.loads(said["fits"].stdout)["state"] == "adopted"
    assert said["larger"].returncode == 1
    assert "refused the plan: it is for a job of 5 ESTs; this job has 4" in said["larger"].stderr
    assert said["back"].returncode == 0, said["back"].stderr
    # Each got a version above the one before: the refused one was 2.
    assert json.loads(said["back"].stdout)["version"] == 3
    assert json.loads((folder / "run/plan.json").read_text())["version"] == 3


@pytest.mark.promise
def test_the_bits_are_those_of_a_job_without_plans(job):
    folder, _ = job
    static = small_trainer(hash_log=folder / "static.jsonl")
    for _ in range(UNTIL):
        static.step()
    static.close()
    done = esprof("elastic", "diff", folder / "static.jsonl", folder / "moved.jsonl")
    assert (done.returncode, done.stdout[:5]) == (0, "equal"), done.stdout


@pytest.mark.promise
def test_the_history_has_all_events_in_order(job):
    folder, _ = job
    events = [event for event in HISTORY.read(folder / "run") if event.what != "proven"]
    assert [event.what for event in events] == ["started", "adopted", "refused", "adopted"]
    assert events[1].step < events[3].step
    page = folder / "report.html"
    assert esprof("report", folder / "run", "-o", page).returncode == 0
    assert "plan refused" in page.read_text()
    assert "it is for a job of 5 ESTs" in page.read_text()


def test_a_plan_without_a_running_job_is_an_error(tmp_path):
    write_plan(tmp_path / "plan.json", plan_of(EVEN))
    done = esprof("apply", tmp_path / "plan.json", tmp_path / "watched.json", "--wait", "0.1")
    assert done.returncode == 1
    assert "no job has answered within 0.1 s" in done.stderr
    assert (tmp_path / "watched.json").exists()
    assert esprof("apply", tmp_path / "plan.json", tmp_path / "watched.json", "--wait", "0").returncode == 0


@pytest.mark.parametrize(
    ("target", "says"), [("no/folder/plan.json", "no folder"), ("127.0.0.1:1/key", "no store answers")]
)
def test_invalid_targets_are_errors(tmp_path, target, says, monkeypatch):
    monkeypatch.setattr("esprof.reports.commands.apply._MAX_WAIT_FOR_STORE_S", 0.5)
    write_plan(tmp_path / "plan.json", plan_of(EVEN))
    done = esprof("apply", tmp_path / "plan.json", target, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
