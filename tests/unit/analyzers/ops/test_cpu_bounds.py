"""What bounds operations on CPUs, and the sentences on what a job computes."""

import pyarrow as pa
import pytest

from esprof.analyzers import diagnose
from esprof.analyzers.ops.cpu_bounds import cpu_bounds
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Case
from esprof.replay import Replayed
from esprof.run.run import Run
from esprof.run.schema import SAMPLES, Table, table
from tests.cases.graph import EPOCH_NS, launched, op, run_of, step
from tests.cases.step_runs import step_table

MS, NS = 1000.0, 1_000_000
MAIN, TORCH = "train.py(30): main", "python3.11/site-packages/torch/"
BACKWARD = f"{TORCH}autograd/graph.py(9): _engine_run_backward"


def rows():
    """Six steps of 100 ms: a product of 60 ms within a call, an addition of 30, and 200 multiplications of 50 µs."""
    found = []
    for n in range(6):
        at = 100 * MS * n
        found += [step(n, at, at + 100 * MS), op("aten::linear", at, 60 * MS), op("aten::addmm", at, 60 * MS)]
        found += [op("aten::add", at + 60 * MS, 30 * MS)]
        found += [op("aten::mul", at + 90 * MS + 50 * k, 50) for k in range(200)]
    return found


def sampled(run):
    """The run with steps without profiler, and samples of them."""
    recorded = step_table([100] * 6, start_ns=EPOCH_NS, first=0, phase="timed")
    plain = step_table([100] * 30, start_ns=EPOCH_NS + 10_000 * NS, first=7)
    places = (
        f"{MAIN}\n{TORCH}nn/modules/module.py(7): Module._call_impl\nmodel.py(9): Net.forward",
        f"{MAIN}\n{BACKWARD}",
    )
    columns = [(EPOCH_NS, 20 * NS, 20 * NS, 7 + at, places[at % 3 == 0]) for at in range(30) for _ in range(2)]
    tables = {
        "samples": table(dict(zip(SAMPLES.names, zip(*columns, strict=True), strict=True)), SAMPLES),
        "steps": Table(pa.concat_tables([recorded.arrow, plain.arrow], promote_options="permissive")),
    }
    return Run(run.meta, lambda name, rank: tables.get(name) or run.recorded(name, rank))


def test_operations_are_divided_by_what_bounds_them():
    run = run_of({0: rows()})
    bounds = cpu_bounds(Case(Replayed.of(run), RecordedJob(run)).gpu_calls[0])
    assert bounds == pytest.approx((0.6, 0.3, 0.1), abs=0.01)
    other = run_of({0: [row for n in range(6) for row in (step(n, 1e5 * n, 1e5 * (n + 1)), op("mine", 1e5 * n, 1e5))]})
    assert cpu_bounds(Case(Replayed.of(other), RecordedJob(other)).gpu_calls[0]) is None


def test_the_verdict_on_a_job_that_only_computes_says_where_and_what():
    assert diagnose(sampled(run_of({0: rows()}))).verdict == (
        "A step takes 100.0 ms, 100 % of it compute; no cause known to esprof costs noticeable time. Rank 0 spends 67 % of "
        "its CPU time at model.py(9): Net.forward, 33 % in the backward pass. Of its operations, 60 % of the time are "
        "products and convolutions (bound by arithmetic), 30 % others (by memory), and 10 % take less than 0.050 ms each "
        "(by what a call costs)."
    )


def test_nothing_is_said_of_cpus_beside_a_gpu():
    with_gpu = run_of(
        {0: [*rows(), *(row for n in range(6) for row in launched("k", 1e5 * n, 1e5 * n + 10, 9e4, n + 1))]}
    )
    assert "of its CPU time" not in diagnose(sampled(with_gpu)).verdict
