"""ESP111: loader workers that start anew in each epoch."""

import pytest

from esprof.analyzers.findings.checkpoint.recurring_steps import RULE as RECURRING
from esprof.analyzers.findings.data.epoch_starts import RULE, start_ups
from esprof.analyzers.recorded_job import RecordedJob
from esprof.run.run import Run
from esprof.run.schema import SAMPLES, table
from tests.cases.graph import EPOCH_NS, run_of, stage, step
from tests.cases.step_runs import step_table

EPOCHS, OF_EPOCH = 4, 10
STEP_MS = 100
MS = 1_000_000
MAIN = "a.py(5): main"
LOADING = "python3.11/site-packages/torch/utils/data/dataloader.py(500): __iter__"


def job(
    start_up_ms: float,
    *,
    ranks: int = 1,
    is_persistent: bool = False,
    longer_ms: int = 0,
    where: str = "loader",
    batch_ms: int = 20,
    validates: bool = False,
):
    """Epochs of ten steps. In each, the worker begins with the first batch so long after the rank asked. The first step of
    each epoch is longer, by a wait for the loader or at the line `where`. A validation has one batch of its own loader."""
    took_ms = [STEP_MS + (0 if n % OF_EPOCH else longer_ms) for n in range(EPOCHS * OF_EPOCH)]
    waited_ns = [(took - STEP_MS) * MS if where == "loader" else 0 for took in took_ms]
    table = step_table(took_ms, start_ns=EPOCH_NS, loader_wait_ns=waited_ns)
    stages = []
    for n, start_ns in enumerate(table.ints("start_ns").tolist()):
        epoch, batch = divmod(n, OF_EPOCH)
        at, more = (start_ns - EPOCH_NS) / 1000, 0 if batch else start_up_ms * 1000
        pid = {"loader": epoch, "pid": 500 if is_persistent else 500 + epoch}
        stages += [
            stage("fetch", batch, at + more, at + more + batch_ms * 1000) | pid,
            stage("next", batch, at, at + more + batch_ms * 1000) | {"loader": epoch, "pid": 7},
        ]
        if validates and not batch:
            stages.append(stage("next", 0, at + 90_000, at + 99_000) | {"loader": 50 + epoch, "pid": 7})
            stages.append(stage("next", 1, at + 99_000, at + 99_500) | {"loader": 50 + epoch, "pid": 7})
    both = range(ranks)
    run = run_of(
        {rank: [step(0, 0, 1000)] for rank in both},
        stages=dict.fromkeys(both, stages),
        steps=dict.fromkeys(both, table),
    )
    return run if where == "loader" else with_samples(run, where)


def with_samples(run: Run, where: str) -> Run:
    """The run, in whose slow steps all but 100 ms are at the line `where`."""
    steps = run.steps(0)
    rows = [
        {"at_ns": start + dur, "dur_ns": ns, "cpu_ns": 0, "step": number, "stack": stack}
        for number, start, dur in zip(*(steps.ints(c).tolist() for c in ("step", "start_ns", "dur_ns")), strict=True)
        for stack, ns in ((MAIN, STEP_MS * MS), (f"{MAIN}\n{where}", dur - STEP_MS * MS))
        if ns
    ]
    samples = table({name: [row[name] for row in rows] for name in SAMPLES.names}, SAMPLES)
    return Run(run.meta, lambda name, rank: samples if name == "samples" else run.recorded(name, rank))


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


@pytest.mark.parametrize("where", ["loader", LOADING])
def test_new_workers_cost_all_the_extra_time_of_the_first_steps_that_is_in_the_loader(where):
    """The first epoch is not counted: three steps of 40 take 200 ms longer, of which making a batch takes 20 ms."""
    slow = RecordedJob(job(5, longer_ms=200, where=where))
    (cause,) = RULE.of_job(slow)
    assert cause.title == "Loader workers of rank 0 start again in each epoch, whose first step takes 200.0 ms longer"
    assert cause.measured.saving_ns == pytest.approx(180e6 * 3 / 39)
    assert list(RECURRING.of_job(slow)) == []


@pytest.mark.parametrize(("where", "is_persistent"), [("a.py(9): validate", False), ("loader", True), (LOADING, True)])
def test_other_slow_starts_of_epochs_are_no_starts_of_workers(where, is_persistent):
    slow = RecordedJob(job(5, longer_ms=200, where=where, is_persistent=is_persistent))
    assert list(RULE.of_job(slow)) == []
    assert [cause.id for cause in RECURRING.of_job(slow)] == ["ESP807"]


@pytest.mark.parametrize("other", [{"batch_ms": 120}, {"validates": True}])
def test_batches_that_take_long_and_validations_are_no_starts_of_workers(other):
    slow = RecordedJob(job(5, longer_ms=200, **other))
    assert list(RULE.of_job(slow)) == []
    assert [cause.id for cause in RECURRING.of_job(slow)] == ["ESP807"]


def test_a_job_without_a_loader_starts_no_workers():
    assert len(start_ups(run_of({0: [step(0, 0, 1000)]}, steps={0: step_table([1])}), 0)) == 0
