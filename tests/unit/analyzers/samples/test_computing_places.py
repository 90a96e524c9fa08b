"""Where a rank spends its CPU time, from sampled stacks."""

import pytest

from esprof.analyzers.samples.computing_places import BACKWARD, MIN_SAMPLES, OPTIMIZERS, computing_places
from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.run.run import Run
from esprof.run.schema import SAMPLES, table
from tests.cases.step_runs import EPOCH_NS, meta, step_table

MS = 1_000_000
TORCH = "python3.11/site-packages/torch/"
LOSS = f"train.py(30): main\nloss.py(7): loss\n{TORCH}functional.py(3): cdist"
BACK = f"train.py(31): main\n{TORCH}autograd/graph.py(9): _engine_run_backward"
STEP = f"train.py(32): main\n{TORCH}optim/adam.py(9): Adam.step"


def places(*stacks, count=MIN_SAMPLES, phase="plain"):
    """Places of a rank whose samples show `count` times each of the `stacks`, with so many ms of CPU time."""
    rows = [(EPOCH_NS, 20 * MS, ms * MS, 3, stack) for stack, ms in stacks for _ in range(count)]
    samples = table(dict(zip(SAMPLES.names, zip(*rows, strict=True), strict=True)), SAMPLES)
    tables = {"samples": samples, "steps": step_table([100] * 4, first=1, phase=phase)}
    return computing_places(JobSamples(JobSteps(Run(meta(), lambda name, rank: tables.get(name)))), 0)


def test_lines_of_the_job_the_backward_pass_and_optimizers_are_told_by_their_cpu_time():
    found = places((LOSS, 2), (BACK, 6), (STEP, 2), ("train.py(40): main", 0))
    assert next(iter(found.items())) == (BACKWARD, pytest.approx(0.6))
    assert found == {
        BACKWARD: pytest.approx(0.6),
        "at loss.py(7): loss": pytest.approx(0.2),
        OPTIMIZERS: pytest.approx(0.2),
    }


def test_small_places_and_profiled_steps_are_left_out():
    assert list(places((LOSS, 20), (STEP, 1))) == ["at loss.py(7): loss"]
    assert places((LOSS, 20), phase="timed") == {}
    assert places((LOSS, 20), count=MIN_SAMPLES - 1) == {}
