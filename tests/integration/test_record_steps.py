"""`esprof record` around jobs whose steps no optimizer ends."""

import numpy as np
import pytest

from esprof.analyzers import diagnose
from esprof.run.run import Window
from tests.cases.marks import soak
from tests.cases.record import JOBS, job, record, run

pytestmark = pytest.mark.integration

WINDOWS = (Window(first=7, last=14), Window(first=16, last=17, stacks=True))


@pytest.mark.compat("no optimizer")
@pytest.mark.parametrize(
    ("name", "by", "steps", "samples"),
    [
        ("evaluation", "loader", 39, {16}),
        soak("evaluation_with_an_optimizer", "loader", 60, {16}),
        soak("calls", "module", 38, {-1}),
        ("compiled", "module", 38, {-1}),
        ("server", "job", 40, {-1}),
        ("training_after_evaluation", "optimizer", 39, {16}),
        ("server_after_training", "optimizer", 39, {16}),
    ],
)
def test_steps_are_found_by_what_is_there(name, by, steps, samples, tmp_path):
    ended = record(tmp_path / "run", job("no_optimizer.py", name))
    assert ended.code == 0, ended.stderr
    assert ended.stdout == run(job("no_optimizer.py", name)).stdout
    rank = ended.run.rank(0)
    assert (rank.paced_by, rank.windows) == (by, WINDOWS)
    rows = ended.run.steps(0)
    assert rows.ints("step").tolist() == list(range(1, steps + 1))
    assert set(rows.ints("samples").tolist()) == samples
    guessed = {"loader", "module"}
    assert [warning.code for warning in ended.warnings] == ["steps-guessed"] * (by in guessed)
    diagnosis = diagnose(ended.run)
    assert diagnosis.steps == tuple(range(8, 15))


def test_what_a_server_does_between_two_requests_is_of_no_step(tmp_path):
    found = record(tmp_path / "run", job("no_optimizer.py", "server")).run
    rows = found.steps(0)
    starts, ends = rows.ints("start_ns"), rows.ints("start_ns") + rows.ints("dur_ns")
    assert (starts[1:] - ends[:-1] >= 20_000_000).all()
    events = found.events(0)
    marks = events.where(events.is_kind("step"))
    assert marks.ints("step").tolist() == list(range(7, 15))
    behind = np.isin(rows.ints("step"), marks.ints("step") + 1)
    assert (marks.ints("dur_ns") < np.diff(starts).min()).all()
    assert (marks.ints("start_ns") + marks.ints("dur_ns") < starts[behind]).all()
    sleeps = JOBS.joinpath("no_optimizer.py").read_text().splitlines().index("        time.sleep(0.02)") + 1
    seen = [one for one in found.samples(0).texts("stack") if one is not None and f"({sleeps}): server" in one]
    assert len(seen) < 5  # A look that falls upon a border may see it.


@pytest.mark.parametrize(("what", "by"), [("modules", "module"), ("blocks", "job")])
def test_of_threads_that_serve_requests_one_counts(what, by, tmp_path):
    ended = record(tmp_path / "run", job("served_by_threads.py", what))
    assert (ended.code, ended.stdout) == (0, "400\n")
    assert ended.run.rank(0).paced_by == by
    assert len(ended.run.rank(0).windows) == 2
    assert {warning.code for warning in ended.warnings} <= {"steps-guessed"}
    assert ended.run.steps(0).ints("step").tolist() == list(range(1, 99 if by == "module" else 101))


@pytest.mark.parametrize("how", ["off", "twice"])
def test_profilers_of_the_jobs_own_that_are_off_or_two_in_a_step(how, tmp_path):
    ended = record(tmp_path / "run", job("odd_profilers.py", how))
    assert ended.code == 0, ended.stderr
    assert ended.warnings == []
    assert ended.run.rank(0).windows == WINDOWS
    rows = ended.run.steps(0)
    assert rows.ints("step").max() == 39
    phases = dict(zip(rows.ints("step").tolist(), rows.texts("phase"), strict=True))
    assert [step for step, phase in phases.items() if phase == "export" and step > 20] == (
        [30] if how == "twice" else []
    )
