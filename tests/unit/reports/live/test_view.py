"""The view of a job: its state, its ESTs, and the state of its proposal."""

import os
import time

import pytest

from esprof.core.plan import write_plan
from esprof.reports.live.job import WatchedJob
from esprof.reports.live.proposal import LatestSearch, write_search
from esprof.reports.live.view import view_of
from esprof.run.logs import HISTORY, JobEvent
from tests.cases import live
from tests.cases.plans import plan_of


def seen(run):
    job = WatchedJob(run, "run")
    job.refresh()
    return view_of(job)


@pytest.fixture
def run(tmp_path):
    return live.running(tmp_path / "run")


def test_figures_are_of_the_newest_steps_with_the_same_plan(run):
    live.write_steps(run, [live.live_step(60, 90_000.0, version=1, twice=True)])
    live.write_steps(
        run, [live.live_step(61 + step, 20_000.0, (3, 1), (18_000.0, 6_000.0), version=1) for step in range(9)]
    )
    view = seen(run)
    assert (view.step_us, view.newest, view.version, view.next_step) == (20_000.0, 9, 1, 70)
    assert [(rank.count, rank.busy_us, rank.waits_us) for rank in view.ranks] == [(3, 18e3, 0), (1, 6e3, 12e3)]
    # Busy, waiting and the rest are the whole step.
    assert view.rest_us == 2e3
    assert view.idle_pct == pytest.approx(100 * (1 - 12 / 18))


def test_ids_of_ests_are_known_if_the_counts_agree(run):
    assert [rank.ests for rank in seen(run).ranks] == [None, None]
    plan = live.adopted(run)
    assert [rank.ests for rank in seen(run).ranks] == [(0, 1, 2), (3,)]
    HISTORY.append(run, JobEvent(what="reverted", step=90, plan=plan.id, version=1))
    live.write_steps(run, [live.live_step(90)])
    assert [rank.ests for rank in seen(run).ranks] == [(0, 1), (2, 3)]


def test_a_job_restarted_from_a_checkpoint_starts_a_new_chart(run):
    live.write_steps(run, [live.live_step(step) for step in range(40, 45)])
    assert [step.step for step in seen(run).steps] == [40, 41, 42, 43, 44]


def test_the_state_of_a_job(run, tmp_path):
    assert seen(run).state == "running"
    hour = time.time() - 3 * 3600 - 100
    os.utime(run / "live.jsonl", (hour, hour))
    view = seen(run)
    assert (view.state, view.quiet_s) == ("quiet", 3 * 3600)
    HISTORY.append(run, JobEvent(what="left", step=60))
    assert seen(run).state == "left"
    (tmp_path / "new").mkdir()
    assert seen(tmp_path / "new").state == "empty"
    (tmp_path / "new" / "run.json").write_text("{}")
    assert seen(tmp_path / "new").state == "recorded"
    HISTORY.append(tmp_path / "new", JobEvent(what="started", step=0))
    assert seen(tmp_path / "new").state == "waiting"


def test_the_state_of_a_proposal(run):
    assert seen(run).proposal_state == "proposed"
    write_search(run, LatestSearch(proposal=live.proposal_of(now=((0,), (1, 2, 3)))))
    assert seen(run).proposal_state == "outdated"
    write_search(run, LatestSearch(reason="too few steps"))
    assert (seen(run).proposal_state, seen(run).reason) == ("none", "too few steps")


def test_the_status_of_an_earlier_plan_is_not_that_of_the_newest(run):
    live.adopted(run)
    assert seen(run).plan.status.state == "adopted"
    write_plan(run / "plan.json", plan_of(live.EVEN, version=2))
    assert seen(run).plan.status is None


def test_a_plan_on_trial_can_be_rolled_back_until_the_job_restarts(run):
    live.adopted(run, state="trying")
    assert seen(run).plan.adopted.was.ests == live.EVEN
    HISTORY.append(run, JobEvent(what="started", step=60))
    assert seen(run).plan.adopted is None


def test_change_points_before_the_first_read_start_no_search(run):
    live.write_steps(run, [live.live_step(60 + step, 90_000.0) for step in range(100)])
    job = WatchedJob(run, "run")
    job.refresh()
    assert not job.has_changed
    live.write_steps(run, [live.live_step(160 + step, 20_000.0) for step in range(100)])
    job.refresh()
    assert job.has_changed
