"""Operations of CPU jobs compared with the CPU time of their threads: warnings, and none."""

import pytest

from esprof.replay import Replayed
from tests.cases.graph import EPOCH_NS, launched, op, run_of, step
from tests.cases.step_runs import step_table

MS = 1_000_000


def job(cpu_ms, ready_ms=0, throttled_ms=0, more=()):
    """Steps of 50 ms: 30 ms in `mine::kernel`, a gap of 15 ms, 5 ms in `Optimizer.step`; with recorded CPU times."""
    begins = [0, 50_000, 100_000]
    rows = [step(number, begin, begin + 50_000) for number, begin in enumerate(begins)]
    rows += [op("mine::kernel", begin, 30_000) for begin in begins]
    rows += [op("Optimizer.step", begin + 45_000, 5_000) for begin in begins]
    columns = {"cpu_ns": cpu_ms, "ready_ns": ready_ms, "throttled_ns": throttled_ms}
    noted = {name: [None if ms is None else ms * MS] * 3 for name, ms in columns.items()}
    return run_of({0: [*rows, *more]}, steps={0: step_table([50] * 3, start_ns=EPOCH_NS, phase="timed", **noted)})


def messages(replayed):
    return [warning.message for warning in replayed.warnings if warning.code == "operations-not-run"]


def test_time_of_operations_beyond_the_threads_cpu_time_is_unexplained():
    replayed = Replayed.of(job(cpu_ms=10, ready_ms=4))
    (found,) = replayed.not_run
    assert found.operations_ns.tolist() == [35 * MS] * 3
    assert found.idle_ns.tolist() == [21 * MS] * 3
    assert replayed.explained_pct == pytest.approx(100 * (1 - 21 / 50))
    (message,) = messages(replayed)
    assert message == (
        "rank 0: 21.0 ms a step of 35.0 ms in operations did not run: waited or was preempted; "
        "most time is spent in mine::kernel"
    )


def test_the_warning_says_how_long_a_quota_stopped_the_rank():
    (message,) = messages(Replayed.of(job(cpu_ms=10, ready_ms=4, throttled_ms=3)))
    assert message.endswith("; its CPU quota stopped it for 3.00 ms a step")


@pytest.mark.parametrize(
    ("cpu_ms", "ready_ms"),
    [(35, 0), (50, 0), (15, 20), (34, 0), (33, None), (None, None)],
    ids=["ran", "ran in gaps too", "was preempted", "ran but for a little", "nothing else known", "not known"],
)
def test_operations_that_ran_or_could_have_run_are_explained(cpu_ms, ready_ms):
    replayed = Replayed.of(job(cpu_ms, ready_ms))
    assert messages(replayed) == []
    assert replayed.explained_pct >= 95


def test_the_cpu_of_a_job_that_computes_on_a_gpu_may_wait():
    replayed = Replayed.of(job(cpu_ms=1, more=launched("gemm", 10, 20, 100, 1)))
    assert replayed.not_run == ()
    assert messages(replayed) == []


def test_another_path_has_its_own_share():
    replayed = Replayed.of(job(cpu_ms=10, ready_ms=4))
    gaps = [piece for piece in replayed.path if piece.cls.label == "host_gap"]
    assert replayed.explained_of(gaps) == 100
