"""One kind of advice, or all of which a run has evidence."""

import pytest

from esprof.analyzers import recommend, recommend_all, summarize
from esprof.analyzers.advisors.recommend import Wanted
from esprof.core.errors import EsprofError
from esprof.core.plan import check
from tests.cases.elastic_runs import elastic_run
from tests.cases.graph import ddp_rank, run_of
from tests.cases.saving_runs import job_that_saves


def test_all_advice_is_in_one_plan():
    run = elastic_run([[0, 1, 2, 3], [4, 5, 6, 7]], (3_000, 9_000))
    found = recommend_all(run)
    assert "assignment" in found.advice
    assert "has no saves" in found.declined["checkpoint"]
    assert found.plan.parts == recommend(run, "assignment").plan.parts
    check(found.plan)


def test_the_report_has_all_advice():
    run = elastic_run([[0, 1, 2, 3], [4, 5, 6, 7]], (3_000, 9_000))
    assert summarize(run).advice == recommend_all(run)
    assert summarize(run_of({rank: ddp_rank() for rank in range(2)})).advice is None


def test_a_run_without_any_evidence():
    with pytest.raises(EsprofError, match="gives no advice: assignment: "):
        recommend_all(job_that_saves(name="forward"))


def test_what_is_wanted_reaches_the_advisor():
    assert recommend(job_that_saves(), "checkpoint", Wanted(max_overhead_pct=1.0)).advised == pytest.approx(50, abs=2)
