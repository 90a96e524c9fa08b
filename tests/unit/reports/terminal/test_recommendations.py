"""All advice on one job, as text."""

from esprof.analyzers.advisors.checkpoint.advise import advise_checkpoints
from esprof.analyzers.advisors.recommend import recommend_all
from esprof.analyzers.recorded_job import RecordedJob
from esprof.core.save_cost import Failures
from esprof.reports.terminal.advice.recommendations import draw_advice, draw_recommendations
from tests.cases.saving_runs import job_that_saves


def test_the_interval_of_checkpoints():
    lines = draw_advice(advise_checkpoints(RecordedJob(job_that_saves()))).splitlines()
    assert lines[0] == "Save every 15 steps: 3.3 % of the training"
    rows = {int(line.split()[0]): line for line in lines if " steps " in line and line.split()[0].isdigit()}
    assert sorted(rows) == [5, 10, 15, 20]
    assert rows[10].endswith("now")
    assert rows[15].endswith("shortest within 3.5 %")
    assert any("give --mtbf HOURS" in line for line in lines)


def test_with_failures():
    text = draw_advice(advise_checkpoints(RecordedJob(job_that_saves()), failures=Failures(mtbf_ns=3_600e9)))
    assert "with failures" in text
    assert "loses least" in text
    assert "at most 1 % of the run time more" in text


def test_an_interval_that_stays():
    text = draw_advice(advise_checkpoints(RecordedJob(job_that_saves()), max_overhead_pct=5.0))
    assert text.startswith("Keep saving every 10 steps")


def test_advice_of_all_kinds_and_why_there_is_none():
    found = recommend_all(job_that_saves())
    assert set(found.advice) == {"checkpoint"}
    assert found.plan.parts.checkpoint.body.every == 15
    text = draw_recommendations(found)
    assert text.startswith("Checkpoint\n")
    assert "no advice on" in text
    assert "assignment" in text
