"""ESP404: training threads that wait for a CPU."""

import msgspec
import pytest

from esprof.run.run import Run
from tests.cases.findings import ungrouped
from tests.cases.graph import EPOCH_NS, gloo, op, run_of, step
from tests.cases.step_runs import step_table

MS, NS = 1000.0, 1_000_000


def step_of(begin: float, number: int, compute_ms: float):
    """`mm` up to an all-reduce, for which the ranks wait until 80 ms, and `add` up to the end."""
    return [
        step(number, begin, begin + 100 * MS),
        op("mm", begin, (compute_ms - 0.01) * MS),
        *gloo(begin + (compute_ms - 0.01) * MS, begin + compute_ms * MS, begin + 84 * MS),
        op("add", begin + 84 * MS, 16 * MS),
    ]


def found(*ready_ms, throttled_ms=0, threads=None):
    """Findings on six steps of 100 ms, in each of which a rank waited so long for a CPU, or so long in turn.

    Odd ranks finish earlier.
    """
    ranks = range(len(ready_ms))
    rows = {rank: [row for n in range(6) for row in step_of(100 * MS * n, n, 40 if rank % 2 else 80)] for rank in ranks}
    noted = {
        rank: step_table(
            [100] * 6,
            start_ns=EPOCH_NS,
            first=0,
            phase="timed",
            cpu_ns=[20 * NS] * 6,
            ready_ns=[None if ms is None else ms * NS for ms in (some if isinstance(some, list) else [some] * 6)],
            throttled_ns=[throttled_ms * NS] * 6,
        )
        for rank, some in enumerate(ready_ms)
    }
    made = run_of(rows, steps=noted, cpus=dict.fromkeys(ranks, (0, 1, 2, 3)))
    metas = tuple(msgspec.structs.replace(rank, threads=threads) for rank in made.meta.ranks)
    run = Run(msgspec.structs.replace(made.meta, ranks=metas), made.recorded)
    found = ungrouped(run)
    msgspec.json.encode(found)
    return [finding for finding in found if finding.id == "ESP404"]


def test_a_thread_that_waits_for_a_cpu_is_reported_with_its_cost():
    (finding,) = found(30)
    assert finding.title == "Rank 0 waits 30.0 ms a step for a CPU: other threads use the CPUs"
    assert finding.saving_us == pytest.approx(30 * MS, rel=0.02)
    assert finding.evidence["waiting_for_cpu"].of(0) == 30 * NS
    assert finding.command is not None
    assert "runqueue=0" in finding.command


@pytest.mark.parametrize(
    ("ready_ms", "is_certain"),
    [(11, True), (9, False), ([0, 0, 0, 0, 60, 60], False), ([None, None, None, None, None, 30], False)],
)
def test_half_of_what_long_waits_cost_is_certain(ready_ms, is_certain):
    (finding,) = found(ready_ms)
    assert (finding.saving_low_us >= finding.saving_us / 2) == is_certain


def test_ranks_that_wait_far_less_than_the_worst_are_not_listed():
    (finding,) = found(40, 4, 20)
    assert finding.ranks == (0, 2)
    assert finding.command is not None
    assert "rank0+2.runqueue=0" in finding.command


def test_a_quota_is_distinguished_from_other_load():
    (finding,) = found(30, throttled_ms=40)
    assert finding.title.endswith("the CPU quota is used up")
    assert finding.evidence["throttled_by_quota"].of(0) == 40 * NS


def test_threads_are_compared_with_the_cpus_of_the_host():
    run_of_threads = found(30, 30, threads=8)[0]
    assert run_of_threads.evidence["operator_threads_on_host"].value == 16
    assert run_of_threads.evidence["cpus_for_each_rank"].value == 2.0


@pytest.mark.parametrize("ready_ms", [0, 2, None])
def test_short_and_unrecorded_waits_are_not_reported(ready_ms):
    assert found(ready_ms) == []


# Without scheduler statistics


def stalling(stalls, ranks=4):
    """ESP404 on a job whose ranks run forty operations of 0.2 ms, and an all-reduce that ends at 100 ms.

    `stalls(rank)` are the numbers of the operations that take 3 ms longer.
    """
    rows = {}
    for rank in range(ranks):
        now, of_rank = 0.0, [step(0, 0, 120 * MS)]
        for number in range(40):
            took = 0.2 * MS + (3 * MS if number in stalls(rank) else 0)
            of_rank.append(op(f"op {number % 5}", now, took))
            now += took
        rows[rank] = [*of_rank, *gloo(now, now + 5, 100 * MS), op("end", 100 * MS, 20 * MS)]
    return [finding for finding in ungrouped(run_of(rows)) if finding.id == "ESP404"]


def test_ranks_that_stall_repeatedly_at_different_operations_lack_cpus():
    (finding,) = stalling(lambda rank: range(rank, 36 + 4 * (rank == 2), 4))
    assert finding.ranks == (0, 1, 2, 3)
    assert "each at different operations" in finding.title
    assert finding.title.endswith("rank 2 delays the others most")
    assert finding.evidence["stalled"].of(0) == 9 * 3 * NS
    assert finding.evidence["stalled"].of(2) == 10 * 3 * NS
    # The step begins with 8 ms of work where nothing stalls, and 38 where rank 2 does.
    assert finding.saving_us == pytest.approx(30 * MS, rel=0.01)
    assert "runqueue=0" in finding.command


@pytest.mark.parametrize(
    "how",
    [
        {"stalls": lambda rank: range(0, 36, 4) if rank == 1 else ()},  # one rank
        {"stalls": lambda rank: range(0, 36, 4)},  # all at the same operations
        {"stalls": lambda rank: (rank, rank + 12, rank + 24)},  # seldom
        {"stalls": lambda rank: range(rank, 40, 5)},  # each at operations of its own: may be part of the job
        {"stalls": lambda rank: range(rank, 36, 4), "ranks": 2},  # two ranks do not show the usual duration
    ],
)
def test_other_pauses_are_not_reported(how):
    assert stalling(**how) == []
