"""Runs of several windows: the analysed window, and the duration of unprofiled steps."""

import json

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from esprof.core.errors import InputError, UsageError
from esprof.replay import answer
from esprof.replay.steps import at_window, plain_ns, steps_of
from esprof.reports.commands import diagnose, replay
from esprof.run.logs import JobEvent, Round
from esprof.run.overhead import Overhead
from esprof.run.run import Run, RunWarning
from tests.cases import step_runs
from tests.cases.flight import call as call_of_group
from tests.cases.flight import killed, run_of_flight, snapshot
from tests.cases.graph import call, gloo, op, run_of, step
from tests.cases.run_directory import write_run

MS = 1_000.0
WINDOWS = (range(10, 14), range(30, 35), range(50, 55))


def rank_rows(late_ms=0.0):
    """Three windows, of 4, 5 and 5 steps. Step N takes 20 ms and N µs."""
    rows = []
    for number in (number for window in WINDOWS for number in window):
        at = number * 100 * MS
        end = at + 20 * MS + number
        rows += [
            step(number, at, end),
            op("aten::linear", at + late_ms * MS, 10 * MS),
            *gloo(at + 12 * MS, at + 12 * MS + 5, end - MS),
            op("Optimizer.step", end - MS, MS / 2),
        ]
    return rows


@pytest.fixture(scope="module")
def run():
    return run_of({0: rank_rows(), 1: rank_rows(late_ms=1)})


def test_windows_are_the_stretches_that_all_ranks_recorded(run):
    assert steps_of(run).windows == tuple(WINDOWS)


@pytest.mark.parametrize(("asked", "window"), [(11, 0), (30, 1), (34, 1), (54, 2)])
def test_only_the_window_with_the_step_is_analysed(run, asked, window):
    found = answer(at_window(run, asked))
    steps = [step.step for step in found.steps] + [step.step for step in found.left_out]
    assert sorted(steps) == list(WINDOWS[window])
    assert not [warning for warning in found.warnings if warning.code in ("one-window", "steps-left-out")]


def test_a_window_keeps_all_else_of_the_run(run):
    event = JobEvent(what="started", step=0)
    one_round = Round(round=1, kind="compression", step=8, outcome="kept")
    whole = Run(run.meta, run.recorded, warnings=(RunWarning("a", "b"),), history=(event,), rounds=(one_round,))
    whole.keeps_one_rank = True
    whole.sources = ("trace.json", "--columns", "op=optype")
    alone = at_window(whole, 31)
    assert alone.window == 31
    kept = "meta", "warnings", "sources", "history", "rounds", "keeps_one_rank"
    assert [getattr(alone, name) for name in kept] == [getattr(whole, name) for name in kept]
    assert len(whole.steps(0)) == sum(map(len, WINDOWS))


def test_without_a_choice_the_answer_says_that_there_are_more(run):
    (warning,) = [warning for warning in answer(run).warnings if warning.code == "one-window"]
    assert "one of 3 windows" in warning.message
    assert "--window" in warning.message


def test_a_step_outside_all_windows_is_refused_and_the_windows_are_listed(run):
    with pytest.raises(UsageError, match="step 20 is in no window") as refusal:
        at_window(run, 20)
    assert "10–13, 30–34, 50–54" in str(refusal.value.remedy)


def test_the_verbs_take_a_window(run, tmp_path):
    path = tmp_path / "run"
    write_run(path, run.meta, {("events", rank): run.events(rank) for rank in run.ranks})
    asked = CliRunner().invoke(replay.command, [str(path), "--json", "--window", "12"], catch_exceptions=False)
    assert [step["step"] for step in json.loads(asked.stdout)["steps"]] == [11, 12, 13]
    asked = CliRunner().invoke(diagnose.command, [str(path), "--json", "--window", "31"], catch_exceptions=False)
    assert json.loads(asked.stdout)["steps"] == [31, 32, 33, 34]


def phased(before, window, after):
    return ["plain"] * before + ["warmup", *["timed"] * window, "export"] + ["plain"] * after


def job(step_ms, phases):
    return step_runs.step_table(step_ms, first=1, phase=phases)


def test_plain_steps_exclude_profiled_steps_and_the_first():
    phases = phased(4, 3, 4)
    times = [90, 10, 12, 11, 50, 20, 20, 20, 80, 10, 11, 30, 11]
    table = job(times, phases)
    assert plain_ns(step_runs.run(table), [6, 7, 8], {}).tolist() == [10e6, 12e6, 11e6, 10e6, 11e6, 30e6, 11e6]


def test_the_plain_steps_next_to_the_window_count():
    phases = phased(300, 3, 300)
    times = np.r_[np.full(240, 50.0), np.full(125, 100.0), np.full(240, 70.0)]
    assert np.median(plain_ns(step_runs.run(job(times, phases)), range(302, 305), {})) == 100e6


def test_the_jobs_step_runs_from_the_last_rank_to_the_last_rank():
    """Two ranks late in alternating steps: a rank's steps vary, the job's do not; clocks are aligned first."""
    phases = phased(6, 2, 6)
    early = job([10.0] * 16, phases)
    ahead = step_runs.step_table([10.0] * 16, first=1, phase=phases, start_ns=step_runs.EPOCH_NS + 5_000_000)
    uneven = job([8.0, 12.0] * 8, phases)
    assert set(plain_ns(step_runs.run(early, ahead), [8, 9], {1: -5_000_000})) == {10e6}
    assert set(plain_ns(step_runs.run(early, uneven), [8, 9], {})) == {10e6}


def test_too_few_plain_steps_give_no_baseline():
    phases = phased(2, 3, 1)
    assert len(plain_ns(step_runs.run(job([10.0] * 8, phases)), [4, 5, 6], {})) == 0


def test_replay_separates_profiled_from_unprofiled_steps(run):
    window, steps = WINDOWS[1], range(20, 60)
    times = [25.0 if number in window else 20.0 for number in steps]
    starts = [run.steps(0).ints("start_ns")[0] + (number - 10) * 100_000_000 for number in steps]
    phases = ["timed" if number in window else "plain" for number in steps]
    noted = step_runs.step_table(times, first=20, phase=phases)
    noted = step_runs.table(
        {"step": noted.ints("step"), "start_ns": starts, "dur_ns": noted.ints("dur_ns"), "phase": phases},
        step_runs.STEPS,
    )
    one = run_of({0: [row for row in rank_rows() if row.ts >= 3_000 * MS and row.ts < 3_500 * MS]})
    alone = Run(
        one.meta, lambda name, rank: noted if name == "steps" else one.events(rank) if name == "events" else None
    )
    found = answer(alone)
    assert [step.step for step in found.steps] == [31, 32, 33, 34]
    assert found.unprofiled_step_us == 20_000.0
    assert found.overhead == Overhead(pct=25.0, low_pct=25.0, high_pct=25.0)
    assert answer(run).unprofiled_step_us is None


# A rank or step that was not recorded


def job_rows(steps=range(8), lost=(), late_ms=0.0):
    """Consecutive steps of 20 ms, except lost ones."""
    rows = []
    for number in (number for number in steps if number not in lost):
        at = number * 20 * MS
        rows += [
            step(number, at, at + 20 * MS),
            op("aten::linear", at + late_ms * MS, 10 * MS),
            *gloo(at + 12 * MS, at + 12 * MS + 5, at + 19 * MS),
            op("Optimizer.step", at + 19 * MS, MS / 2),
        ]
    return rows


def test_a_step_that_a_rank_lost_is_left_out_and_hides_no_others():
    steps = steps_of(run_of({0: job_rows(), 1: job_rows(lost=(4,))}))
    assert steps.windows == (range(8),)
    assert steps.steady == (1, 2, 3, 6, 7)
    assert str(steps.left_out[4]) == "rank 1 did not record it"
    assert str(steps.left_out[5]) == "rank 1 did not record the step before"


def test_the_first_of_few_steps_counts_where_others_were_lost():
    assert steps_of(run_of({0: job_rows(range(4)), 1: job_rows(range(4), lost=(2,))})).steady == (0, 1)


def test_the_steps_next_to_a_lost_one_are_as_in_a_complete_run():
    """Rank 1 is 1 ms late in each step; the step that it lost does not change the findings on the others."""
    whole = answer(run_of({0: job_rows(), 1: job_rows(late_ms=1)}), ["cpu=2x"])
    lost = answer(run_of({0: job_rows(), 1: job_rows(late_ms=1, lost=(4,))}), ["cpu=2x"])
    assert lost.what_if[0].predicted_us == pytest.approx(whole.what_if[0].predicted_us, rel=0.001)
    assert all(abs(step.error_pct) < 0.1 for step in lost.steps)
    assert all(abs(step.error_pct) < 0.1 for step in lost.prediction.held_out)
    assert lost.coverage.unmatched_by_rank == {0: 1, 1: 0}
    assert [one.step for one in lost.left_out] == [0, 4, 5]


def test_in_a_step_that_a_rank_lost_the_others_are_matched_with_one_another():
    run = run_of({0: job_rows(), 1: job_rows(lost=(4,)), 2: job_rows()})
    found = answer(run, ["cpu=2x"])
    assert (found.coverage.collectives_matched, found.coverage.collectives_partial) == (23, 2)
    assert set(found.coverage.unmatched_by_rank.values()) == {0}
    assert "cannot be separated" not in (found.what_if[0].note or "")  # That step does not count.


def test_a_lost_step_never_counts_whatever_is_wrong_with_the_others():
    allocating = [call("cudaMalloc", number * 20 * MS, 10 * MS) for number in range(3)]
    steps = steps_of(run_of({0: [*job_rows(range(3)), *allocating], 1: job_rows(range(3), lost=(1,))}))
    assert steps.steady == (0,)
    assert sorted(steps.left_out) == [1, 2]


def test_several_steps_that_a_rank_lost_end_the_window():
    steps = steps_of(run_of({0: job_rows(), 1: job_rows(lost=(3, 4))}))
    assert steps.windows == (range(3), range(5, 8))
    assert steps.lost == [3, 4]


def test_a_rank_without_cpu_operations_is_left_out_as_if_its_trace_were_missing():
    def without(rows):
        return [row for row in rows if row.cat != "cpu_op"]

    run = run_of({0: job_rows(), 1: job_rows(), 2: without(job_rows())})
    found = answer(run)
    assert found.coverage.missing_ranks == (2,)
    (warning,) = (one for one in found.warnings if one.code == "no-operations")
    assert (warning.ranks, "rank 2 left out" in warning.message) == ((2,), True)
    assert found.coverage.collectives_partial == found.coverage.collectives
    with pytest.raises(InputError, match="no CPU operation"):
        answer(run_of({0: without(job_rows())}))


def test_a_rank_without_cpu_operations_in_the_analysed_steps_is_left_out():
    """Rank 1 has operations in its first step only, which is another window."""
    both = run_of({0: [*job_rows((0,)), *job_rows(range(10, 14))], 1: [*job_rows((0,)), *marks(range(10, 14))]})
    assert steps_of(both).run.ranks == [0]


def marks(steps):
    return [step(number, number * 20 * MS, (number + 1) * 20 * MS) for number in steps]


def test_a_job_that_hung_is_not_told_to_record_more():
    hung = run_of_flight({rank: killed(snapshot(rank, [call_of_group(1, over=False)])) for rank in (0, 1)})
    with pytest.raises(InputError) as error:
        steps_of(hung)
    assert "esprof diagnose" in error.value.remedy
    with pytest.raises(InputError) as error:
        steps_of(run_of({0: [step(1, 0, 10)], 1: [step(2, 10, 20)]}))
    assert error.value.remedy.startswith("Record the same steps on all ranks")


def test_all_corrected_clocks_are_one_warning():
    """Six ranks on hosts of their own, five of which are ahead by 50 ms and more."""
    rows = {rank: [ahead(row, 50 * MS * rank) for row in rank_rows(late_ms=rank / 10)] for rank in range(6)}
    found = answer(run_of(rows, hosts={rank: f"host{rank}" for rank in rows}))
    (warning,) = [warning for warning in found.warnings if warning.code == "clock-shifted"]
    assert "host1 by" in warning.message
    assert " more" in warning.message


def ahead(row, by):
    return msgspec.structs.replace(row, ts=row.ts + by)
