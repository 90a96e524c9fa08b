"""What a run lacks."""

from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.summary.not_recorded import not_recorded
from tests.cases.graph import ddp_rank, run_of


def test_a_bare_trace_lacks_what_esprof_records():
    lacks = not_recorded(RecordedJob(run_of({0: ddp_rank(), 1: ddp_rank()}, world=3)), has_shapes=False)
    assert [one.what for one in lacks] == [
        "rank 2",
        "Python stacks",
        "stages of the input",
        "memory over time",
        "shapes of tensors",
        "benchmarks of the links",
    ]
    assert "shapes of tensors" not in [
        one.what for one in not_recorded(RecordedJob(run_of({0: ddp_rank()})), has_shapes=True)
    ]
