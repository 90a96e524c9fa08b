"""The plan before and after, as the page shows it."""

from msgspec.structs import replace

from esprof.analyzers.advisors.recommend import Recommendations, recommend
from esprof.reports.html.page import render_html, render_plan
from esprof.reports.html.plan_changes import changes
from tests.cases import report as case
from tests.cases.elastic_runs import elastic_run
from tests.cases.saving_runs import job_that_saves


def test_a_change_has_a_bar_for_the_step_before_and_after_it():
    ests, *_ = changes(case.advice())
    assert (ests.table, ests.is_advised) == ("ests", True)
    assert ests.text.startswith("A step would take 18.1 ms instead of 36.1 ms, 49.8 % less; ")
    assert ests.effect == "in the running job; the same bits in training"
    before, after = ests.steps
    assert (before.text, before.step_pct) == ("36.1 ms", 100)
    assert after.text == "18.1 ms (11.6 to 24.6 ms)"
    assert after.low_pct < after.step_pct < after.high_pct


def test_what_is_recommended_comes_first():
    jobs = {
        "assignment": elastic_run([[0, 1, 2, 3], [4, 5, 6, 7]], (3_000, 3_000)),
        "checkpoint": job_that_saves(),
    }
    advice = {kind: recommend(job, kind) for kind, job in jobs.items()}
    saves, ests = changes(Recommendations(advice=advice, declined={}, plan=advice["checkpoint"].plan))
    assert saves.text == "Save every 15 steps: 3.3 % of the training."
    assert saves.steps[1].low_pct == saves.steps[1].high_pct
    assert ests.text.startswith("Keep what you have: a step takes ")
    assert (ests.is_advised, ests.effect) == (False, "")


def test_the_page_of_a_plan_has_no_script():
    page = render_plan(case.with_texts(case.advice(), case.HOSTILE), case.HOSTILE)
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("before and after") == 1


def test_the_page_lists_what_gets_no_advice():
    page = render_html(case.report(advice=replace(case.advice(), declined={"loader": "no DataLoader was recorded"})))
    assert page.count("<dt>loader</dt><dd>no DataLoader was recorded</dd>") == 1
    assert 'id="plan"' not in render_html(case.report(advice=None))
