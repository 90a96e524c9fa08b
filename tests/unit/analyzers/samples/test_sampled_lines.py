"""Sampled source locations of the training thread: within intervals, in library calls, and after a point in time."""

import re

import numpy as np
import pytest

from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.samples.sampled_lines import seen_calling, seen_within
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.replay.cpu.sampled import RankSamples
from esprof.run.raw.stages import GARBAGE_COLLECTION
from esprof.run.run import Run
from esprof.run.schema import EVENTS, SAMPLES, STAGES, table
from tests.cases.step_runs import meta, step_table

MS = 1_000_000
MAIN, READ, DECODE = "train.py(30): main", "data.py(7): read", "data.py(9): read"
LOADER = "python3.11/site-packages/torch/utils/data/dataloader.py(5): next"
WAIT = "python3.11/site-packages/torch/distributed/distributed_c10d.py(4287): all_gather"
CALLED = re.compile(r"distributed_c10d\.py\(\d+\): \w+(\n|$)")


def run(*sampled_at: tuple[float, str]) -> Run:
    """Samples (ms, stack) of 10 ms each, in a run of ten steps of 100 ms."""
    rows = [(round(at * MS), 10 * MS, MS, 1, stack) for at, stack in sampled_at]
    samples = table(dict(zip(SAMPLES.names, zip(*rows, strict=True), strict=True)) if rows else {}, SAMPLES)
    steps = step_table([100] * 10)
    return Run(meta(1), lambda name, rank: {"steps": steps, "samples": samples, "events": table({}, EVENTS)}.get(name))


def spans(*ms: tuple[float, float]) -> np.ndarray:
    return np.array([(begin * MS, end * MS) for begin, end in ms], np.int64).reshape(-1, 2)


def test_the_most_sampled_function_has_its_most_frequent_line():
    sampled_at = [
        (105, MAIN),
        (115, f"{MAIN}\n{LOADER}\n{READ}"),
        (125, f"{MAIN}\n{DECODE}"),
        (135, f"{MAIN}\n{DECODE}"),
    ]
    seen = seen_within(JobSamples(JobSteps(run(*sampled_at))), 0, spans((130, 140), (100, 128)))
    assert seen is not None
    assert (seen.location.frame, seen.share) == (DECODE, 0.75)
    assert seen.text == DECODE


def test_the_callee_follows_the_line_of_the_job():
    seen = seen_within(JobSamples(JobSteps(run((105, f"{MAIN}\n{LOADER}")))), 0, spans((100, 110)))
    assert seen is not None
    assert seen.text == f"{MAIN}, calling {LOADER}"


@pytest.mark.parametrize(
    ("sampled_at", "where"),
    [
        ([], spans((0, 100))),
        ([(105, MAIN)], spans()),
        ([(105, MAIN)], spans((0, 100), (106, 200))),
        ([(101, MAIN), (102, READ), (103, "other.py(1): f")], spans((100, 110))),
    ],
    ids=["no samples", "no spans", "outside the spans", "no function has most"],
)
def test_no_location_without_a_dominant_function(sampled_at, where):
    assert seen_within(JobSamples(JobSteps(run(*sampled_at))), 0, where) is None


def test_library_calls_have_the_line_of_their_caller():
    sampled_at = [(at, f"{MAIN}\n{WAIT}") for at in (110, 210, 310)] + [(410, f"{MAIN}\n{READ}")]
    found = seen_calling(JobSamples(JobSteps(run(*sampled_at))), 0, CALLED)
    assert found is not None
    seen, took_ns = found
    assert seen.location.frame == MAIN
    assert took_ns == pytest.approx(3 * 10 * MS / 10)
    assert seen_calling(JobSamples(JobSteps(run((110, MAIN)))), 0, CALLED) is None


def test_calls_in_slow_steps_do_not_count():
    slow = run((110, f"{MAIN}\n{WAIT}"))
    steps = step_table([100, 500, *[100] * 8])
    table_of = {"steps": steps, "samples": slow.samples(0)}
    assert (
        seen_calling(
            JobSamples(JobSteps(Run(meta(1), lambda name, rank: table_of.get(name, table({}, EVENTS))))), 0, CALLED
        )
        is None
    )


def test_the_next_sampled_line_and_whether_it_is_close():
    recorded = run((110, MAIN), (150, f"{MAIN}\n{READ}"))
    moments = np.array([109.5 * MS, 120 * MS, 200 * MS], np.int64)
    assert RankSamples(recorded, 0).frames_behind(moments) == [(MAIN, True), (READ, False), ("", False)]


def test_garbage_collection_time_within_intervals():
    begin = np.array([100, 200, 300], np.int64)
    columns = {"kind": ["stage"] * 3, "name": [GARBAGE_COLLECTION] * 3, "worker": [-1] * 3}
    stages = table(columns | {"start_ns": begin, "end_ns": begin + 10}, STAGES)
    sampled = RankSamples(Run(meta(1), lambda name, rank: stages), 0)
    stretches = np.array([[0, 50], [95, 105], [100, 110], [105, 205], [0, 999], [310, 400]]).T
    assert sampled.collecting_ns(*stretches).tolist() == [0, 5, 10, 10, 30, 0]
    assert RankSamples(run((110, MAIN)), 0).collecting_ns(*stretches).tolist() == [0] * 6
