"""ESP111: loader workers that start anew in each epoch."""

import pytest

from esprof.analyzers.findings.data.epoch_starts import RULE, start_ups
from esprof.analyzers.recorded_job import RecordedJob
from tests.cases.graph import EPOCH_NS, run_of, stage, step
from tests.cases.step_runs import step_table

EPOCHS, OF_EPOCH = 4, 10
STEP_MS = 100


def job(start_up_ms: float, *, ranks: int = 1, is_persistent: bool = False):
    """Epochs of ten steps. In each, the worker begins with the first batch so long after the rank asked, and makes it in
    20 ms."""
    stages = []
    for n in range(EPOCHS * OF_EPOCH):
        epoch, batch = divmod(n, OF_EPOCH)
        at, more = n * STEP_MS * 1000, 0 if batch else start_up_ms * 1000
        pid = {"loader": epoch, "pid": 500 if is_persistent else 500 + epoch}
        stages += [
            stage("fetch", batch, at + more, at + more + 20_000) | pid,
            stage("next", batch, at, at + more + 20_000) | {"loader": epoch, "pid": 7},
        ]
    table = step_table([STEP_MS] * EPOCHS * OF_EPOCH, start_ns=EPOCH_NS)
    both = range(ranks)
    return run_of(
        {rank: [step(0, 0, 1000)] for rank in both},
        stages=dict.fromkeys(both, stages),
        steps=dict.fromkeys(both, table),
    )


def test_new_workers_in_each_epoch_cost_their_start_up():
    """Three starts of 60 ms in 40 steps of 100 ms; the first epoch's is not counted."""
    (cause,) = RULE.of_job(RecordedJob(job(60, ranks=2)))
    assert (cause.id, cause.ranks) == ("ESP111", (0, 1))
    assert cause.title == "Ranks 0–1 wait up to 60.0 ms for loader workers to start in each epoch"
    assert cause.measured.saving_ns == pytest.approx(60e6 * 3 / 40)
    assert cause.measured.step_ns == pytest.approx(STEP_MS * 1e6)
    assert cause.evidence["epochs"].value == 3
    assert "persistent_workers=True" in cause.advice


@pytest.mark.parametrize(("start_up_ms", "is_persistent"), [(60, True), (5, False)])
def test_workers_that_persist_or_start_at_once_are_no_finding(start_up_ms, is_persistent):
    assert list(RULE.of_job(RecordedJob(job(start_up_ms, is_persistent=is_persistent)))) == []


def test_a_job_without_a_loader_starts_no_workers():
    assert len(start_ups(run_of({0: [step(0, 0, 1000)]}, steps={0: step_table([1])}), 0)) == 0
