"""What a run lacks."""

from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.summary.not_recorded import not_recorded
from tests.cases.graph import ddp_rank, run_of


def lacking(run, *, has_shapes: bool) -> list[str]:
    return [one.data for one in not_recorded(RecordedJob(run), has_shapes)]


def test_a_bare_trace_lacks_what_esprof_records():
    lacks = lacking(run_of({0: ddp_rank(), 1: ddp_rank()}, world=3), has_shapes=False)
    assert lacks[0] == "rank 2"
    assert {"input shapes", "DataLoaders", "memory", "sampled stacks", "a probe", "steps without the profiler"} <= {
        *lacks
    }
    whole = lacking(run_of({0: ddp_rank()}), has_shapes=True)
    assert "input shapes" not in whole
    assert "rank 2" not in whole
