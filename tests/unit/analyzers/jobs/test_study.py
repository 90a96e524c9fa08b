"""Counts and shares of a job log, and which gang size to ask for."""

import json
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.analyzers.jobs.log import STATES, JobLog
from esprof.analyzers.jobs.read import read_log
from esprof.analyzers.jobs.study import study
from tests.cases.properties import thorough

DAY = 86_400


def log(rows, lacks=()):
    """A log of (job, state, GPUs, servers, queued, started, duration)."""
    job, state, gpus, servers, queued, started, run = zip(*rows, strict=True)
    return JobLog(
        format="by hand",
        job=np.array(job),
        state=np.array(state, object),
        gpus=np.array(gpus, float),
        servers=np.array(servers, float),
        queued_s=np.array(queued, float),
        started_s=np.array(started, float),
        run_s=np.array(run, float),
        lacks=frozenset(lacks),
    )


def waiting(gpus, wait_of_day, per_day=10):
    """A job of `gpus` GPUs for each wait, seconds, of `per_day` jobs on each day."""
    rows = []
    for day, wait in enumerate(wait_of_day):
        for at in range(per_day):
            queued = day * DAY + at
            rows.append((f"{gpus}/{day}/{at}", "completed", gpus, 1, queued, queued + wait, 60))
    return rows


def numbered(rows):
    return [(number, *row[1:]) for number, row in enumerate(rows)]


PHILLY_STATES = {"Pass": (604, 0.321), "Killed": (90, 0.294), "Failed": (305, 0.386)}
"""Jobs of 999, and share of GPU time, by final state: the summary of Philly that Acme's authors published."""
PHILLY_WAITS_S = [189] * 500 + [7_339] * 499
PHILLY_SIZES = {1: (9_320, 0.181), 4: (450, 0.199), 8: (200, 0.484), 16: (35, 0.136)}
"""Jobs, and share of GPU time, by number of GPUs: the reduced log of Philly, a job in eight."""


def stamp(seconds):
    return str(datetime(2017, 10, 1) + timedelta(seconds=seconds))


def test_states_and_waits_of_the_published_summary_of_philly(tmp_path):
    jobs, waits = [], iter(PHILLY_WAITS_S)
    for state, (count, share) in PHILLY_STATES.items():
        for _ in range(count):
            start, run = next(waits), round(1e9 * share / count)
            attempt = {
                "start_time": stamp(start),
                "end_time": stamp(start + run),
                "detail": [{"ip": "m", "gpus": ["0"]}],
            }
            jobs.append({"status": state, "submitted_time": stamp(0), "attempts": [attempt]})
    (tmp_path / "cluster_job_log").write_text(json.dumps(jobs))
    found = study(read_log(tmp_path / "cluster_job_log"))
    assert [round(one.jobs_share, 3) for one in found.states] == [
        0.605,
        0.09,
        0.305,
    ]  # Published: 0.604, of rounded shares.
    assert [one.gpu_time_share for one in found.states] == pytest.approx([0.321, 0.294, 0.386], abs=6e-4)
    assert (round(found.mean_wait_s), found.median_wait_s) == (3760, 189)


def test_sizes_of_the_published_log_of_philly(tmp_path):
    lines = ["timestamp,duration,num_gpus,gpu_time,cluster"]
    for gpus, (jobs, share) in PHILLY_SIZES.items():
        lines += [f"2017-10-09 07:01:55,{1e9 * share / jobs / gpus},{gpus},,11cb48"] * jobs
    (tmp_path / "philly.csv").write_text("\n".join(lines))
    found = study(read_log(tmp_path / "philly.csv"))
    assert [one.of for one in found.gangs] == ["1", "2–4", "5–8", "above 8"]
    assert [100 * one.jobs_share for one in found.gangs] == pytest.approx([93.2, 4.5, 2.0, 0.35], abs=0.05)
    assert [one.gpu_time_share for one in found.gangs] == pytest.approx([0.181, 0.199, 0.484, 0.136])
    assert set(found.declined) == {"queueing", "locality", "states", "retries"}
    assert (found.queueing, found.states, found.retries, found.mean_wait_s) == ((), (), None, None)


def test_waits_by_gang_and_servers():
    found = study(
        log(
            [
                (0, "failed", 8, 1, 0, 10, 100),
                (0, "failed", 8, 2, 110, 140, 50),
                (1, "completed", 8, 2, 0, 50, 10),
                (2, "completed", 0.5, 1, 0, 1, 10),
                (3, "completed", 0, 1, 0, 999, 10),
                (4, "waiting", 9, np.nan, 0, np.nan, np.nan),
                (5, "running", 1.5, 1, 100, 98, np.nan),
            ]
        )
    )
    assert [(one.gang, one.attempts, one.mean_s, one.median_s) for one in found.queueing] == [
        ("below 1", 1, 1, 1),
        ("5–8", 3, 30, 30),
    ]
    assert [(one.servers, one.attempts, one.mean_s) for one in found.locality if one.gang == "5–8"] == [
        ("1", 1, 10),
        ("2", 2, 40),
    ]
    assert found.retries.attempts == 1
    assert found.retries.gpu_hours == pytest.approx(800 / 3600)
    assert (found.jobs, found.gpu_jobs) == (6, 5)
    assert found.notes == (
        "attempts that start before their submission, left out of the waits: 1",
        "jobs with GPUs that have no start, and so no wait: 1",
        "attempts that have no end, and so no GPU time: 1",
    )


@st.composite
def logs(draw):
    attempts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=8))
    rows = []
    for job, count in enumerate(attempts):
        state = draw(st.sampled_from(STATES))
        gpus = draw(st.sampled_from([0, 0.25, 1, 3, 8, 9]))
        for _ in range(count):
            wait, run = draw(st.integers(-1, 9)), draw(st.integers(0, 9))
            rows.append((job, state, gpus, draw(st.integers(1, 6)), 100, 100 + wait, run))
    return rows


@thorough()
@given(logs())
def test_tables_are_sums_of_their_rows(rows):
    found = study(log(rows))
    with_gpus = [row for row in rows if row[2] > 0]
    total = sum(row[2] * row[6] for row in with_gpus)
    assert found.gpu_hours * 3600 == pytest.approx(total)
    for one in found.states:
        of = [row for row in with_gpus if row[1] == one.of]
        assert one.jobs == len({row[0] for row in of})
        assert one.gpu_hours * 3600 == pytest.approx(sum(row[2] * row[6] for row in of))
    assert sum(one.jobs for one in found.gangs) == found.gpu_jobs
    assert sum(one.gpu_hours for one in found.gangs) == pytest.approx(found.gpu_hours)
    in_time = [row[5] - row[4] for row in with_gpus if row[5] >= row[4]]
    assert sum(one.attempts for one in found.queueing) == sum(one.attempts for one in found.locality) == len(in_time)
    assert sum(one.attempts * one.mean_s for one in found.queueing) == pytest.approx(sum(in_time))


def test_the_size_that_completes_soonest_is_advised():
    rows = numbered([*waiting(1, [60] * 10), *waiting(8, [2 * 3600] * 10), *waiting(16, [40 * 3600] * 10)])
    advice = study(log(rows), {1: 10.0, 8: 2.0, 16: 1.2}).advice
    assert advice.gpus == 8
    assert [one.completion_h for one in advice.sizes] == pytest.approx([10 + 1 / 60, 4, 41.2])
    assert [(one.low_h, one.high_h) for one in advice.sizes][1] == pytest.approx((4, 4))
    # A faster job alone changes the advice.
    assert study(log(rows), {1: 3.0, 8: 2.0}).advice.gpus == 1


def test_waits_of_few_long_days_decide_nothing():
    rows = numbered([*waiting(1, [60] * 20), *waiting(8, [0] * 19 + [20 * 3600])])
    advice = study(log(rows), {1: 3.0, 8: 2.0}).advice
    assert advice.gpus is None
    assert advice.reason == "the waits vary too much to decide between 1 and 8 GPUs"
    assert advice.sizes[1].low_h == pytest.approx(2)
    assert advice.sizes[1].high_h > 3.5


def test_the_interval_is_that_of_resampled_days():
    rng = np.random.default_rng(1)
    waits_h = rng.exponential(2, 100)
    rows = numbered([*waiting(1, [0] * 100), *waiting(8, waits_h * 3600, per_day=3)])
    one = study(log(rows), {1: 9.0, 8: 1.0}).advice.sizes[1]
    drawn = waits_h[rng.integers(0, 100, (4000, 100))].mean(axis=1)
    assert (one.low_h - 1, one.high_h - 1) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), rel=0.05)


@pytest.mark.parametrize(
    "rows",
    [
        [*waiting(1, [60] * 10), *waiting(8, [60] * 10, per_day=2)],
        [*waiting(1, [60] * 10), *waiting(8, [60] * 4)],
        waiting(1, [np.nan] * 10),
    ],
)
def test_too_few_waits_decline_the_advice(rows):
    found = study(log(numbered(rows)), {1: 3.0, 8: 2.0})
    assert found.advice is None
    assert found.declined["gang_size"].startswith("fewer than two of the sizes have 30 waits on 5 days,")


def test_a_size_without_waits_is_named():
    rows = numbered([*waiting(1, [60] * 10), *waiting(4, [60] * 10)])
    advice = study(log(rows), {1: 3.0, 4: 1.0, 32: 0.5}).advice
    assert advice.gpus == 4
    assert advice.reason.endswith("too few waits for 32 GPUs")


def test_a_rare_size_has_the_waits_of_its_class():
    rows = numbered(
        [*waiting(1, [60] * 10), *waiting(16, [3600] * 10), *waiting(64, [36_000] * 10), *waiting(128, [0])]
    )
    sizes = study(log(rows), {1: 9.0, 64: 3.0, 128: 2.0}).advice.sizes
    assert [one.waits_of for one in sizes] == ["1", "64", "above 8"]
    assert [one.wait_h for one in sizes] == pytest.approx([1 / 60, 10, 110 / 21])
