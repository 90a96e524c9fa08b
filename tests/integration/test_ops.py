"""The table of operations of a job, held against what torch.profiler itself makes of the same recording."""

import json

import pytest

from esprof import load
from esprof.analyzers.ops.over_ranks import Asked, ops_run
from tests.cases.record import JOBS, job, run

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """(what torch prints: calls, own and total time by name; the trace; another trace with Python stacks)"""
    folder = tmp_path_factory.mktemp("traces")
    files = [folder / "trace.json", folder / "stacks.json"]
    ended = run(job("key_averages.py", *files))
    assert ended.code == 0, ended.stderr
    return json.loads(ended.stdout), *files


def test_calls_own_and_total_time_are_torchs(profiled):
    theirs, trace, _ = profiled
    found = ops_run(load(trace), Asked(top=1_000))
    steps = len(found.steps)
    ours = {one.name: one for one in found.ops}
    assert set(ours) == set(theirs)
    assert len(ours) > 30
    for name, (calls, own, total) in theirs.items():
        assert ours[name].calls * steps == calls, name
        # Torch rounds the times in the trace to the nanosecond, each step's mean is rounded to it again.
        assert ours[name].own_cpu_us * steps == pytest.approx(own, abs=0.01), name
        assert ours[name].total_cpu_us * steps == pytest.approx(total, abs=0.01), name


def test_modules_shapes_and_source_locations_come_from_a_trace_with_stacks(profiled):
    found = {one.name: one for one in ops_run(load(profiled[2]), Asked(top=1_000)).ops}
    assert {"Sequential_0", "Linear_0", "ReLU_0"} <= {one.name for one in found.values() if one.kind == "module"}
    assert found["Linear_0"].total_cpu_us < found["Sequential_0"].total_cpu_us
    assert found["aten::linear"].inputs[0].shapes in ("[[8, 16], [16, 16], [16]]", "[[8, 16], [1, 16], [1]]")
    (place,) = found["aten::addmm"].places
    assert place.frame.endswith(": train")
    line = int(place.frame.partition("(")[2].partition(")")[0])
    assert (JOBS / "key_averages.py").read_text().splitlines()[line - 1].startswith("def train")
