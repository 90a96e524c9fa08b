"""`esprof recommend --search` on a Run on disk, whose steps wait for a DataLoader."""

import json

import pytest
from click.testing import CliRunner

from esprof.core.errors import EsprofError
from esprof.reports.commands import recommend
from tests.cases.loading import loading_job
from tests.cases.run_directory import write_run


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    run, path = loading_job(cpus=8), tmp_path_factory.mktemp("runs") / "loading"
    write_run(path, run.meta, {("events", 0): run.events(0), ("stages", 0): run.stages(0), ("steps", 0): run.steps(0)})
    return path


def searched(*arguments):
    given = [str(argument) for argument in ("--search", *arguments)]
    return CliRunner().invoke(recommend.command, given, catch_exceptions=False)


def test_the_answer_and_the_plan(saved, tmp_path):
    plan = tmp_path / "plan.json"
    done = searched(saved, "--json", "-o", plan)
    found = json.loads(done.stdout)
    assert next(iter(found.items())) == ("schema", "esprof.search/1")
    assert found["what_if"] == "loader.workers=3"
    assert found["complete"]
    assert json.loads(plan.read_text())["parts"]["loader"]["body"]["workers"] == 3


def test_a_descent_that_meets_the_bound_needs_no_further_replay(saved):
    assert "complete, by" in searched(saved, "--max-replays", "0").stdout


def test_other_batches_are_no_change_to_search_for(saved):
    with pytest.raises(EsprofError, match="'batch=2x' cannot be searched"):
        searched(saved, "--try", "batch=2x")
