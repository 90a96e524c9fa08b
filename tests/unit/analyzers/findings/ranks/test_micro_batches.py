"""ESP208 and the bubble in ESP207: pipelines of uneven micro-batches or stages, against the same job with even ones."""

from pathlib import Path

import numpy as np
import pytest

from esprof import load
from esprof.analyzers import diagnose
from esprof.analyzers.views.breakdown import breakdown
from esprof.analyzers.views.bubble import measured_bubble
from esprof.replay.building.build import build
from esprof.replay.ranks.pipeline import Pipeline, pipeline_of
from esprof.replay.replayed import Replayed
from tests.cases.operation_tables import MS, SINCE, write_table
from tests.cases.pipelines import Pipelines

STEPS = 6


def lengths(spread: float, pipelines: int = 2, batches: int = 8) -> list:
    """Lengths of micro-batches, whose mean is 1 in each step."""
    drawn = np.random.default_rng(0).lognormal(0, spread, (STEPS, pipelines, batches))
    return (drawn / drawn.mean(axis=(1, 2), keepdims=True)).tolist()


def job(folder: Path, spread: float, slow=(1, 1, 1, 1), **more):
    return load(write_table(folder / "job.parquet", Pipelines(lengths(spread, **more), slow).rows))


def found(run, id: str):
    return next((one for one in diagnose(run).findings if one.id == id), None)


@pytest.mark.parametrize("pipelines", [1, 3])
def test_uneven_micro_batches_cost_what_the_even_job_saves(tmp_path, pipelines):
    run = job(tmp_path, 0.6, pipelines=pipelines)
    uneven = found(run, "ESP208")
    even = Replayed.of(job(tmp_path, 0.0, pipelines=pipelines)).pricer.step_ns
    assert uneven.saving_us == pytest.approx((Replayed.of(run).pricer.step_ns - even) / 1e3, rel=0.01)
    assert uneven.evidence["longest_over_mean"].value > 1.5
    assert uneven.evidence["schedule"].value == "4 stages, 8 micro-batches"
    bubble = uneven.evidence["bubble"]
    assert bubble.of("measured") > bubble.of("if all stages were even") + 0.1


def test_even_micro_batches_are_not_reported_and_their_bubble_is_that_of_theory(tmp_path):
    run = job(tmp_path, 0.0)
    assert found(run, "ESP208") is None
    replayed = Replayed.of(run)
    pipeline = pipeline_of(run, replayed.built.dfg, replayed.steps.steady)
    assert pipeline.bubble == pytest.approx(3 / 11)
    assert measured_bubble(pipeline, breakdown(replayed)) == pytest.approx(3 / 11, abs=0.01)


def test_uneven_stages_are_told_with_their_bubble(tmp_path):
    bubble = found(job(tmp_path, 0.0, slow=(1, 1, 2, 1)), "ESP207").evidence["bubble"]
    assert bubble.of("if all stages were even") == pytest.approx(3 / 11, abs=1e-4)
    assert bubble.of("measured") > 0.4


def test_a_slow_stage_is_no_uneven_micro_batch(tmp_path):
    assert found(job(tmp_path, 0.0, slow=(1, 1.5, 1, 1)), "ESP208") is None


def test_without_messages_there_is_no_pipeline(tmp_path):
    rows = [row for row in Pipelines(lengths(0.6), (1, 1)).rows if "recv" not in row["op"] and "send" not in row["op"]]
    run = load(write_table(tmp_path / "job.parquet", rows))
    assert pipeline_of(run, build(run), range(1, STEPS + 1)) is None
    assert found(run, "ESP208") is None


def test_pipelines_are_read_from_messages(tmp_path):
    run = job(tmp_path, 0.3, pipelines=2, batches=6, slow=(1, 1, 1))
    pipeline = pipeline_of(run, build(run), range(1, STEPS + 1))
    assert pipeline == Pipeline(chains=((0, 2, 4), (1, 3, 5)), micro_batches=6, chunks=1)
    assert pipeline.bubble == pytest.approx(2 / 8)


@pytest.mark.parametrize(("closing", "expected"), [(2, Pipeline(((0, 1, 2),), 2, 2)), (4, None)])
def test_interleaved_schedules_are_read_from_the_messages_of_the_last_stage(tmp_path, closing, expected):
    """Three ranks that pass 4 activations on; the last one passes `closing` to the first. As many gradients come back."""
    rows, at = [], SINCE
    for step in range(1, 4):
        for rank in range(3):
            rows.append({"rank": rank, "op": "forward", "start": at, "end": at + MS, "step": step, "group": None})
        passed = [(0, 1, 4), (1, 2, 4), (2, 0, closing)]
        for sender, receiver, count in [*passed, *((b, a, n) for a, b, n in reversed(passed))]:
            for _ in range(count):
                at += MS
                common = {"start": at, "end": at + MS // 2, "step": step, "group": str(sorted([sender, receiver]))}
                rows += [{"rank": sender, "op": "send"} | common, {"rank": receiver, "op": "recv"} | common]
        at += 2 * MS
    run = load(write_table(tmp_path / "job.parquet", rows))
    assert pipeline_of(run, build(run), (1, 2, 3)) == expected
