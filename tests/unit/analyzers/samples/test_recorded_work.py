"""What runs at the samples of recorded steps."""

from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.samples.recorded_work import RecordedSamples
from esprof.run.run import Run
from esprof.run.schema import SAMPLES, table
from tests.cases.graph import EPOCH_NS, numbered, op, run_of, step
from tests.cases.step_runs import step_table

MS = 1000.0
LOOP = "train.py(9): main"


def work(*sampled_ms):
    """Two operations with half a millisecond between them, a long gap, and two with a gradient."""
    rows = [
        step(0, 0, 100 * MS),
        op("aten::select", 10 * MS, 10 * MS),
        op("aten::item", 20.5 * MS, 10 * MS),
        numbered("aten::mm", 50 * MS, 10 * MS, 1),
        numbered("MmBackward0", 60.5 * MS, 10 * MS, 1, forward_thread=1),
    ]
    run = run_of({0: rows})
    samples = [(EPOCH_NS + round(at * 1e6), 1, 1, 0, LOOP) for at in sampled_ms]
    known = {
        "samples": table(dict(zip(SAMPLES.names, zip(*samples, strict=True), strict=True)), SAMPLES),
        "steps": step_table([100], start_ns=EPOCH_NS, phase="timed"),
    }
    job = RecordedJob(Run(run.meta, lambda name, rank: known.get(name) or run.recorded(name, rank)))
    return RecordedSamples(job.samples).of(lambda stack: stack == LOOP)


def test_samples_between_small_operations_count_as_theirs():
    loop = work(12, 20.1, 20.3)
    assert loop.in_operation.tolist() == [True, False, False]
    assert loop.has_gradient is False
    assert work(52, 60.1, 60.3).has_gradient is True


def test_samples_in_a_long_gap_or_beside_no_operation_tell_nothing():
    assert work(5, 35, 40, 45, 90).has_gradient is None
