"""`esprof recommend --only parallel` on files that planners for mixed GPUs publish."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from esprof.core.errors import UsageError
from esprof.reports.commands import recommend
from tests.cases.mixed import published_plan, published_sizes, published_times, written


def _split(*arguments: object) -> Result:
    given = [str(argument) for argument in ("--only", "parallel", *arguments)]
    return CliRunner().invoke(recommend.command, given, catch_exceptions=False)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A plan, sizes and times, in this order; the inventory is beside them."""
    (tmp_path / "gpus.yaml").write_text("devices: {A: 1, B: 2}\nnetwork_gb_per_s: 10\nper_server: 2")
    plan = published_plan(([0, 1], [("A", 1)]), ([2, 2], [("B", 2)]), real=0.06)
    return written(tmp_path, plan=plan, sizes=published_sizes(), times=published_times(A=2, B=1))


def test_the_best_plan_is_found_and_a_given_one_predicted(files: list[Path], tmp_path: Path) -> None:
    wanted = (*files, "--inventory", tmp_path / "gpus.yaml", "--batch", 16)
    split = tmp_path / "split.json"
    shown = _split(*wanted, "-o", split).stdout
    # Four microbatches of four layers of 3 ms at twice the speed on each replica, and four layers' optimizer of 0.1 ms.
    assert "Best plan: 4 on 1 × 1 A + 1 × 2 B, 24.4 ms a step" in shown
    assert "plan.json  27.2 ms   60.0 ms  −54.7 %" in shown
    assert "plan.json does not name each layer once" in shown
    found = json.loads(_split(*wanted, "--json").stdout)
    assert found == json.loads(split.read_text())
    assert found["schema"] == "esprof.mixed-parallel/1"
    checked = CliRunner().invoke(recommend.command, ["--check", str(split)], catch_exceptions=False)
    assert "verified; searched and replayed again" in checked.output


def test_options_that_do_not_fit_are_refused(files: list[Path], tmp_path: Path) -> None:
    gpus = ("--inventory", tmp_path / "gpus.yaml")
    with pytest.raises(UsageError, match="has no model other"):
        _split(*files, *gpus, "--batch", 16, "--model", "other")
    with pytest.raises(UsageError, match="--inventory and --batch"):
        _split(*files, *gpus)
    (own,) = written(tmp_path, own={"layers": []})
    with pytest.raises(UsageError, match="these are of one"):
        _split(own, *gpus, "--batch", 16, "--model", "tiny")
    with pytest.raises(UsageError, match="--model needs --only parallel"):
        CliRunner().invoke(recommend.command, [str(own), "--model", "tiny"], catch_exceptions=False)
